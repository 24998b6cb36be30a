"""Contents of a book of episodes: successes, coverage, where failures happen, lengths. All functions are pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.fn.stats import Interval, wilson
from robotrl.improve.logged import LogBook, OwnEpisode
from robotrl.spec import Spec

THIRDS = 3
ROUNDING = 1e-6
"""Spread of an element, in parts of its largest magnitude or of 1, below which it is a constant with rounding."""
MOST_REFERENCES, MOST_ASKED = 2000, 64
"""Frames of successes that distances are measured to, and frames of an episode that are measured, evenly spread."""
SELDOM = 0.99
"""Share of the frames of successes that lie nearer to other successes than the distance that counts as far."""


class ThirdOfStarts(NamedTuple):
    """Episodes whose first observation lies in one third of the values of an element."""

    low: float
    high: float
    success: Interval


class StartElement(NamedTuple):
    """Success by an element of the first observation."""

    name: str
    """Observation and element, e.g. "state/tip_pos_x_hole"."""
    unit: str
    thirds: tuple[ThirdOfStarts, ...]
    """As many episodes in each, from low to high values."""

    @property
    def spread(self) -> float:
        """Largest success of a third less the smallest, 0 to 1."""
        rates = [third.success.value for third in self.thirds]
        return max(rates) - min(rates)

    @property
    def is_clear(self) -> bool:
        """True if the intervals of the best and of the worst third do not overlap."""
        ordered = sorted((third.success for third in self.thirds), key=lambda rate: rate.value)
        return ordered[0].high < ordered[-1].low


class VisitedElement(NamedTuple):
    """Share of the bounds of an element that the episodes visited, between its 1 and 99 % quantiles."""

    name: str
    share: float


class Holdings(NamedTuple):
    """Contents of a book of episodes."""

    episodes: int
    frames: int
    success: Interval
    corrected: int
    """Episodes with a person's corrections."""
    person_share: float
    """Share of the frames that a person acted in."""
    starts: int
    """Number of different starts; 0 if they have no numbers."""
    left_out: Mapping[str, int]
    success_s: NDArray[np.float64]
    """Lengths of the successes, s."""
    failure_s: NDArray[np.float64]
    elements: tuple[StartElement, ...]
    """Elements of the first observation, the one that tells most first."""
    visited: tuple[VisitedElement, ...]
    """The least covered first."""
    departures_s: NDArray[np.float64]
    """Time at which each failure first went where successes seldom are, s; NaN for one that never did."""


def holdings(book: LogBook, specs: Mapping[str, Spec], dt_s: float) -> Holdings:
    """Describe a book with one or more episodes.

    Args:
        book: the episodes.
        specs: specs of the observations.
        dt_s: control period, s.
    """
    episodes = book.episodes
    lengths = np.array([len(episode.actions) for episode in episodes])
    success = np.array([episode.success for episode in episodes])
    person = sum(int(episode.person.sum()) for episode in episodes)
    return Holdings(
        len(episodes),
        int(lengths.sum()),
        wilson(int(success.sum()), len(success)),
        sum(bool(episode.person.any()) for episode in episodes),
        person / int(lengths.sum()),
        len({episode.start for episode in episodes if episode.start >= 0}),
        dict(book.left_out),
        dt_s * lengths[success],
        dt_s * lengths[~success],
        start_elements(episodes, specs),
        visited(episodes, specs),
        departures(episodes, specs) * dt_s,
    )


def vector_keys(specs: Mapping[str, Spec]) -> list[str]:
    """Observations that are vectors of numbers: no pictures and no words."""
    return [key for key, spec in specs.items() if len(spec.shape) == 1 and not spec.words and spec.dtype != "uint8"]


