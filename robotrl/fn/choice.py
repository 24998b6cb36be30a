"""Selection among checkpoints whose evaluations hardly differ."""

from __future__ import annotations

from collections.abc import Mapping

from robotrl.fn.stats import wilson


def newest_best(scores: Mapping[int, float]) -> int:
    """Return the step with the highest score; among equals, the newest, because it was trained longest.

    Args:
        scores: step to score, 1 or more of them.
    """
    return max(scores, key=lambda step: (scores[step], step))


def undecided(rates: Mapping[int, float], episodes: int) -> list[int]:
    """Return the steps whose 95 % success interval overlaps that of the best one, oldest first.

    Args:
        rates: step to success rate, 1 or more of them.
        episodes: number of episodes of each rate.
    """
    intervals = {step: wilson(round(rate * episodes), episodes) for step, rate in rates.items()}
    low = intervals[newest_best(rates)].low
    return sorted(step for step, interval in intervals.items() if interval.high >= low)
