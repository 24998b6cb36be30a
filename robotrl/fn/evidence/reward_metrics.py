"""Metrics of a reward against ground truth, with bootstrap intervals over whole episodes.

Steps of one episode are not independent, so intervals resample episodes, not steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.fn.progress.metrics import rank_correlation
from robotrl.fn.stats import Interval

Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]


class PairedWins(NamedTuple):
    """Comparisons of positive with negative scores, by the episodes that they come from."""

    wins: Reals
    """(E, E) number of pairs of a positive of episode i and a negative of episode j in which the positive is larger;
    ties count half."""
    positives: Reals
    """(E,) positives of each episode."""
    negatives: Reals
    """(E,) negatives of each episode."""


def paired_wins(score: Reals, positive: Flags, episode: NDArray[np.int64]) -> PairedWins:
    """Count the comparisons behind an area under the ROC curve, for each pair of episodes.

    Args:
        score: (n,) scores.
        positive: (n,) class of each.
        episode: (n,) number of its episode, from 0 on.
    """
    count = int(episode.max()) + 1 if len(episode) else 0
    above, owner = score[positive], episode[positive]
    wins = np.zeros((count, count))
    for other in range(count):
        below = np.sort(score[~positive & (episode == other)])
        if len(below):
            beaten = (np.searchsorted(below, above, "left") + np.searchsorted(below, above, "right")) / 2
            wins[:, other] = np.bincount(owner, beaten, count)
    return PairedWins(
        wins,
        np.bincount(owner, minlength=count).astype(np.float64),
        np.bincount(episode[~positive], minlength=count).astype(np.float64),
    )


def auc_interval(
    score: Reals,
    positive: Flags,
    episode: NDArray[np.int64],
    samples: int = 1000,
    seed: int = 0,
    group: NDArray[np.int64] | None = None,
) -> Interval | None:
    """Area under the ROC curve with a 95 % percentile bootstrap interval over episodes; None if a class is absent.

    Args:
        score: (n,) scores; for one a episode, `episode` is 0 to n - 1.
        positive: (n,) class that should have the higher scores.
        episode: (n,) number of the episode of each score, from 0 on.
        samples: number of resamples; those without one of the classes are left out.
        seed: of the resampling.
        group: (E,) group of each episode: only scores of one group are compared; None compares all.
    """
    if not len(score):
        return None
    pairs = paired_wins(score, positive, episode)
    count = len(pairs.positives)
    compared = np.ones((count, count), bool) if group is None else group[:, None] == group
    wins, total = pairs.wins * compared, np.outer(pairs.positives, pairs.negatives) * compared
    if not total.any():
        return None
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), samples).astype(np.float64)
    won, of = ((drawn @ wins) * drawn).sum(1), ((drawn @ total) * drawn).sum(1)
    low, high = np.percentile(won[of > 0] / of[of > 0], [2.5, 97.5])
    return Interval(float(wins.sum() / total.sum()), float(low), float(high), len(np.unique(episode)))


def correlation_interval(one: Reals, other: Reals, samples: int = 1000, seed: int = 0) -> Interval | None:
    """Spearman's rank correlation of two numbers an episode, with a bootstrap interval over episodes.

    None if there are fewer than three episodes, or if `other`, the truth, is the same in all of them.

    Args:
        one: (E,) a reward's.
        other: (E,) the truth.
        samples: number of resamples.
        seed: of the resampling.
    """
    count = len(one)
    if count < 3 or np.ptp(other) == 0:
        return None
    drawn = np.random.default_rng(seed).integers(0, count, (samples, count))
    found = [rank_correlation(one[rows], other[rows]) for rows in drawn]
    low, high = np.percentile(found, [2.5, 97.5])
    return Interval(rank_correlation(one, other), float(low), float(high), count)


def before_event(event: Flags, steps: int) -> Flags:
    """Mark the last `steps` steps up to an event, the step of the event included.

    Args:
        event: (T,) steps of an episode at which it happened.
        steps: 1 or more.
    """
    marked = np.zeros(len(event), bool)
    for at in np.flatnonzero(event):
        marked[max(at - steps + 1, 0) : at + 1] = True
    return marked
