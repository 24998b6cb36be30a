"""Paired comparison of two policies that may stop at any time: testing by betting on the differences of their outcomes.

Each start gives a difference d in [-1, 1]: the candidate's outcome less the baseline's. Against the claim that its mean
is 0 or less, a capital of 1 is multiplied by 1 + b d at each start, where the bet b is chosen before the start is seen.
If the claim is true, the capital is a supermartingale, and reaches 1 / alpha at any time with a chance of at most alpha
(Ville 1939; Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting", section 4). So the
test may be looked at after every start. Three quarters of the capital are bet as if the true difference were the one to
detect, and a quarter as if it were four times as large, which finds large differences soon.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Outcome = Literal["better", "worse", "not better", "open"]
SHARES = ((1.0, 0.75), (4.0, 0.25))
"""Parts of the capital: the mean that each is bet for, over the one to detect, and its share of the beginning."""
LONGEST_BET = 0.95
"""Largest share of the capital that is bet, so that no start ruins it."""
PRIOR_STARTS, PRIOR_SQUARE = 10, 0.5
"""Starts that the first guess of a difference's mean square counts as, and that guess: half of the starts differ."""
WORST_DIFFERING = 0.5
"""Share of the starts with different outcomes of two independent policies that succeed on half of them."""
GRID = 401
"""Number of means that the interval is searched among."""


class PairedTest(NamedTuple):
    """A test of a candidate against a baseline."""

    detect: float
    """Smallest mean difference that matters, above 0 and below 1; 0.1 is ten points of success."""
    alpha: float = 0.05
    """Largest chance of "better" where the candidate is not better, and of "worse" where it is not worse."""
    beta: float = 0.15
    """Largest chance of "not better" where the candidate is better by `detect`."""


class PairedDecision(NamedTuple):
    """Result of a test after some starts."""

    outcome: Outcome
    """ "better": the mean difference is above 0; "worse": below 0; "not better": below `detect`; "open": undecided."""
    starts: int
    """Starts after which it was decided; all of them if it is open."""


def decide(differences: NDArray[np.float64], test: PairedTest) -> PairedDecision:
    """Decide by the differences seen so far.

    Args:
        differences: (n,) outcomes of the candidate less those of the baseline, each in [-1, 1], in the order of starts
            that was drawn beforehand; n may be 0.
        test: the test.

    Raises:
        ValueError: a difference out of range, or `detect`, `alpha` or `beta` outside (0, 1).
    """
    d = np.asarray(differences, np.float64)
    if not all(0.0 < value < 1.0 for value in test):
        raise ValueError(f"{test}: expected numbers above 0 and below 1")
    if d.ndim != 1 or not bool(np.all(np.abs(d) <= 1.0)):
        raise ValueError(f"differences of shape {d.shape}: expected (n,), each from -1 to 1")
    evidence: dict[Outcome, tuple[NDArray[np.float64], float]] = {
        "better": (log_capital(d, test.detect), test.alpha),
        "worse": (log_capital(-d, test.detect), test.alpha),
        "not better": (log_capital(test.detect - d, test.detect), test.beta),
    }
    reached: dict[Outcome, int] = {
        name: _first(capital >= -math.log(level)) for name, (capital, level) in evidence.items()
    }
    outcome = min(reached, key=reached.__getitem__)
    starts = reached[outcome]
    if starts > len(d):
        outcome, starts = "open", len(d)
    return PairedDecision(outcome, starts)


def log_capital(x: NDArray[np.float64], mean: float, least: float | NDArray[np.float64] = -1.0) -> NDArray[np.float64]:
    """Logarithm of the capital after each start of one who bets against "the mean of x is 0 or less".

    Args:
        x: (..., n) values.
        mean: the mean to detect.
        least: lower bound of the values, below 0; one number, or (..., 1).

    Returns:
        (..., n).
    """
    before = np.cumsum(x * x, axis=-1) - x * x
    square = (PRIOR_STARTS * PRIOR_SQUARE + before) / (PRIOR_STARTS + np.arange(x.shape[-1]))
    parts = [
        math.log(share) + np.cumsum(np.log1p(np.minimum(times * mean / square, -LONGEST_BET / least) * x), axis=-1)
        for times, share in SHARES
    ]
    return np.logaddexp.reduce(parts, axis=0)


def _first(reached: NDArray[np.bool_]) -> int:
    """Number of starts after which it was reached first; more than there are if it was not."""
    return int(reached.argmax()) + 1 if reached.any() else len(reached) + 1


def interval(differences: NDArray[np.float64], detect: float, alpha: float) -> tuple[float, float]:
    """Interval of the mean difference (n,) that holds at all times together: the means that no bettor has refuted.

    The true mean is below the lower end with a chance of at most alpha, and above the upper one with the same. A test
    with that `detect` and alpha says "better" at the start from which on the lower end is above 0.
    """
    ends = intervals(differences, detect, alpha)
    return (float(ends[-1, 0]), float(ends[-1, 1])) if len(ends) else (-1.0, 1.0)


def intervals(differences: NDArray[np.float64], detect: float, alpha: float) -> NDArray[np.float64]:
    """Ends (n, 2) of the interval after each start; see `interval`."""
    means = np.linspace(-1.0, 1.0, GRID)
    low = np.where(_unrefuted(differences, means, detect, alpha), means[:, None], 1.0).min(axis=0)
    high = np.where(_unrefuted(-differences, -means, detect, alpha), means[:, None], -1.0).max(axis=0)
    return np.stack([low, high], axis=1)


def _unrefuted(
    differences: NDArray[np.float64], means: NDArray[np.float64], detect: float, alpha: float
) -> NDArray[np.bool_]:
    """(G, n) for means (G,): whether "the mean is that or less" was not refuted up to each of the differences (n,)."""
    x = differences[None] - means[:, None]
    capital = log_capital(x, detect, np.minimum(-1.0 - means, -1.0)[:, None])
    return np.maximum.accumulate(capital, axis=1) < -math.log(alpha)


def fixed_plan(test: PairedTest, differing: float = WORST_DIFFERING) -> int:
    """Starts that a one-sided paired test of fixed size needs for the same chances of error.

    By the normal approximation: (z_alpha + z_beta)^2 (q - detect^2) / detect^2.

    Args:
        test: the test.
        differing: q, share of the starts on which the two have different outcomes.
    """
    z = NormalDist().inv_cdf(1.0 - test.alpha) + NormalDist().inv_cdf(1.0 - test.beta)
    return max(1, math.ceil(z * z * (differing - test.detect**2) / test.detect**2))
