"""Held-out quality of a critic: does it tell, while an episode runs, how the episode will end?

Numbers are one for each episode, because the steps of one episode are not independent. The later part of an episode
counts: early on the outcome of a policy that acts by samples is not decided yet, and a critic that chooses well among
actions cannot know it either.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.fn.progress.metrics import rank_correlation, separation

FEWEST = 3
"""Fewest episodes whose ranks are compared."""


class OutcomeQuality(NamedTuple):
    """Quality of a critic on episodes that it was not trained on; None where they do not tell."""

    rank: float | None
    """Spearman's rank correlation, -1 to 1, of the mean value over an episode's second half with its discounted return;
    None for fewer than three episodes, or if all returns are equal."""
    auc_start: float | None
    """Probability, 0 to 1, that the first value of a success is above that of a failure (area under the ROC curve);
    None if all episodes ended alike."""
    auc_late: float | None
    """The same of the mean value over the last quarter."""


def critic_quality(
    values: NDArray[np.float64],
    offsets: NDArray[np.int64],
    returns: NDArray[np.float64],
    success: NDArray[np.bool_] | None,
) -> OutcomeQuality:
    """Compare values of executed chunks with the outcomes of their episodes.

    Args:
        values: (F,) values of the frames of all episodes, one episode after the other.
        offsets: (E + 1,) first frame of each episode, and F.
        returns: (E,) discounted returns, from the beginning of each episode.
        success: (E,) outcomes; None if they are unknown.
    """
    first, end = offsets[:-1], offsets[1:]
    sums = np.concatenate([[0.0], np.cumsum(values)])

    def last_part(share: int) -> NDArray[np.float64]:
        """Mean value (E,) over the last 1 / share of an episode, of one frame or more."""
        count = np.maximum((end - first) // share, 1)
        return (sums[end] - sums[end - count]) / count

    rank = None
    if len(returns) >= FEWEST and np.ptp(returns) > 0:
        rank = rank_correlation(last_part(2), returns)
    if success is None or success.all() or not success.any():
        return OutcomeQuality(rank, None, None)
    start, late = (separation(at[success], at[~success]) for at in (values[first], last_part(4)))
    return OutcomeQuality(rank, start, late)


def discounted_returns(rewards: NDArray[np.float64], offsets: NDArray[np.int64], gamma: float) -> NDArray[np.float64]:
    """Discounted returns (E,) from the beginning of each episode, of the rewards (F,) of all episodes."""
    steps = np.arange(len(rewards)) - np.repeat(offsets[:-1], np.diff(offsets))
    return np.add.reduceat(rewards * gamma**steps, offsets[:-1])


def held_out(success: NDArray[np.bool_] | None, episodes: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Choose the episodes to hold out, the same share of successes and of failures.

    Of each kind with two episodes or more, one at least is held out and one at least is left.

    Args:
        success: (E,) outcomes; None if they are unknown: all count as alike.
        episodes: E.
        share: fraction to hold out, 0 to 1; 0 holds out none.
        seed: of the choice.

    Returns:
        (E,) True for the episodes that are held out.
    """
    out = np.zeros(episodes, np.bool_)
    if share == 0:
        return out
    kinds = np.zeros(episodes, np.bool_) if success is None else success
    rng = np.random.default_rng(seed)
    for kind in (True, False):
        among = rng.permutation(np.flatnonzero(kinds == kind))
        if len(among) >= 2:
            out[among[: min(max(round(share * len(among)), 1), len(among) - 1)]] = True
    return out
