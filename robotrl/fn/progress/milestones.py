"""Milestones of a demonstration from gripper and hand signals, and the progress labels that follow from them.

VLA-RL (Lu et al. 2025, 2505.18719) trains a process reward on automatic labels: a demonstration is cut when the gripper
opens or closes, because an object was then grasped or released, and when the hand comes to rest, because a fine
movement was then completed. Both are computed from two recorded signals.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]
Frames = NDArray[np.int64]
Kind = Literal["gripper", "still", "end"]


class MilestoneThresholds(NamedTuple):
    """Thresholds that define a milestone."""

    change: float
    """Change of the gripper's opening, back from its last extreme, that counts as opening or closing."""
    still_mps: float
    """The hand is at rest below this speed, m/s ..."""
    moving_mps: float
    """... after it was faster than this speed, m/s."""
    gap: int
    """Minimum number of frames between two milestones, and between one and the episode's ends."""


class Milestones(NamedTuple):
    """K milestones of an episode, in temporal order."""

    frames: Frames
    """(K,) frames of the milestones; that of a success is the number of frames, one past the last action's."""
    kinds: tuple[Kind, ...]


def gripper_changes(opening: Real, change: float) -> Frames:
    """Frames (K,) at which the gripper has opened or closed, by `change` back from its last extreme.

    One closing is one change, however slow it is, and whether it ends at an object or at the other finger; vibrations
    smaller than `change` do not count.

    Args:
        opening: (T,) of the gripper, measured or commanded, T 1 or more.
        change: above 0, in the same units.
    """
    found: list[int] = []
    low = high = float(opening[0])
    opens = closes = True
    for frame, now in enumerate(opening.tolist()):
        low, high = min(low, now), max(high, now)
        # opening and closing must alternate
        closed, opened = closes and high - now >= change, opens and now - low >= change
        if closed or opened:
            found.append(frame)
            opens, closes = closed, opened
            low = high = now
    return np.asarray(found, np.int64)


def rests(speed_mps: Real, still_mps: float, moving_mps: float) -> Frames:
    """Frames (K,) at which the hand comes to rest: the first below `still_mps` after it was above `moving_mps`.

    Args:
        speed_mps: (T,) m/s.
        still_mps: at most `moving_mps`.
        moving_mps: the gap between the two thresholds keeps a trembling hand from counting (hysteresis).
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
    """Find the milestones of an episode of T frames.

    Of several milestones closer than `limits.gap`, the gripper's are kept before the hand's, and earlier ones before
    later ones; those closer than that to the start or to a success are dropped.

    Args:
        opening: (T,) of the gripper.
        speed_mps: (T,) of the hand.
        limits: see `MilestoneThresholds`.
        success: whether the last action solved the task: that is a milestone, too, at frame T.
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
    """Progress (T,) in [0, 1] of a successful episode: 0 at frame 0, 1 at the last milestone.

    All milestones add the same progress, which rises linearly in time between two of them.

    Args:
        frames: (K,) rising, above 0; the last is the success.
        length: T.
    """
    return np.interp(np.arange(length), [0, *frames], np.linspace(0.0, 1.0, len(frames) + 1))
