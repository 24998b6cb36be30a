"""Observations of several control steps in an export: vectors for the policy, stacks of ticks for the robot.

A policy reads (K D,) numbers, the oldest step first (`robotrl.spec.with_history`). The graph takes them as (K, D), so
that a robot is asked for D numbers under their own names, and the runtime keeps the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from robotrl.spec import Spec, history_steps, present_of

if TYPE_CHECKING:
    from torch import Tensor


def stacked_shape(spec: Spec) -> tuple[int, ...]:
    """Shape of an observation in the graph."""
    steps = history_steps(spec)
    return spec.shape if steps == 1 else (steps, spec.shape[0] // steps)


def measured_spec(spec: Spec) -> Spec:
    """Spec of an observation of one control tick."""
    steps = history_steps(spec)
    return spec if steps == 1 else present_of(spec, spec.shape[0] // steps)


def stacked(specs: Mapping[str, Spec], arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Recorded observations (n, ...) as inputs of the graph."""
    return {key: array.reshape(len(array), *stacked_shape(specs[key])) for key, array in arrays.items()}


def flattened(specs: Mapping[str, Spec], arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inputs of the graph (n, ...) as the policy reads them."""
    return {key: array.flatten(1) if history_steps(specs[key]) > 1 else array for key, array in arrays.items()}


def newest(specs: Mapping[str, Spec], arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of inputs of the graph (n, ...) those of the present tick."""
    return {key: array[:, -1] if history_steps(specs[key]) > 1 else array for key, array in arrays.items()}
