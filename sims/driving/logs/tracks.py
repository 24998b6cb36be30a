"""Shared parts of the readers of other logs: choice of road users, and cutting drives into clips."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.driving.logs import layout
from robotrl.spec import Split

VAL_OF_10, TEST_OF_10 = 8, 9
"""Drives whose number ends in these digits are validation and test clips."""


def split_of(number: int) -> Split:
    """Split of the drive `number`: of ten drives eight are for training, one for validation and one for the test."""
    digit = number % 10
    return "val" if digit == VAL_OF_10 else "test" if digit == TEST_OF_10 else "train"


def nearest_tracks(agents: NDArray[Any], steps: NDArray[Any], slots: int) -> NDArray[Any]:
    """The `slots` road users of `layout.AGENT` records (T, K) that come nearest to the ego, in records (T, slots)."""
    out = np.zeros((len(steps), slots), layout.AGENT)
    if agents.shape[1] == 0:
        return out
    distance = np.hypot(agents["x"] - steps["x"][:, None], agents["y"] - steps["y"][:, None])
    least = np.where(agents["kind"] > 0, distance, np.inf).min(0)
    chosen = [k for k in np.argsort(least, kind="stable")[:slots] if np.isfinite(least[k])]
    out[:, : len(chosen)] = agents[:, chosen]
    return out


def clip_ranges(times_s: NDArray[np.float64], longest: int) -> list[range]:
    """Ranges of steps without a gap in time, of `layout.MIN_STEPS` to `longest` steps."""
    gaps = np.flatnonzero(np.abs(np.diff(times_s) - layout.PERIOD_S) > layout.JITTER_S) + 1
    found: list[range] = []
    for first, last in zip([0, *gaps.tolist()], [*gaps.tolist(), len(times_s)], strict=True):
        found += [range(at, min(at + longest, last)) for at in range(first, last, longest)]
    return [one for one in found if len(one) >= layout.MIN_STEPS]
