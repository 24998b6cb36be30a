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
    center = (p + z * z / (2 * episodes)) / (1 + z * z / episodes)
    half = z / (1 + z * z / episodes) * math.sqrt(p * (1 - p) / episodes + z * z / (4 * episodes**2))
    return Interval(p, max(0.0, center - half), min(1.0, center + half), episodes)


def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t-distribution with an integer number of degrees of freedom.

    The distribution function is a finite sum (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4), inverted by bisection.

    Args:
        probability: above 0.5 and below 1, e.g. 0.975 for a two-sided interval of 95 %.
        freedom: degrees of freedom, 1 or more.
    """
    if not 0.5 < probability < 1 or freedom < 1:
        raise ValueError(f"probability={probability}, freedom={freedom}: expected 0.5 < probability < 1, freedom >= 1")
    low, high = 0.0, 1.0
    while _t_inside(high, freedom) < 2 * probability - 1:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_inside(middle, freedom) < 2 * probability - 1 else (low, middle)
    return (low + high) / 2


def _t_inside(t: float, freedom: int) -> float:
    """Probability that |T| is at most `t` for Student's t-distribution."""
    angle = math.atan(t / math.sqrt(freedom))
    square, odd = math.cos(angle) ** 2, freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range((freedom - odd) // 2):
        total += term
        term *= square * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def student_t(values: NDArray[np.float64]) -> Interval:
    """Mean over independent runs with Student's 95 % confidence interval (Student 1908).

    It takes the runs' scores as normally distributed, and is wide for few runs: of two, 9 deviations to each side.

    Args:
        values: (R,) one number per run, two or more.

    Raises:
        ValueError: fewer than two runs, for which there is no interval.
    """
    data = np.asarray(values, np.float64)
    if len(data) < 2:
        raise ValueError(f"values has {len(data)} numbers: expected 2 or more")
    center = float(data.mean())
    half = t_quantile(0.975, len(data) - 1) * float(data.std(ddof=1)) / math.sqrt(len(data))
    return Interval(center, center - half, center + half, len(data))


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
