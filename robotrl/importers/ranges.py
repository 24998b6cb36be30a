"""Comparison of a policy's normalization ranges with the bounds of the sim.

Statistics may be valid but belong to another robot: then nearly all actions are clipped or hardly move the robot, and
normalised observations are off by thousands of stds.
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
"""Fraction of a policy's range that may lie outside the sim's."""
THIN = 1e-5
"""A measured range below this would amplify sensor noise to thousands of stds."""
LISTED = 3
"""Number of elements that a warning names; the others are counted."""


def check_ranges(
    where: str, transforms: TransformGroup, observation_spec: Mapping[str, Spec], action_spec: Spec
) -> None:
    """Warn about statistics that do not match the sim's robot, by element, with both ranges and the unit.

    Args:
        where: source of the statistics, for messages.
        transforms: the policy's; they define the ranges from -1 to 1, or one std around the mean.
        observation_spec: the sim's spec.
        action_spec: the sim's action.

    Raises:
        DataError: no element of the action has a range, so that the policy could give only one action.
    """
    odd: list[str] = []
    actions = [transform for transform in transforms.outputs if isinstance(transform, Affine)]
    for unit in actions[:1]:
        low, high = _range(unit)
        thin = [j for j in range(len(low)) if high[j] - low[j] < FLOOR * (action_spec.high[j] - action_spec.low[j])]
        if len(thin) == len(low):
            raise DataError(
                f"{where}: {_range_text(ACTION, 0, low, high, action_spec)}, and so on in all elements: expected ranges"
                ", the policy could say one action alone"
            )
        odd += [f"{_range_text(ACTION, j, low, high, action_spec)}: it hardly moves" for j in thin]
        odd += _beyond(ACTION, low, high, action_spec)
    for unit in transforms.inputs:
        if isinstance(unit, Affine) and unit.key in observation_spec:
            spec = observation_spec[unit.key]
            low, high = _range(inverse(unit))
            thin = [j for j in range(len(low)) if high[j] - low[j] < THIN]
            odd += [f"{_range_text(unit.key, j, low, high, spec)}: noise becomes large" for j in thin]
            odd += _beyond(unit.key, low, high, spec)
    if odd:
        more = f"; and {len(odd) - LISTED} more" if len(odd) > LISTED else ""
        warnings.warn(f"{where}: are these statistics of this robot? {'; '.join(odd[:LISTED])}{more}", stacklevel=3)


def _range(unit: Affine) -> tuple[np.ndarray, np.ndarray]:
    scale, offset = (np.asarray(row, np.float64) for row in unit.constants)
    return offset - np.abs(scale), offset + np.abs(scale)


def _beyond(name: str, low: np.ndarray, high: np.ndarray, spec: Spec) -> list[str]:
    """Messages for elements with more than half of the policy's range outside the sim's."""
    out: list[str] = []
    for j in range(len(low)):
        inside = min(high[j], spec.high[j]) - max(low[j], spec.low[j])
        span = high[j] - low[j]
        if span > 0 and inside < (1 - OUTSIDE) * span:
            farthest = high[j] if high[j] - spec.high[j] > spec.low[j] - low[j] else low[j]
            asked = question(spec.units[j], float(farthest), spec.low[j], spec.high[j])
            out.append(f"{_range_text(name, j, low, high, spec)}{f': {asked}' if asked else ''}")
    return out


def _range_text(name: str, j: int, low: np.ndarray, high: np.ndarray, spec: Spec) -> str:
    return (
        f"{name} {spec.names[j]!r} is {low[j]:.7g} to {high[j]:.7g} to the policy, {spec.low[j]:g} to"
        f" {spec.high[j]:g} ({spec.units[j]}) to the sim"
    )
