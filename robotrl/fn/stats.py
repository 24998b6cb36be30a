"""Statistics of evaluations: success rates and means with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Interval(NamedTuple):
    """An estimate with its 95 % confidence interval."""

    value: float
    low: float
    high: float
    episodes: int
    """Number of episodes (or runs) behind it."""


def wilson(successes: int, episodes: int, z: float = 1.959964) -> Interval:
    """Success rate with Wilson's score interval (Wilson 1927), which stays inside [0, 1] and is accurate near its ends.

    Raises:
        ValueError: no episodes, or more successes than episodes.
    """
    if episodes < 1 or not 0 <= successes <= episodes:
        raise ValueError(
            f"successes={successes}, episodes={episodes}: expected 0 <= successes <= episodes, episodes >= 1"
        )
    p = successes / episodes
    centre = (p + z * z / (2 * episodes)) / (1 + z * z / episodes)
    half = z / (1 + z * z / episodes) * math.sqrt(p * (1 - p) / episodes + z * z / (4 * episodes**2))
    return Interval(p, max(0.0, centre - half), min(1.0, centre + half), episodes)


def iqm(values: NDArray[np.float64]) -> float:
    """Interquartile mean: the mean of the middle half, with fractional weights at its ends (Agarwal et al. 2021)."""
    ordered = np.sort(np.asarray(values, np.float64).ravel())
    if ordered.size == 0:
        raise ValueError("iqm of no values")
    n = ordered.size
    edges = np.arange(n + 1) / n
    weight = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0, None)
    return float((ordered * weight).sum() / weight.sum())


def mean(values: NDArray[np.float64]) -> float:
    """Return the mean as a float."""
    return float(np.mean(values))


def bootstrap(
    values: NDArray[np.float64],
    samples: int = 2000,
    seed: int = 0,
    middle: Callable[[NDArray[np.float64]], float] = iqm,
) -> Interval:
    """Interquartile mean over runs, or their `mean`, with a percentile bootstrap interval.

    Args:
        values: (R,) one number per run.
        samples: number of resamples.
        seed: of the resampling.
        middle: function that computes the estimate.
    """
    data = np.asarray(values, np.float64)
    rng = np.random.default_rng(seed)
    drawn = np.array([middle(data[rng.integers(0, len(data), len(data))]) for _ in range(samples)])
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Interval(middle(data), float(low), float(high), len(data))
