"""Shared parts of result tables: values by seed, their statistics, and their text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.kit.cells import CellResult
from benchmarks.kit.figures import Figure
from robotrl.fn.stats import bootstrap

SPREAD = "interquartile mean over seeds with its 95 % bootstrap interval"


def column(results: Sequence[CellResult], method: str, task: str, *path: str) -> dict[int, float]:
    """Seed to the value at `path` of a method's results on a task; results without it are left out."""
    found: dict[int, float] = {}
    for cell in results:
        if cell["method"] != method or cell["task"] != task:
            continue
        value: Any = cell["result"]
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            found[int(cell["seed"])] = float(value)
    return dict(sorted(found.items()))


def steps_to(curve: Sequence[Mapping[str, float]], success: float, axis: str) -> float | None:
    """First point of a curve at or above a success rate, on axis "env_steps" or "train_s"; None without one."""
    return next((float(point[axis]) for point in curve if point["success"] >= success), None)


def spread(values: Mapping[int, float], unit: str, note: str) -> Figure:
    """Figure of a column."""
    numbers = list(values.values())
    span = bootstrap(np.array(numbers))
    caption = SPREAD + (f"; {note}" if note else "")
    return Figure(span.value, unit, runs=len(numbers), low=span.low, high=span.high, note=caption)


def percent(figure: Figure | None, spread: bool = True) -> str:
    """A fraction as percentage, by default with its interval; empty if there is none."""
    if figure is None or figure.value is None:
        return ""
    value = f"{100 * figure.value:.1f} %"
    if not spread or figure.low is None or figure.high is None:
        return value
    return f"{value} ({100 * figure.low:.1f} to {100 * figure.high:.1f})"


def count(figure: Figure | None) -> str:
    """A number of steps in thousands or millions."""
    if figure is None or figure.value is None:
        return ""
    return f"{figure.value / 1e6:.1f} M" if figure.value >= 1e6 else f"{figure.value / 1e3:.0f} k"


def seconds(figure: Figure | None) -> str:
    """A duration as text."""
    return "" if figure is None or figure.value is None else f"{figure.value:.0f} s"
