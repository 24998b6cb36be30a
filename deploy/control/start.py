"""Commands of the servo that move a robot to its start pose, before the policy takes over.

They pass the safety chain as the policy's actions do: observations are checked, and commands are clamped and limited.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from robotrl.deploy.control.safety import SafetyLimits


class MotionToStart(NamedTuple):
    """Motion to the start pose, in the bundle's order. Arrays are (A,) float32."""

    pose: np.ndarray
    """Position targets under which the robot stands at its start."""
    step: np.ndarray
    """Largest change of a command from one control period to the next."""
    tolerance: np.ndarray
    """Distance from the pose within which the measured position must lie."""


def toward(plan: MotionToStart, sent: np.ndarray) -> np.ndarray:
    """The next command (A,) on the way from the last one that was sent, (A,), to the start pose."""
    return np.minimum(np.maximum(plan.pose, sent - plan.step), sent + plan.step)


def measured_action(limits: SafetyLimits, obs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The measured position of each target (A,), NaN for one that is not measured.

    Args:
        limits: the safety limits.
        obs: observations of numbers.
    """
    found = np.full(len(limits.low), np.nan, np.float32)
    for i, one in enumerate(limits.measured or ()):
        if one is not None:
            found[i] = obs[one.key][one.element] / np.float32(one.factor)
    return found


def away_from_start(plan: MotionToStart, sent: np.ndarray, measured: np.ndarray) -> int | None:
    """First element that has not arrived at the start pose; None once all have.

    Args:
        plan: the motion.
        sent: (A,) last command that was sent.
        measured: see `measured_action`.
    """
    there = (sent == plan.pose) & (np.abs(measured - plan.pose) <= plan.tolerance)
    return None if there.all() else int(np.argmin(there))
