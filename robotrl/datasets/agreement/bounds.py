"""Recorded numbers outside the bounds of their spec: how many, how far, and whether other units explain them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from robotrl.datasets.agreement.issues import DataIssue
from robotrl.spec import Spec

SMALL = 0.02
"""Fraction of the frames that may be out of bounds without a grave doubt."""
MOST = 0.5
"""Fraction of out-of-bounds frames above which the actions cannot come from a robot with this spec."""
NEAR = 0.1
"""Excess over an action's bounds, as a fraction of its range, that rounding or another version of the robot can
explain."""
HALF = 0.5
"""Excess over a measured number's bounds, as a fraction of its range, above which it is doubtful."""
COMMANDED, MEASURED = 1e-3, 0.05
"""Tolerated excess of actions and of measurements, as a fraction of the range: joints can be measured past their
stops."""
NARROW = 0.01
"""Actions that all stay within this fraction of their bounds are in other units, or of a robot that hardly moved."""
LARGER = 1.5
"""Ratio of a number to its bound above which it may be in other units."""
TURN = 400.0
"""Largest magnitude that may be an angle in degrees: a full turn and some margin."""
SIDE = 1.5
"""Smallest bound of an element that may be an angle in radians."""
UNSTATED = ("", "?")
"""Unit texts that stand for an unknown unit."""


class OutOfBounds(NamedTuple):
    """The array element that is out of bounds in the most frames."""

    element: int
    frames: int
    """Number of frames in which this element is out of bounds."""
    share: float
    """The same as a fraction of all frames."""
    value: float
    """The value that is farthest out of bounds."""
    by: float
    """Its excess, as a fraction of the element's range."""


def most_out_of_bounds(values: np.ndarray, spec: Spec, slack: float) -> OutOfBounds | None:
    """Find the element that is out of bounds in the most frames; None if no element is.

    Args:
        values: (F, ...) with the elements on the last axis.
        spec: spec with the bounds; infinite ones are ignored.
        slack: tolerated excess, as a fraction of an element's range.
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
    return OutOfBounds(j, int(frames[j]), float(frames[j]) / len(values), value, float(over[row, inner, j]))


def range_text(name: str, found: OutOfBounds, total: int, spec: Spec) -> str:
    """Text about out-of-bounds numbers, for errors and warnings.

    Args:
        name: name of the array.
        found: result of `most_out_of_bounds`.
        total: total number of frames.
        spec: spec of the array.
    """
    j = found.element
    text = (
        f"{name} {spec.names[j]!r} is beyond its bounds, {spec.low[j]:g} to {spec.high[j]:g} ({spec.units[j]}), in"
        f" {found.frames:,} of {total:,} frames ({found.share:.2%} of them), up to {found.value:g}"
    )
    asked = question(spec.units[j], found.value, spec.low[j], spec.high[j])
    return f"{text}: {asked}" if asked else text


def question(unit: str, value: float, low: float, high: float) -> str:
    """Question about the units of a number that is far out of bounds; "" if it is near them.

    Args:
        unit: unit of the bounds.
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


def issue_of(name: str, values: np.ndarray, spec: Spec, commanded: bool) -> tuple[DataIssue | None, str]:
    """Check recorded numbers against their bounds: a doubt or None, and an error text ("" if there is no error).

    Args:
        name: name of the array.
        values: (F, ...) recorded numbers.
        spec: expected bounds and units.
        commanded: whether they are actions.
    """
    found = most_out_of_bounds(values, spec, COMMANDED if commanded else MEASURED)
    if found is not None:
        text = range_text(name, found, len(values), spec)
        if commanded and found.share > MOST and found.by > NEAR:
            return None, f"{text}; it was not made by this robot in these units"
        # bounds of measurements are often those of normal operation: only far outside them are other units likely
        severe = found.frames > max(1.0, SMALL * len(values)) and (commanded or found.by > HALF)
        return DataIssue(f"{text}; what is beyond is cut off when the policy acts" if commanded else text, severe), ""
    if commanded:
        low, high = (np.asarray(bound, np.float64) for bound in (spec.low, spec.high))
        ends = np.maximum(np.abs(low), np.abs(high))
        rows = values.reshape(len(values), -1, len(low))
        reached = float((np.abs(rows).max(axis=(0, 1)) / np.where(ends > 0, ends, 1.0)).max()) if len(rows) else 1.0
        if np.isfinite(ends).all() and 0 < reached < NARROW and (low <= 0).all() and (high >= 0).all():
            units = ", ".join(dict.fromkeys(spec.units))
            return DataIssue(f"{name} stays within {reached:.1%} of its bounds: is it in {units}?", False), ""
    return None, ""


def _span(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Range of each element; with a single bound its magnitude, at least 1."""
    one = np.where(np.isfinite(low), np.abs(low), np.where(np.isfinite(high), np.abs(high), 1.0))
    both = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore"):
        span = np.where(both, high - low, np.maximum(one, 1.0))
    return np.where(span > 0, span, 1.0)
