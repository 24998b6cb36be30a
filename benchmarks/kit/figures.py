"""Record of one measured number, and interleaved measurement of several routes."""

from __future__ import annotations

import importlib.util
import math
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Figure:
    """One number of a bench, with the peer's number from the same run.

    Numbers that could not be measured (for example, the peer is not installed) are None, never guessed.

    Args:
        value: our number; the median of several runs.
        unit: its unit ("us", "env steps/s", "success").
        peer: name of the compared software; None without a comparison.
        peer_value: the peer's number in the same unit.
        ratio: factor by which ours is better, above 1 for better in any unit; the median over pairs.
        runs: number of runs (or episodes, for a success rate) behind `value`.
        low: lowest of the runs, or the lower end of the interval of a success rate.
        high: highest of the runs, or the upper end.
        ratio_low: lowest ratio of any one pair.
        ratio_high: highest ratio of any one pair.
        note: one-line remark needed to interpret the number.
    """

    value: float | None
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    runs: int = 1
    low: float | None = None
    high: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict; numbers that are not finite become None."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Figure:
        """Inverse of `to_json`; the keys from `ratio_low` on may be absent.

        Raises:
            TypeError: a key is unknown, or `value` or `unit` is absent.
        """
        return cls(**data)


def as_figure(data: Figure | Mapping[str, Any]) -> Figure:
    """A `Figure` from itself or from a plain dict of the same keys."""
    return data if isinstance(data, Figure) else Figure.from_json(data)


class Spread(NamedTuple):
    """Median, lowest and highest of some runs."""

    median: float
    low: float
    high: float


def spread(samples: Sequence[float]) -> Spread:
    """Median, lowest and highest of `samples` (1 or more)."""
    return Spread(statistics.median(samples), min(samples), max(samples))


@dataclass(frozen=True)
class Paired:
    """Result of `paired`: one sample for each route and round, in measurement order."""

    samples: dict[str, tuple[float, ...]]

    def spread(self, route: str) -> Spread:
        """Median, lowest and highest of one route."""
        return spread(self.samples[route])

    def ratio(self, ours: str, peer: str, better: Better) -> Spread:
        """Factor by which `ours` is better than `peer`, pair by pair: a pair shares the machine's load."""
        top, bottom = (ours, peer) if better == "higher" else (peer, ours)
        return spread([a / b for a, b in zip(self.samples[top], self.samples[bottom], strict=True)])

    def figure(self, ours: str, peer: str | None, unit: str, better: Better, note: str = "") -> Figure:
        """Figure of route `ours` against route `peer`, which may be absent (not installed) or None."""
        mine = self.spread(ours)
        runs = len(self.samples[ours])
        if peer is None or peer not in self.samples:
            return Figure(mine.median, unit, peer=peer, runs=runs, low=mine.low, high=mine.high, note=note)
        ratio = self.ratio(ours, peer, better)
        return Figure(
            value=mine.median,
            unit=unit,
            peer=peer,
            peer_value=self.spread(peer).median,
            ratio=ratio.median,
            runs=runs,
            low=mine.low,
            high=mine.high,
            ratio_low=ratio.low,
            ratio_high=ratio.high,
            note=note,
        )


def paired(routes: Mapping[str, Callable[[], float]], rounds: int, warmup: int = 1) -> Paired:
    """Measure all routes, interleaved A B A B, so that a busy machine slows them alike.

    Args:
        routes: name to a function that does one run and returns its measurement (a rate, a time).
        rounds: number of samples of each route, 1 or more.
        warmup: number of initial rounds that are discarded.

    Returns:
        The samples, `rounds` of each route.
    """
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}: expected 1 or more")
    samples: dict[str, list[float]] = {name: [] for name in routes}
    for turn in range(warmup + rounds):
        for name, route in routes.items():
            sample = route()
            if turn >= warmup:
                samples[name].append(sample)
    return Paired({name: tuple(values) for name, values in samples.items()})


def have(peer: str) -> bool:
    """True if a peer is installed: an importable Python module, or a program on the path."""
    return importlib.util.find_spec(peer) is not None or shutil.which(peer) is not None
