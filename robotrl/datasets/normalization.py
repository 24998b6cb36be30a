"""Normalization of a new policy by the dataset's statistics, which are then stored with the policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from robotrl.datasets.layout import ACTION, observation_key
from robotrl.datasets.reader import Dataset
from robotrl.errors import ConfigError, unknown
from robotrl.spec import COMMITTED, Spec, committed_steps, measured, without_committed
from robotrl.transforms import Affine, Clip, Transform, TransformGroup, bounds_to_unit, inverse, normalize

ActionRange = Literal["bounds", "quantiles"]
ACTION_RANGES: tuple[ActionRange, ...] = get_args(ActionRange)
FLOOR = 1e-3
"""Standard deviation below which an element is constant; likewise the quantile range, as a fraction of the bounds."""


def transforms_for(
    dataset: Dataset, specs: Mapping[str, Spec], action_spec: Spec, actions: ActionRange = "bounds"
) -> TransformGroup:
    """Normalization transforms from a dataset's statistics. Images and words are left to the policy.

    Args:
        dataset: the dataset.
        specs: observation specs; measured arrays get mean 0 and standard deviation 1, and committed actions
            (`committed_specs`) are scaled as the actions are.
        action_spec: the action's spec.
        actions: range that is mapped to [-1, 1]: the action's bounds, or the 1 % to 99 % quantiles of the dataset's
            actions (OpenVLA), which makes bins and noise finer where the robot uses little of its range.

    Raises:
        ConfigError: an unknown range of actions.
    """
    stats = {key: dataset.stats[observation_key(key)] for key in measured(without_committed(specs))}
    inputs = [normalize(key, of["mean"].tolist(), of["std"].tolist(), FLOOR) for key, of in stats.items()]
    outputs = actions_for(dataset, action_spec, actions)
    if steps := committed_steps(specs):
        unit = next(inverse(found) for found in outputs if isinstance(found, Affine))
        inputs.append(Affine(COMMITTED, unit.scale * steps, unit.offset * steps))
    return TransformGroup(tuple(inputs), outputs)


def check_new(field: str, actions: ActionRange) -> None:
    """Check that no action range is set for a pretrained policy, which keeps its own normalization.

    Raises:
        ConfigError: it is not the default.
    """
    if actions != "bounds":
        raise ConfigError(f"{field} is {actions!r} beside --init-from: expected bounds; a stored policy keeps its own")


def actions_for(dataset: Dataset, action_spec: Spec, actions: ActionRange) -> tuple[Transform, ...]:
    """Transform from a policy's [-1, 1] to the robot's actions; see `transforms_for`."""
    if actions not in ACTION_RANGES:
        raise unknown("algo.action_range", str(actions), ACTION_RANGES)
    if actions == "bounds":
        return within_bounds(action_spec)
    stats = dataset.stats[ACTION]
    low, high = (np.asarray(stats[name], np.float64).reshape(-1) for name in ("q01", "q99"))
    least, most = (np.asarray(bound, np.float64) for bound in (action_spec.low, action_spec.high))
    # an element that never moved keeps its bounds
    still = high - low < FLOOR * (most - least)
    unit: Affine = bounds_to_unit(ACTION, np.where(still, least, low).tolist(), np.where(still, most, high).tolist())
    return inverse(unit), Clip(ACTION, action_spec.low, action_spec.high)


def within_bounds(action_spec: Spec) -> tuple[Transform, ...]:
    """Transform from a policy's [-1, 1] to the action's bounds; none for categorical actions."""
    if action_spec.choices is not None:
        return ()
    unit = bounds_to_unit(ACTION, action_spec.low, action_spec.high)
    return inverse(unit), Clip(ACTION, action_spec.low, action_spec.high)
