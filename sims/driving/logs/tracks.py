"""Shared parts of the readers of other logs: choice of road users, and cutting drives into clips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.driving.logs import layout
from robotrl.spec import Split

VAL_OF_10, TEST_OF_10 = 8, 9
"""Drives whose number ends in these digits are validation and test clips."""


@dataclass
class LeftOut:
    """What a reader has left out so far."""

    pieces: int = 0
    """Pieces of a drive that are shorter than a clip may be."""
    steps: int = 0
    """Their steps in all."""
    road_users: int = 0
    """Road users of clips that came less near to the ego than as many others as a clip has slots for."""


def split_of(number: int) -> Split:
    """Split of the drive `number`: of ten drives eight are for training, one for validation and one for the test."""
    digit = number % 10
    return "val" if digit == VAL_OF_10 else "test" if digit == TEST_OF_10 else "train"


def nearest_tracks(agents: NDArray[Any], steps: NDArray[Any], slots: int, left_out: LeftOut) -> NDArray[Any]:
    """The `slots` road users of `layout.AGENT` records (T, K) that come nearest to the ego, in records (T, slots).

    The others are counted in `left_out`.
    """
    out = np.zeros((len(steps), slots), layout.AGENT)
    if agents.shape[1] == 0:
        return out
    distance = np.hypot(agents["x"] - steps["x"][:, None], agents["y"] - steps["y"][:, None])
    least = np.where(agents["kind"] > 0, distance, np.inf).min(0)
    chosen = [k for k in np.argsort(least, kind="stable")[:slots] if np.isfinite(least[k])]
    left_out.road_users += int(np.isfinite(least).sum()) - len(chosen)
    out[:, : len(chosen)] = agents[:, chosen]
    return out


def clip_ranges(times_s: NDArray[np.float64], longest: int, left_out: LeftOut) -> list[range]:
    """Ranges of steps without a gap in time, of `layout.MIN_STEPS` to `longest` steps.

    Shorter ones are counted in `left_out`.
    """
    gaps = np.flatnonzero(np.abs(np.diff(times_s) - layout.PERIOD_S) > layout.JITTER_S) + 1
    found: list[range] = []
    for first, last in zip([0, *gaps.tolist()], [*gaps.tolist(), len(times_s)], strict=True):
        found += [range(at, min(at + longest, last)) for at in range(first, last, longest)]
    short = [len(one) for one in found if 0 < len(one) < layout.MIN_STEPS]
    left_out.pieces, left_out.steps = left_out.pieces + len(short), left_out.steps + sum(short)
    return [one for one in found if len(one) >= layout.MIN_STEPS]
