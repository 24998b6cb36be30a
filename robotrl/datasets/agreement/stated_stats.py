"""The statistics of a dataset: computed from its frames; those that its writer left are held against them.

Several writers store quantiles that are means over episodes, and statistics of other data have been seen in the wild;
what normalises is therefore never the file's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robotrl.datasets import layout
from robotrl.datasets.agreement.doubts import Doubt
from robotrl.datasets.layout import COUNTERS, refuse
from robotrl.datasets.manifest import read_json
from robotrl.datasets.stats import QUANTILES, Stats, describe, rows_of
from robotrl.errors import nearest

USED = ("min", "max", "mean", "std")
"""What every writer has."""
STD_SLACK = 0.01
"""Of a deviation: writers sum in float32, or divide by one less than the frames' number."""
QUANTILE_SLACK = 0.02
"""Of a column's range; quantiles that are off by more are told."""
TOLD = 3
"""Quantiles that a doubt names before it counts."""


class ColumnStats(NamedTuple):
    """The statistics of all columns."""

    stats: dict[str, Stats]
    doubts: tuple[Doubt, ...]


def read_stats(root: Path, frames: Mapping[str, np.ndarray], pictures: Iterable[str]) -> ColumnStats:
    """Statistics of the frames; those of compressed pictures as their writer left them.

    The file's must be those of the frames: min, max, mean and deviation are refused where they are not, quantiles are
    told. Those of compressed pictures come in LeRobot's form, (3, 1, 1) from 0 to 1, and are not compared.

    Raises:
        DataError: the file cannot be read, lacks a column, or is of other data.
    """
    stats = {name: {k: v.astype(np.float64) for k, v in describe(values).items()} for name, values in frames.items()}
    if not os.path.lexists(root / layout.STATS):
        return ColumnStats(stats, ())
    content = read_json(root, layout.STATS)
    off: list[str] = []
    for name, values in frames.items():
        if name not in content:
            close = nearest(name, content)
            found = f": found {close!r}" if close else ""
            raise refuse(root, layout.STATS, f"has no statistics of {name!r}{found}")
        told = _parse(root, name, content[name], rows_of(values).shape[1])
        if name not in COUNTERS:
            _check_used(root, name, told, stats[name])
            off += _other_quantiles(name, told, stats[name])
    for name in pictures:
        if name in content:
            share = _parse(root, name, content[name], 3)
            for key in share.keys() - {"count"}:
                if share[key].min() < 0 or share[key].max() > 1:
                    raise refuse(
                        root, layout.STATS, f"{key} of {name!r} is {content[name][key]}: expected numbers from 0 to 1"
                    )
            stats[name] = {k: v if k == "count" else 255 * v.reshape(-1) for k, v in share.items()}
    if not off:
        return ColumnStats(stats, ())
    more = f" and {len(off) - TOLD} more" if len(off) > TOLD else ""
    text = f"quantiles of {layout.STATS} are not those of the frames, which are used: {', '.join(off[:TOLD])}{more}"
    return ColumnStats(stats, (Doubt(text, False),))


def _parse(root: Path, name: str, entry: Any, width: int) -> Stats:
    """The statistics of one column, `width` finite numbers each."""
    try:
        one = {key: np.atleast_1d(np.asarray(value, np.float64)) for key, value in entry.items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise refuse(root, layout.STATS, f"{name!r} holds something that is no list of numbers") from error
    for key in (*USED, *(q for q in QUANTILES if q in one)):
        if key not in one or one[key].size != width or not np.isfinite(one[key]).all():
            raise refuse(root, layout.STATS, f"{key} of {name!r} is {entry.get(key)}: expected {width} finite numbers")
    return one


def _check_used(root: Path, name: str, told: Stats, found: Stats) -> None:
    """Refuse statistics of other data. Float32 sums get some slack."""
    low, high, mean = (found[key].reshape(-1) for key in ("min", "max", "mean"))
    spread = (high - low) + 1e-6 * np.maximum(np.abs(mean), 1e-6)
    for key in USED:
        row = found[key].reshape(-1)
        slack = 1e-3 * spread + 1e-5 * np.abs(row)
        if key == "std":
            # in float32 a deviation that is small beside the mean is lost
            slack = STD_SLACK * row + 1e-6 * spread + 1e-3 * np.abs(mean) * (row < 1e-3 * np.abs(mean))
            count = float(found["count"][0])
            slack += row * (np.sqrt(count / max(count - 1, 1)) - 1)
        off = np.abs(told[key].reshape(-1) - row) > slack
        if key == "std":
            off |= told[key].reshape(-1) < 0
        if off.any():
            at = int(np.argmax(off))
            raise refuse(
                root,
                layout.STATS,
                f"{key} of {name!r}[{at}] is {told[key].reshape(-1)[at]:g}: the frames give {float(row[at]):g}",
            )


def _other_quantiles(name: str, told: Stats, found: Stats) -> list[str]:
    """Quantiles of the file that the frames do not give, one element of each."""
    out: list[str] = []
    spread = (found["max"] - found["min"]).reshape(-1)
    for key in QUANTILES:
        if key in told:
            apart = np.abs(told[key].reshape(-1) - found[key].reshape(-1)) - QUANTILE_SLACK * spread
            at = int(np.argmax(apart))
            # a column that stands still has no spread, and its quantiles are rounded
            if apart[at] > 1e-6 * max(1.0, abs(float(found[key].reshape(-1)[at]))):
                theirs, ours = (float(row[key].reshape(-1)[at]) for row in (told, found))
                out.append(f"{key} of {name!r}[{at}] is {theirs:g}, of the frames {ours:g}")
    return out
