"""Dataset statistics computed from the frames and compared with those stored in the dataset.

Several writers store quantiles that are means over episodes, and some published datasets hold statistics of other data.
The stored statistics are therefore never used for normalization.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robotrl.datasets import layout
from robotrl.datasets.agreement.issues import DataIssue
from robotrl.datasets.layout import COUNTERS, refuse
from robotrl.datasets.manifest import read_json
from robotrl.datasets.stats import QUANTILES, Stats, describe, rows_of
from robotrl.errors import nearest

USED = ("min", "max", "mean", "std")
"""Statistics that every writer stores."""
STD_SLACK = 0.01
"""Relative tolerance of a standard deviation: writers sum in float32, or divide by the number of frames less one."""
QUANTILE_SLACK = 0.02
"""Tolerance of quantiles, as a fraction of the column's range; larger differences are reported."""
LISTED = 3
"""Number of quantiles that a doubt names before it only counts them."""


class ColumnStats(NamedTuple):
    """Statistics of all columns, and doubts about the stored ones."""

    stats: dict[str, Stats]
    issues: tuple[DataIssue, ...]


def read_stats(root: Path, frames: Mapping[str, np.ndarray], pictures: Iterable[str]) -> ColumnStats:
    """Statistics computed from the frames; those of compressed images are the stored ones.

    The stored statistics must match the frames: a different min, max, mean or standard deviation is an error, a
    different quantile is reported. Those of compressed images have LeRobot's form, (3, 1, 1) from 0 to 1, and are not
    compared.

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
        stated = _parse(root, name, content[name], rows_of(values).shape[1])
        if name not in COUNTERS:
            _check_used(root, name, stated, stats[name])
            off += _other_quantiles(name, stated, stats[name])
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
    more = f" and {len(off) - LISTED} more" if len(off) > LISTED else ""
    text = f"quantiles of {layout.STATS} are not those of the frames, which are used: {', '.join(off[:LISTED])}{more}"
    return ColumnStats(stats, (DataIssue(text, False),))


def _parse(root: Path, name: str, entry: Any, width: int) -> Stats:
    """Stored statistics of one column, `width` finite numbers each."""
    try:
        one = {key: np.atleast_1d(np.asarray(value, np.float64)) for key, value in entry.items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise refuse(root, layout.STATS, f"{name!r} holds something that is no list of numbers") from error
    for key in (*USED, *(q for q in QUANTILES if q in one)):
        if key not in one or one[key].size != width or not np.isfinite(one[key]).all():
            raise refuse(root, layout.STATS, f"{key} of {name!r} is {entry.get(key)}: expected {width} finite numbers")
    return one


def _check_used(root: Path, name: str, stated: Stats, found: Stats) -> None:
    """Check that stored statistics match the frames, with a tolerance for float32 sums."""
    low, high, mean = (found[key].reshape(-1) for key in ("min", "max", "mean"))
    spread = (high - low) + 1e-6 * np.maximum(np.abs(mean), 1e-6)
    for key in USED:
        row = found[key].reshape(-1)
        slack = 1e-3 * spread + 1e-5 * np.abs(row)
        if key == "std":
            # float32 cannot represent a standard deviation that is small relative to the mean
            slack = STD_SLACK * row + 1e-6 * spread + 1e-3 * np.abs(mean) * (row < 1e-3 * np.abs(mean))
            count = float(found["count"][0])
            slack += row * (np.sqrt(count / max(count - 1, 1)) - 1)
        off = np.abs(stated[key].reshape(-1) - row) > slack
        if key == "std":
            off |= stated[key].reshape(-1) < 0
        if off.any():
            at = int(np.argmax(off))
            raise refuse(
                root,
                layout.STATS,
                f"{key} of {name!r}[{at}] is {stated[key].reshape(-1)[at]:g}: the frames give {float(row[at]):g}",
            )


def _other_quantiles(name: str, stated: Stats, found: Stats) -> list[str]:
    """Descriptions of stored quantiles that differ from those of the frames."""
    out: list[str] = []
    spread = (found["max"] - found["min"]).reshape(-1)
    for key in QUANTILES:
        if key in stated:
            apart = np.abs(stated[key].reshape(-1) - found[key].reshape(-1)) - QUANTILE_SLACK * spread
            at = int(np.argmax(apart))
            # a constant column has no range, and its quantiles are rounded
            if apart[at] > 1e-6 * max(1.0, abs(float(found[key].reshape(-1)[at]))):
                theirs, ours = (float(row[key].reshape(-1)[at]) for row in (stated, found))
                out.append(f"{key} of {name!r}[{at}] is {theirs:g}, of the frames {ours:g}")
    return out
