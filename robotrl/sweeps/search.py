"""Values of a sweep's fields: the grid of all lists, and draws from distributions."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from robotrl.errors import ConfigError, out_of_range, short

MOST_SETTINGS = 10_000
DIGITS = 4
"""Significant digits of a drawn number, so that a command line shows it whole."""
TRIES = 1000
"""Draws per sample before a sweep is said to have too few different settings."""


class Distribution(NamedTuple):
    """Distribution of a field's values."""

    kind: str
    """A key of `KINDS`."""
    values: tuple[Any, ...]
    """The lowest and the highest value, or all values of a choice."""

    def draw(self, generator: random.Random) -> Any:
        """Draw a value."""
        if self.kind == "choice":
            return self.values[int(generator.random() * len(self.values))]
        low, high = self.values
        share = generator.random()
        if self.kind == "integer":
            return low + int(share * (high - low + 1))
        if self.kind == "log_uniform":
            return _rounded(low * math.exp(share * math.log(high / low)), low, high)
        return _rounded(low + share * (high - low), low, high)


def _rounded(value: float, low: float, high: float) -> float:
    return min(max(float(f"{value:.{DIGITS}g}"), float(low)), float(high))


KINDS = {
    "uniform": "[low, high], numbers",
    "log_uniform": "[low, high], numbers above 0",
    "integer": "[low, high], whole numbers, both included",
    "choice": "a list of values",
}
"""Kinds of distributions, and the form of their values."""


def distribution(field: str, kind: str, values: Any) -> Distribution:
    """Distribution of a field.

    Args:
        field: name for errors.
        kind: a key of `KINDS`.
        values: values from the file.

    Raises:
        ConfigError: the values do not have the form of this kind, or low is above high.
    """
    name = f"{field}.{kind}"
    if not isinstance(values, list | tuple) or not values:
        raise out_of_range(name, values, KINDS[kind])
    given: Sequence[Any] = values  # pyright: ignore[reportUnknownVariableType]
    if kind == "choice":
        return Distribution(kind, tuple(given))
    whole = kind == "integer"
    if len(given) != 2 or not all(_is_number(value, whole) for value in given):
        raise out_of_range(name, list(given), KINDS[kind])
    low, high = given
    if low > high:
        raise ConfigError(f"{name} is {short(repr(list(given)))}, low above high: expected {KINDS[kind]}")
    if kind == "log_uniform" and low <= 0:
        raise out_of_range(name, list(given), KINDS[kind])
    return Distribution(kind, (low, high))


def _is_number(value: object, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) if whole else math.isfinite(value)


Values = dict[str, Any]
"""Value of each field that is varied, by its dotted name."""


def settings(
    grid: Mapping[str, Sequence[Any]], drawn: Mapping[str, Distribution], samples: int, seed: int
) -> list[Values]:
    """All settings of a sweep: each sample at each point of the grid.

    More samples begin with those of fewer, and a further distribution does not change the draws of the others.

    Args:
        grid: values of each field of the grid.
        drawn: distribution of each other field.
        samples: number of draws; unused without distributions.
        seed: seed of the draws.

    Raises:
        ConfigError: there are fewer different draws than samples, or too many settings.
    """
    sampled = list(_samples(drawn, samples, seed)) if drawn else [Values()]
    count = len(sampled) * math.prod(map(len, grid.values()))
    if count > MOST_SETTINGS:
        raise ConfigError(f"vary has {count:,} settings: expected at most {MOST_SETTINGS:,}")
    points = [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]
    return [point | sample for sample in sampled for point in points]


def _samples(drawn: Mapping[str, Distribution], samples: int, seed: int) -> Iterator[Values]:
    generators = {field: random.Random(f"{seed}/{field}") for field in drawn}
    seen: set[str] = set()
    for _ in range(TRIES * samples):
        sample = {field: one.draw(generators[field]) for field, one in drawn.items()}
        key = json.dumps(sample, sort_keys=True)
        if key not in seen:
            seen.add(key)
            yield sample
        if len(seen) == samples:
            return
    raise ConfigError(f"samples is {samples}: expected at most {len(seen)}, the number of different draws")
