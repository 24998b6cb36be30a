"""Figures over seeds, and their text in the tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.kit.figures import Figure
from robotrl.fn.stats import bootstrap


def over_seeds(values: Sequence[float], note: str, unit: str = "score") -> Figure:
    """Interquartile mean of the seeds' values (1 or more), with its 95 % bootstrap interval.

    Args:
        values: one for each seed.
        note: the number in words.
        unit: its unit.
    """
    span = bootstrap(np.array(values))
    caption = f"{note}; interquartile mean over seeds with its 95 % bootstrap interval"
    return Figure(span.value, unit, runs=len(values), low=span.low, high=span.high, note=caption)


def text_of(figure: Figure | None, scale: float = 1.0, digits: int = 1) -> str:
    """Value with its interval where there are two seeds or more; "-" without a figure.

    Args:
        figure: a result of `over_seeds`.
        scale: factor of the numbers, such as 100 for percent.
        digits: decimals.
    """
    if figure is None or figure.value is None:
        return "-"
    value = f"{scale * figure.value:.{digits}f}"
    if figure.low is None or figure.high is None or figure.runs < 2:
        return value
    return f"{value} ({scale * figure.low:.{digits}f} to {scale * figure.high:.{digits}f})"
