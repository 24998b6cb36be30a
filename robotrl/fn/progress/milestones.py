"""Milestones of a demonstration, found in what its gripper and its hand did, and the progress that they stand for.

VLA-RL (Lu et al. 2025, 2505.18719) trains a process reward on labels that nobody wrote: a demonstration is cut where
the gripper opens or closes, because something has then been taken or let go, and where the hand comes to rest, because
a fine movement has then been completed. Both are arithmetic on two recorded signals.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]
Frames = NDArray[np.int64]
Kind = Literal["gripper", "still", "end"]


class MilestoneThresholds(NamedTuple):
    """From when on a signal says something."""

    change: float
    """How far the gripper turns back before it counts, in units of its opening."""
    still_mps: float
    """The hand rests below this speed, m/s ..."""
    moving_mps: float
    """... once it has been faster than this."""
    gap: int
    """Frames between two milestones, and between one and the episode's ends, at least."""


class Milestones(NamedTuple):
    """K milestones of an episode, in the order of time."""

    frames: Frames
    """(K,) frames at which they are reached; that of a success is the number of frames, one past the last action's."""
    kinds: tuple[Kind, ...]


def gripper_changes(opening: Real, change: float) -> Frames:
    """(K,) frames at which the gripper has turned: by `change` back from the farthest it came.

    One closing is one change, however slow it is, and whether it ends at a thing or at the other finger; what shakes by
    less than `change` is none.

    Args:
        opening: (T,) of the gripper, measured or commanded, T 1 or more.
        change: above 0, in the same units.
    """
    found: list[int] = []
    low = high = float(opening[0])
    opens = closes = True
    for frame, now in enumerate(opening.tolist()):
        low, high = min(low, now), max(high, now)
        # only a turn counts: who closes can but open next
        closed, opened = closes and high - now >= change, opens and now - low >= change
        if closed or opened:
            found.append(frame)
            opens, closes = closed, opened
            low = high = now
    return np.asarray(found, np.int64)


def rests(speed_mps: Real, still_mps: float, moving_mps: float) -> Frames:
    """(K,) frames at which the hand has come to rest: the first below `still_mps` since it was above `moving_mps`.

    Args:
        speed_mps: (T,) m/s.
        still_mps: at most `moving_mps`.
        moving_mps: a hand that trembles between the two has neither set off nor come to rest.
    """
    found: list[int] = []
    moved = False
    for frame, speed in enumerate(speed_mps.tolist()):
        if speed > moving_mps:
            moved = True
        elif moved and speed < still_mps:
            found.append(frame)
            moved = False
    return np.asarray(found, np.int64)


def milestones(opening: Real, speed_mps: Real, limits: MilestoneThresholds, success: bool) -> Milestones:
    """The milestones of an episode of T frames.

    Where several lie nearer to each other than `limits.gap`, the gripper's stay before the hand's, the earlier ones
    before the later ones; what lies so near to the start or to a success is part of it.

    Args:
        opening: (T,) of the gripper.
        speed_mps: (T,) of the hand.
        limits: see `MilestoneThresholds`.
        success: whether the last action solved the task: that is a milestone, too, reached at frame T.
    """
    end = len(opening)
    fixed = [0, end] if success else [0]
    kept: list[tuple[int, Kind]] = []
    kinds: tuple[tuple[Kind, Frames], ...] = (
        ("gripper", gripper_changes(opening, limits.change)),
        ("still", rests(speed_mps, limits.still_mps, limits.moving_mps)),
    )
    for kind, frames in kinds:
        for frame in frames.tolist():
            if all(abs(frame - other) >= limits.gap for other in fixed):
                kept.append((frame, kind))
                fixed.append(frame)
    if success:
        kept.append((end, "end"))
    kept.sort()
    return Milestones(np.asarray([frame for frame, _ in kept], np.int64), tuple(kind for _, kind in kept))


def progress(frames: Frames, length: int) -> Real:
    """(T,) progress in [0, 1] of a successful episode: 0 at frame 0, 1 at the last milestone.

    Each milestone is worth the same, and time shares out what lies between two of them.

    Args:
        frames: (K,) rising, above 0; the last is the success.
        length: T.
    """
    return np.interp(np.arange(length), [0, *frames], np.linspace(0.0, 1.0, len(frames) + 1))
