"""Recorded numbers beyond what an array's spec allows: how many, by how much, and in which other units they may be."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from robotrl.datasets.agreement.doubts import Doubt
from robotrl.spec import Spec

SMALL = 0.02
"""Share of the frames that may be beyond."""
MOST = 0.5
"""Share of the frames above which no robot of that spec can have acted so."""
NEAR = 0.1
"""How far beyond an action's range a number may be a matter of rounding or of another version, as a share of it."""
HALF = 0.5
"""How far beyond its range a measured number is doubtful, as a share of it."""
COMMANDED, MEASURED = 1e-3, 0.05
"""Slack of an action, and of a measured number, as a share of its range: what a robot measures may pass its stops."""
NARROW = 0.01
"""All actions of a dataset within this share of their bounds are in other units, or of a robot that hardly moved."""
LARGER = 1.5
"""Numbers that are so many times their bounds may be in other units."""
TURN = 400.0
"""Degrees of a full turn, and some."""
SIDE = 1.5
"""Bounds of angles in radians are this or more."""
UNSTATED = ("", "?")
"""Units of an array whose maker states none."""


class Beyond(NamedTuple):
    """The element of an array that is beyond its bounds in the most frames."""

    element: int
    frames: int
    """How many frames are beyond in this element."""
    share: float
    """Of all frames."""
    value: float
    """The number that is farthest beyond."""
    by: float
    """How far, as a share of the element's range."""


def beyond(values: np.ndarray, spec: Spec, slack: float) -> Beyond | None:
    """Find the element that is beyond its bounds in the most frames; None where none is.

    Args:
        values: (F, ...) with the elements on the last axis.
        spec: with the bounds; infinite ones bound nothing.
        slack: as a share of an element's range.
    """
    low, high = (np.asarray(bound, np.float64) for bound in (spec.low, spec.high))
    if not len(values) or not (np.isfinite(low) | np.isfinite(high)).any():
        return None
    rows = values.reshape(len(values), -1, len(low))
    least, most = rows.min(axis=(0, 1)), rows.max(axis=(0, 1))
    span = _span(low, high)
    if ((least >= low - slack * span) & (most <= high + slack * span)).all():
        return None
    over = np.maximum(low - rows, rows - high) / span
    out = over > slack
    frames = out.any(axis=1).sum(axis=0)
    j = int(np.argmax(frames))
    row, inner = np.unravel_index(int(np.argmax(over[:, :, j])), over.shape[:2])
    value = float(rows[row, inner, j])
    return Beyond(j, int(frames[j]), float(frames[j]) / len(values), value, float(over[row, inner, j]))


def told(name: str, found: Beyond, total: int, spec: Spec) -> str:
    """What an error or a warning says of numbers beyond their bounds.

    Args:
        name: of the array.
        found: from `beyond`.
        total: frames in all.
        spec: of the array.
    """
    j = found.element
    text = (
        f"{name} {spec.names[j]!r} is beyond its bounds, {spec.low[j]:g} to {spec.high[j]:g} ({spec.units[j]}), in"
        f" {found.frames:,} of {total:,} frames ({found.share:.2%} of them), up to {found.value:g}"
    )
    asked = question(spec.units[j], found.value, spec.low[j], spec.high[j])
    return f"{text}: {asked}" if asked else text


def question(unit: str, value: float, low: float, high: float) -> str:
    """Ask for the units of a number that is far beyond its bounds; "" where it is near.

    Args:
        unit: of the bounds.
        value: the number.
        low: its lower bound.
        high: its upper bound.
    """
    limit = max(abs(bound) for bound in (low, high) if math.isfinite(bound))
    times = abs(value) / limit if limit else math.inf
    if times < LARGER:
        return ""
    named = unit if unit not in UNSTATED else "the sim's units"
    angle = "rad" in unit or (unit in (*UNSTATED, "1") and SIDE <= limit <= 2.1 * math.pi)
    if angle and times >= 4 and abs(value) <= TURN:
        return "degrees for radians?"
    if unit.split("/")[0] == "m" and 50 <= times <= 5000:
        return f"millimetres for {named}?"
    return f"degrees or percent for {named}?" if 10 <= times <= 300 else f"are they in {named}?"


def doubt_of(name: str, values: np.ndarray, spec: Spec, commanded: bool) -> tuple[Doubt | None, str]:
    """What is doubtful about recorded numbers against their bounds, and what cannot be right ("" where nothing is).

    Args:
        name: of the array.
        values: (F, ...) recorded.
        spec: what they should be.
        commanded: whether they are actions.
    """
    found = beyond(values, spec, COMMANDED if commanded else MEASURED)
    if found is not None:
        text = told(name, found, len(values), spec)
        if commanded and found.share > MOST and found.by > NEAR:
            return None, f"{text}; it was not made by this robot in these units"
        # bounds of what is measured are often those of a normal run: only far beyond are they a sign of other units
        grave = found.frames > max(1.0, SMALL * len(values)) and (commanded or found.by > HALF)
        return Doubt(f"{text}; what is beyond is cut off when the policy acts" if commanded else text, grave), ""
    if commanded:
        low, high = (np.asarray(bound, np.float64) for bound in (spec.low, spec.high))
        ends = np.maximum(np.abs(low), np.abs(high))
        rows = values.reshape(len(values), -1, len(low))
        reached = float((np.abs(rows).max(axis=(0, 1)) / np.where(ends > 0, ends, 1.0)).max()) if len(rows) else 1.0
        if np.isfinite(ends).all() and 0 < reached < NARROW and (low <= 0).all() and (high >= 0).all():
            units = ", ".join(dict.fromkeys(spec.units))
            return Doubt(f"{name} stays within {reached:.1%} of its bounds: is it in {units}?", False), ""
    return None, ""


def _span(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Range of each element; of one with one bound the bound itself, and 1 at least."""
    one = np.where(np.isfinite(low), np.abs(low), np.where(np.isfinite(high), np.abs(high), 1.0))
    both = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore"):
        span = np.where(both, high - low, np.maximum(one, 1.0))
    return np.where(span > 0, span, 1.0)
