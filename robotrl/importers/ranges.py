"""The ranges that a policy's statistics stand for, held against the bounds of the sim that it is put on.

Statistics may be right in themselves and of another robot: what the policy says is then cut off nearly always, or
hardly moves anything, and what it sees lies a thousand deviations away.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np

from robotrl.datasets.agreement.bounds import question
from robotrl.datasets.normalization import FLOOR
from robotrl.errors import DataError
from robotrl.policies.base import ACTION
from robotrl.spec import Spec
from robotrl.transforms import Affine, TransformGroup, inverse

OUTSIDE = 0.5
"""Share of a policy's range that may lie outside the sim's."""
THIN = 1e-5
"""A range of measured numbers below this makes thousands of deviations of any noise."""
TOLD = 3
"""Elements that a warning names before it counts."""


def check_ranges(
    where: str, transforms: TransformGroup, observation_spec: Mapping[str, Spec], action_spec: Spec
) -> None:
    """Warn of statistics that are not of the sim's robot, element by element, with both ranges and the unit.

    Args:
        where: whose statistics, for messages.
        transforms: of the policy: what is -1 and 1 to it, or a deviation below and above the mean.
        observation_spec: of the sim.
        action_spec: of the sim.

    Raises:
        DataError: no element of the action has a range to speak of, so that the policy could say one action alone.
    """
    odd: list[str] = []
    actions = [transform for transform in transforms.outputs if isinstance(transform, Affine)]
    for unit in actions[:1]:
        low, high = _range(unit)
        thin = [j for j in range(len(low)) if high[j] - low[j] < FLOOR * (action_spec.high[j] - action_spec.low[j])]
        if len(thin) == len(low):
            raise DataError(
                f"{where}: {_told(ACTION, 0, low, high, action_spec)}, and so on in all elements: expected ranges, the"
                " policy could say one action alone"
            )
        odd += [f"{_told(ACTION, j, low, high, action_spec)}: it hardly moves" for j in thin]
        odd += _beyond(ACTION, low, high, action_spec)
    for unit in transforms.inputs:
        if isinstance(unit, Affine) and unit.key in observation_spec:
            spec = observation_spec[unit.key]
            low, high = _range(inverse(unit))
            thin = [j for j in range(len(low)) if high[j] - low[j] < THIN]
            odd += [f"{_told(unit.key, j, low, high, spec)}: noise becomes large" for j in thin]
            odd += _beyond(unit.key, low, high, spec)
    if odd:
        more = f"; and {len(odd) - TOLD} more" if len(odd) > TOLD else ""
        warnings.warn(f"{where}: are these statistics of this robot? {'; '.join(odd[:TOLD])}{more}", stacklevel=3)


def _range(unit: Affine) -> tuple[np.ndarray, np.ndarray]:
    scale, offset = (np.asarray(row, np.float64) for row in unit.constants)
    return offset - np.abs(scale), offset + np.abs(scale)


def _beyond(name: str, low: np.ndarray, high: np.ndarray, spec: Spec) -> list[str]:
    """Elements of which more than half of the policy's range is outside the sim's."""
    out: list[str] = []
    for j in range(len(low)):
        inside = min(high[j], spec.high[j]) - max(low[j], spec.low[j])
        span = high[j] - low[j]
        if span > 0 and inside < (1 - OUTSIDE) * span:
            farthest = high[j] if high[j] - spec.high[j] > spec.low[j] - low[j] else low[j]
            asked = question(spec.units[j], float(farthest), spec.low[j], spec.high[j])
            out.append(f"{_told(name, j, low, high, spec)}{f': {asked}' if asked else ''}")
    return out


def _told(name: str, j: int, low: np.ndarray, high: np.ndarray, spec: Spec) -> str:
    return (
        f"{name} {spec.names[j]!r} is {low[j]:.7g} to {high[j]:.7g} to the policy, {spec.low[j]:g} to"
        f" {spec.high[j]:g} ({spec.units[j]}) to the sim"
    )