def start_elements(episodes: Sequence[OwnEpisode], specs: Mapping[str, Spec]) -> tuple[StartElement, ...]:
    """Success by thirds of each element of the first observation that varies, and has three values or more."""
    success = np.array([episode.success for episode in episodes])
    out: list[StartElement] = []
    for key in vector_keys(specs):
        first = np.stack([episode.obs[key][0] for episode in episodes]).astype(np.float64)
        for place, (name, unit) in enumerate(zip(specs[key].names, specs[key].units, strict=True)):
            values = first[:, place]
            varies = np.ptp(values) > ROUNDING * max(1.0, float(np.abs(values).max()))
            if varies and len(np.unique(values)) >= THIRDS:
                out.append(StartElement(f"{key}/{name}", unit, thirds_of(values, success)))
    return tuple(sorted(out, key=lambda element: -element.spread))


def thirds_of(values: NDArray[np.float64], success: NDArray[np.bool_]) -> tuple[ThirdOfStarts, ...]:
    """Success of the third of the episodes with the lowest values, of the middle one, and of that with the highest.

    Args:
        values: (n,) one of each episode, n at least 3.
        success: (n,).
    """
    order = np.argsort(values, kind="stable")
    return tuple(
        ThirdOfStarts(float(values[rows].min()), float(values[rows].max()), wilson(int(success[rows].sum()), len(rows)))
        for rows in np.array_split(order, THIRDS)
    )


def visited(episodes: Sequence[OwnEpisode], specs: Mapping[str, Spec]) -> tuple[VisitedElement, ...]:
    """Share of each element's bounds that the episodes visited; elements without finite bounds are left out."""
    out: list[VisitedElement] = []
    for key in vector_keys(specs):
        spec = specs[key]
        low, high = np.quantile(np.concatenate([episode.obs[key] for episode in episodes]), (0.01, 0.99), axis=0)
        for place, name in enumerate(spec.names):
            span = spec.high[place] - spec.low[place]
            if np.isfinite(span) and span > 0:
                out.append(VisitedElement(f"{key}/{name}", float((high[place] - low[place]) / span)))
    return tuple(sorted(out, key=lambda element: element.share))


def departures(episodes: Sequence[OwnEpisode], specs: Mapping[str, Spec]) -> NDArray[np.float64]:
    """Frame at which each failure first is farther from all successes than these are from each other, but for 1 %.

    Distances are between observations of numbers, each element divided by its standard deviation over all episodes.

    Returns:
        (failures,) frames; NaN for a failure that stays near, and for all if there are fewer than two successes.
    """
    keys = vector_keys(specs)
    failures = [episode for episode in episodes if not episode.success]
    successes = [episode for episode in episodes if episode.success]
    if not keys or len(successes) < 2 or not failures:
        return np.full(len(failures), np.nan)
    rows = {id(episode): np.hstack([episode.obs[key] for key in keys]).astype(np.float64) for episode in episodes}
    spread = np.concatenate(list(rows.values())).std(axis=0)
    scaled = {place: values / np.where(spread > 0, spread, np.inf) for place, values in rows.items()}
    frames = np.concatenate([scaled[id(episode)] for episode in successes])
    owner = np.concatenate([np.full(len(episode.actions), i) for i, episode in enumerate(successes)])
    kept = evenly(len(frames), MOST_REFERENCES)
    frames, owner = frames[kept], owner[kept]
    asked = [scaled[id(episode)][evenly(len(episode.actions), MOST_ASKED)] for episode in successes]
    near = [nearest_distance(values, frames[owner != i]) for i, values in enumerate(asked) if (owner != i).any()]
    far = float(np.quantile(np.concatenate(near), SELDOM))
    out: list[float] = []
    for episode in failures:
        at = evenly(len(episode.actions), MOST_ASKED)
        away = nearest_distance(scaled[id(episode)][at], frames) > far
        out.append(float(at[int(np.argmax(away))]) if away.any() else float("nan"))
    return np.array(out)


def nearest_distance(values: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) Euclidean distance of each row (n, D) to the nearest of the others (m, D)."""
    squares = (values**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2 * values @ others.T
    return np.sqrt(np.maximum(squares, 0.0)).min(axis=1)


def evenly(count: int, most: int) -> NDArray[np.int64]:
    """At most `most` of `count` places, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
