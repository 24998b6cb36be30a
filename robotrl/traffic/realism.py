"""Realism of traffic as the overlap of distributions, and its pace and distance: pure functions of measurements.

After the Waymo sim agents challenge in small: there a likelihood of the log under histograms of the simulation, here
the overlap of two histograms, one of the traffic and one of the traffic that it should resemble.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError

Values = NDArray[np.floating[Any]]
MOVING_MPS = 1.0
"""Least speed of a car that has a time headway."""
CLOSING_MPS = 0.5
"""Least closing speed of a car that has a time to collision."""
FOLLOWS_M = 60.0
"""Largest gap at which a car follows."""
BINS = {
    "speed": (0.0, 24.0, 24),
    "accel": (-6.0, 4.0, 40),
    "headway": (0.0, 6.0, 24),
    "ttc": (0.0, 10.0, 20),
}
"""Quantities that are compared: least and greatest value, and number of bins; what lies outside is put into the outer
bins. Speed in m/s, acceleration in m/s^2, headway and time to collision in s."""


class TrafficSample(NamedTuple):
    """Values of each quantity, over cars and times."""

    speed: Values
    accel: Values
    headway: Values
    """Gap to the leader divided by the speed, of cars that follow and move."""
    ttc: Values
    """Gap divided by the closing speed, of cars that close in."""
    pace: Values
    """Speed divided by the limit."""
    overlaps: Values
    """1 for cars that overlap another road user, else 0."""


def sample_of(
    speed: Values, accel: Values, gap: Values, closing: Values, limit: Values, overlaps: Values
) -> TrafficSample:
    """Quantities of measured cars, (C,) each.

    Args:
        speed: m/s.
        accel: m/s^2.
        gap: gap to the leader, m; large without.
        closing: own speed minus the leader's, m/s.
        limit: speed limit, m/s.
        overlaps: 1 or 0.
    """
    follows = gap < FOLLOWS_M
    moves, closes = follows & (speed >= MOVING_MPS), follows & (closing >= CLOSING_MPS)
    positive = np.maximum(gap, 0.0)
    return TrafficSample(
        speed, accel, positive[moves] / speed[moves], positive[closes] / closing[closes], speed / limit, overlaps
    )


def overlap(one: Values, other: Values, low: float, high: float, bins: int) -> float:
    """Overlap of two samples' histograms, 0 to 1: 1 less half the sum of differences of the bins' fractions.

    Raises:
        ConfigError: a sample is empty.
    """
    if not len(one) or not len(other):
        raise ConfigError(f"samples have {len(one)} and {len(other)} values: expected one or more of each")
    edges = np.linspace(low, high, bins + 1)
    parts = [np.histogram(np.clip(values, low, high), edges)[0] / len(values) for values in (one, other)]
    return float(1.0 - 0.5 * np.abs(parts[0] - parts[1]).sum())


def realism(sample: TrafficSample, reference: TrafficSample) -> dict[str, float]:
    """Overlap of each quantity with the reference's, and their mean, "realism", 0 to 1."""
    found = {name: overlap(getattr(sample, name), getattr(reference, name), *bins) for name, bins in BINS.items()}
    return found | {"realism": float(np.mean(list(found.values())))}


def character(sample: TrafficSample) -> dict[str, float]:
    """Quantities that styles are to move: mean pace, median headway, share of hard braking, overlaps per 1,000."""
    return {
        "pace": float(sample.pace.mean()),
        "headway_s": float(np.median(sample.headway)),
        "hard_braking": float((sample.accel < -3.0).mean()),
        "overlaps_per_mille": float(1000.0 * sample.overlaps.mean()),
    }
