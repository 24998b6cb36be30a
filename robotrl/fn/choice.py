"""The choice among checkpoints that evaluations can hardly tell apart."""

from __future__ import annotations

from collections.abc import Mapping

from robotrl.fn.stats import wilson


def newest_best(scores: Mapping[int, float]) -> int:
    """The step with the highest score, the newest of equals: of a saturated evaluation the one that was trained most.

    Args:
        scores: step to score, 1 or more of them.
    """
    return max(scores, key=lambda step: (scores[step], step))


def undecided(rates: Mapping[int, float], episodes: int) -> list[int]:
    """Steps whose success rate does not differ from the best one's, oldest first: their 95 % intervals overlap.

    Args:
        rates: step to success rate, 1 or more of them.
        episodes: how many episodes each rate is of.
    """
    intervals = {step: wilson(round(rate * episodes), episodes) for step, rate in rates.items()}
    low = intervals[newest_best(rates)].low
    return sorted(step for step, interval in intervals.items() if interval.high >= low)
