"""Checks the timestamp of each frame against the rate in `meta/info.json`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from robotrl.datasets.agreement.issues import DataIssue

TOLERANCE_S = 1e-4
"""Largest deviation of a timestamp from `frame_index / fps`, s; LeRobot's tolerance."""
ROUNDING = 2.0**-22
"""Relative rounding error of a float32 timestamp."""
CLOCK_S = 1e8
"""Timestamps above this are clock times (seconds since 1970, milliseconds or nanoseconds): no episode lasts so long,
s."""
OTHER_RATE = 0.01
"""Relative difference of rates above which they count as different."""
ALIKE = 0.1
"""Relative difference of two estimates of a rate below which they agree."""
GAP = 1.5
"""Step between two frames, in control periods, above which frames are missing."""
PAUSE_S = 1.0
"""Gap from which a message says "pause", s."""


class FrameTimes(NamedTuple):
    """Result of checking the timestamps."""

    wrong: str
    """Error text; "" if there is no error."""
    issues: tuple[DataIssue, ...]


def check_times(times: np.ndarray, offsets: np.ndarray, fps: float) -> FrameTimes:
    """Check each frame's timestamp against the rate.

    Args:
        times: (F,) the column `timestamp`, in seconds since the episode's start.
        offsets: (E + 1,) first frame of each episode, and the number of frames.
        fps: rate in Hz of `meta/info.json`.
    """
    lengths = np.diff(offsets)
    t = times.astype(np.float64)
    frame = np.arange(len(t)) - np.repeat(offsets[:-1], lengths)
    tolerance = TOLERANCE_S + ROUNDING * np.abs(t)
    if (np.abs(t - frame / fps) <= tolerance).all():
        return FrameTimes("", ())
    episode = np.repeat(np.arange(len(lengths)), lengths)

    def at(row: int) -> str:
        return f"of episode {episode[row]}, frame {frame[row]} is {times[row]!s} s"

    latest = int(np.argmax(np.abs(t)))
    if abs(t[latest]) > CLOCK_S:
        wanted = f"expected seconds since the episode's start, {frame[latest] / fps:g} s"
        text = f"timestamp {at(latest)}, a clock's time: {wanted}"
        return FrameTimes("", (DataIssue(text, True),))
    inside = frame[1:] > 0
    step = np.where(inside, np.diff(t), 1 / fps)
    slack = 2 * tolerance[1:]
    back = step < -slack
    moved = step[inside]
    if len(moved) and not (np.abs(moved) > slack[inside]).any():
        return FrameTimes(f"timestamp stands still at {times[0]!s} s: expected {1 / fps:g} s from frame to frame", ())
    if back.any():
        row = int(np.argmax(back)) + 1
        text = f"timestamp steps back: it {at(row)}, after {times[row - 1]!s} s ({int(back.sum())} times in all)"
        return FrameTimes(text, ())
    factor = _factor(t, offsets, moved, fps)
    if factor != 1:
        row = int(np.argmax(frame > 0))
        units = " (milliseconds?)" if abs(factor / 1000 - 1) < OTHER_RATE else ""
        text = (
            f"timestamp {at(row)}, {factor:.4g} times what {fps:g} Hz give: frames are at {fps / factor:.4g} Hz{units},"
            f" meta/info.json says {fps:g} Hz"
        )
        return FrameTimes(text, ())
    return FrameTimes("", tuple(_small(times, t, frame, step, tolerance, at, fps)))


def _factor(t: np.ndarray, offsets: np.ndarray, moved: np.ndarray, fps: float) -> float:
    """Ratio of the actual frame period to the stated one; 1 unless all frames agree on another ratio.

    Two estimates must agree: from the length of an episode, which a pause changes, and from the median step, which
    jitter changes.
    """
    long = np.diff(offsets) > 1
    if not long.any():
        return 1.0
    last, first = offsets[1:][long] - 1, offsets[:-1][long]
    whole = float(np.median((t[last] - t[first]) * fps / (last - first)))
    step = float(np.median(moved)) * fps
    shaking = float(np.median(np.abs(moved * fps - step)))
    least = min(abs(whole - 1), abs(step - 1))
    throughout = step > 0 and abs(whole / step - 1) < ALIKE and least > max(OTHER_RATE, 4 * shaking)
    return whole if throughout else 1.0


def _small(
    times: np.ndarray,
    t: np.ndarray,
    frame: np.ndarray,
    step: np.ndarray,
    tolerance: np.ndarray,
    at: Callable[[int], str],
    fps: float,
) -> list[DataIssue]:
    """Doubts: gaps and pauses, episodes that do not start at 0, uneven steps."""
    out: list[DataIssue] = []
    gaps = step * fps > GAP
    if gaps.any():
        row = int(np.argmax(step)) + 1
        what = "a pause" if step[row - 1] >= PAUSE_S else f"{round(step[row - 1] * fps) - 1 or 1} missing frames"
        text = (
            f"timestamp {at(row)}, after {times[row - 1]!s} s: {what} where {1 / fps:g} s were expected"
            f" ({int(gaps.sum())} gaps in all)"
        )
        out.append(DataIssue(text, True))
    first = frame == 0
    late = first & (np.abs(t) > tolerance)
    if late.any():
        text = f"timestamp {at(int(np.argmax(late)))}: expected 0 s at an episode's start ({int(late.sum())} episodes)"
        out.append(DataIssue(text, False))
    start = t[np.maximum.accumulate(np.where(first, np.arange(len(t)), 0))]
    # time lost in a gap is already reported
    left = np.cumsum(np.concatenate([[0.0], np.where(gaps, step - 1 / fps, 0.0)]))
    left -= left[np.maximum.accumulate(np.where(first, np.arange(len(t)), 0))]
    off = np.abs(t - start - left - frame / fps)
    uneven = off > 2 * tolerance
    if uneven.any():
        row = int(np.argmax(off))
        text = f"timestamp {at(row)}: expected {start[row] + left[row] + frame[row] / fps:.10g} s at {fps:g} Hz"
        # an error of more than one frame means that parts are recorded at another rate
        out.append(DataIssue(f"{text} (uneven in {int(uneven.sum())} frames)", bool(off[row] * fps > 1)))
    return out
