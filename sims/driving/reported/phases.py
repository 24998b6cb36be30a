"""Lights whose state somebody else tells: times of a light by which `right_of_way.light` finds that state."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

GREEN, YELLOW, RED, OFF = 0, 1, 2, 3
"""States of a light; the first three are those of `robotrl.sims.driving.traffic.right_of_way`."""
RED_LEFT_S = 20.0
"""Remaining time of a red light, which nobody tells: the observation's largest."""
_ENDLESS_S = 1e6
_LEAST_LEFT_S = 0.05


def show_phases(rows: NDArray[Any], now_s: Any, state: NDArray[np.int64], left_s: NDArray[np.float64]) -> None:
    """Write the times of lights so that they are in a state now.

    Args:
        rows: (n,) `tables.SIGNAL` records.
        now_s: the present in the clock of the kernels, an episode's time plus its offset.
        state: (n,) `GREEN`, `YELLOW`, `RED` or `OFF`; a light that is off lets everybody pass.
        left_s: (n,) remaining time of a green or yellow light, s.
    """
    left = np.maximum(left_s, _LEAST_LEFT_S)
    rows["start"] = now_s
    rows["green"] = np.where(state == GREEN, left, np.where(state == OFF, _ENDLESS_S, 0.0))
    rows["yellow"] = np.where(state == YELLOW, left, 0.0)
    rows["cycle"] = np.where(state == RED, RED_LEFT_S, 2.0 * _ENDLESS_S)
