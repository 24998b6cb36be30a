"""Threshold calibration of a success classifier: a bounded rate of false alarms, and the misses that follow.

All rates are per episode, not per frame: a reward is computed at every step, so a classifier that errs on 3 % of the
frames gives a false reward in nine of ten episodes of 80 steps (1 - 0.97^80).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, check_at_least, out_of_range
from robotrl.fn.stats import Interval, wilson

Real = NDArray[np.float64]


class Rates(NamedTuple):
    """Error rates of a threshold on episodes that neither training nor the choice of the threshold used."""

    false_positive: Interval
    """Fraction of the episodes with a false success at some step."""
    false_negative: Interval | None
    """Fraction of the successful episodes whose success is missed; None if there were none."""
    frame_false_positive: float
    """Fraction of the frames without success that are classified as success."""


def held(probability: Real, episode: NDArray[np.int64], steps: int) -> Real:
    """Lowest of the last `steps` probabilities of the same episode (F,); 0 where there are fewer.

    A success is reported where this reaches the threshold, i.e. after `steps` consecutive steps above it.

    Args:
        probability: (F,) of frames in time order, the episodes one after the other.
        episode: (F,) index of the episode, so that no window crosses an end.
        steps: 1 or more.
    """
    check_at_least("steps", steps, 1)
    lowest = probability.copy()
    for back in range(1, steps):
        before = np.zeros_like(probability)
        before[back:] = np.where(episode[back:] == episode[:-back], probability[:-back], 0.0)
        lowest = np.minimum(lowest, before)
    return lowest


def just_before(success: NDArray[np.bool_], episode: NDArray[np.int64], steps: int) -> NDArray[np.bool_]:
    """Frames (F,) at most `steps` before a success of the same episode, without the successes themselves.

    Args:
        success: (F,) of frames in time order, the episodes one after the other.
        episode: (F,) index of the episode.
        steps: 0 or more.
    """
    check_at_least("grace", steps, 0)
    near = np.zeros_like(success)
    for ahead in range(1, steps + 1):
        near[:-ahead] |= success[ahead:] & (episode[ahead:] == episode[:-ahead])
    return near & ~success


def peaks(score: Real, chosen: NDArray[np.bool_], episode: NDArray[np.int64]) -> Real:
    """Highest `score` (E,) among the chosen frames of each episode that has any, in the order of the episodes."""
    ids, rows = np.unique(episode[chosen], return_inverse=True)
    out = np.full(len(ids), -np.inf)
    np.maximum.at(out, rows, score[chosen])
    return out


def choose_threshold(alarms: Real, bound: float, least: float) -> float:
    """Return the lowest threshold with a false-alarm probability of at most `bound` in a new episode.

    Split conformal prediction (Vovk et al. 2005; Angelopoulos & Bates 2023, sec. 1): a new episode's highest score is
    equally likely to take each rank among those of E held-out episodes of the same kind. A threshold just above the
    k + 1-st highest of them is passed by a new one with a probability of at most (k + 1) / (E + 1). So k is the largest
    number for which that is at most the bound.

    Args:
        alarms: (E,) highest score among the frames without success of each held-out episode.
        bound: largest fraction of episodes with a false alarm, above 0 and below 1.
        least: lower bound of the threshold, 0 to 1.

    Raises:
        ConfigError: too few episodes to guarantee the bound.
    """
    if not 0 < bound < 1:
        raise out_of_range("max_false_positive", bound, "above 0 and below 1")
    if not 0 <= least <= 1:
        raise out_of_range("min_threshold", least, "0 to 1")
    count = len(alarms)
    # the slack is for bounds such as 0.07, whose products are a rounding error below an integer
    k = math.floor(bound * (count + 1) + 1e-9) - 1
    if k < 0:
        raise ConfigError(
            f"max_false_positive is {bound}: {count} held-out episodes cannot promise less than {1 / (count + 1):.3g};"
            f" expected {math.ceil(1 / bound - 1e-9) - 1} held-out episodes or more, or a larger bound"
        )
    return max(least, float(np.nextafter(np.sort(alarms)[::-1][k], 2.0)))


def rates(
    score: Real, success: NDArray[np.bool_], episode: NDArray[np.int64], threshold: float, grace: int = 0
) -> Rates:
    """False-positive and false-negative rates of "score >= threshold", with Wilson intervals.

    Args:
        score: (F,) result of `held`.
        success: (F,) True for frames that show a success.
        episode: (F,) index of the episode.
        threshold: lowest score that counts as success.
        grace: a success reported at most this many steps early counts as a hit, not as a false alarm.
    """
    near = just_before(success, episode, grace)
    wrong = ~success & ~near
    alarms, hits = peaks(score, wrong, episode), peaks(score, success | near, episode)
    missed = wilson(int((hits < threshold).sum()), len(hits)) if len(hits) else None
    return Rates(
        wilson(int((alarms >= threshold).sum()), len(alarms)), missed, float((score[wrong] >= threshold).mean())
    )
