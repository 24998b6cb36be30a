"""Normalization statistics in OpenVLA's directories: reading, choice and consistency checks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robotrl.errors import ConfigError, DataError, unknown
from robotrl.importers.fields import numbers, wrong
from robotrl.importers.files import read_json, require

CONFIG, OWN = "config.json", "dataset_statistics.json"
"""Files with statistics: of the pretraining data, and of fine-tuning, which take precedence."""
ACTIONS, STATES = "action", "proprio"
"""Names of action and state statistics in the files."""
SAME = 1e-6
"""Relative tolerance between the numbers of two files."""


class Stats(NamedTuple):
    """Normalization of one dataset: its quantiles are mapped to -1 and 1."""

    low: tuple[float, ...]
    """1 % quantiles."""
    high: tuple[float, ...]
    """99 % quantiles."""
    mask: tuple[bool, ...]
    """False for elements that are not normalized, e.g. the gripper."""


Files = Mapping[str, Mapping[str, Any]]
"""Statistics by file and dataset key; the last file takes precedence."""


def read_files(path: Path, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Read the statistics of each file that has any.

    Raises:
        DataError: they cannot be read, or are no objects.
    """
    found: dict[str, dict[str, Any]] = {}
    if config.get("norm_stats") is not None:
        found[CONFIG] = require(f"{path}/{CONFIG}", config, "norm_stats", dict)
    if (path / OWN).exists():
        found[OWN] = read_json(path, OWN)
    for file, by_key in found.items():
        for key in by_key:
            require(f"{path}/{file}: statistics", by_key, key, dict)
    return found


def of_all(path: Path, files: Files, what: str) -> dict[str, Stats]:
    """Applicable statistics of actions or states, by dataset key.

    Raises:
        DataError: quantiles or masks are invalid, of different lengths or in the wrong order.
    """
    if not files:
        return {}
    file = list(files)[-1]
    return {
        key: _stats(_where(path, file, key, what), entry, what) for key, entry in files[file].items() if what in entry
    }


def choose(actions: Mapping[str, Stats], key: str | None) -> str:
    """Key of the dataset whose statistics are used.

    Raises:
        ConfigError: there are several and no key is given, or the key is unknown.
    """
    if key is None:
        if len(actions) > 1:
            raise ConfigError(f"key is not given: expected one of {', '.join(sorted(actions))}")
        return next(iter(actions))
    if key not in actions:
        raise unknown("key", key, actions)
    return key


def check_chosen(path: Path, files: Files, key: str, what: str) -> None:
    """Check one dataset's statistics for consistency, also with those of the other file.

    Raises:
        DataError: stds below 0, bounds in the wrong order, no range at all, or contradicting files.
    """
    file = list(files)[-1]
    where, entry = _where(path, file, key, what), files[file][key]
    stats = _stats(where, entry, what)
    _check_rest(where, require(where, entry, what, dict), len(stats.low))
    flat = [i for i, used in enumerate(stats.mask) if used and stats.low[i] == stats.high[i]]
    if flat and len(flat) == sum(stats.mask):
        raise DataError(
            f"{where}: q01 and q99 of column {flat[0]} are both {stats.low[flat[0]]:g}, and so on in all columns:"
            " expected ranges"
        )
    if flat:
        columns = ", ".join(map(str, flat))
        warnings.warn(f"{where}: q01 is q99 in column {columns}: nothing moves these", stacklevel=2)
    other = files[CONFIG].get(key, {}) if file != CONFIG and CONFIG in files else {}
    if what in other:
        _check_same(path, key, what, stats, _stats(_where(path, CONFIG, key, what), other, what))


def _where(path: Path, file: str, key: str, what: str) -> str:
    return f"{path}/{file}: statistics {key!r} of {what}"


def _stats(where: str, entry: Mapping[str, Any], what: str) -> Stats:
    said = require(where, entry, what, dict)
    low, high = (numbers(where, said, name) for name in ("q01", "q99"))
    mask: list[Any] = require(where, said, "mask", list) if "mask" in said else [True] * len(low)
    if not len(low) == len(high) == len(mask):
        raise DataError(
            f"{where}: q01, q99 and mask have different lengths: {len(low)}, {len(high)} and {len(mask)}, expected"
            " the same"
        )
    for column, value in enumerate(mask):
        if not isinstance(value, bool):
            raise wrong(where, f"mask of column {column}", value, "true or false")
    _check_order(where, "q01", "q99", low, high)
    return Stats(low, high, tuple(mask))


def _check_rest(where: str, said: Mapping[str, Any], width: int) -> None:
    """Check the unused statistics, since an error in them puts the used ones in doubt."""
    rest = {name: numbers(where, said, name) for name in ("mean", "std", "min", "max") if name in said}
    for name, row in rest.items():
        if len(row) != width:
            raise DataError(f"{where}: {name} has {len(row)} numbers: expected {width}, as q01")
    for column, value in enumerate(rest.get("std", ())):
        if value < 0:
            raise wrong(where, f"std of column {column}", value, "0 or more")
    if "min" in rest and "max" in rest:
        _check_order(where, "min", "max", rest["min"], rest["max"])


def _check_order(where: str, first: str, second: str, low: tuple[float, ...], high: tuple[float, ...]) -> None:
    for column, (a, b) in enumerate(zip(low, high, strict=True)):
        if b < a:
            raise DataError(
                f"{where}: {first} of column {column} is {a:g}, {second} is {b:g}: expected {second} not below {first}"
            )


def _check_same(path: Path, key: str, what: str, own: Stats, other: Stats) -> None:
    for name, mine, theirs in zip(("q01", "q99", "mask"), own, other, strict=True):
        if len(mine) != len(theirs) or not np.allclose(mine, theirs, rtol=SAME, atol=SAME):
            raise DataError(
                f"{path}: statistics {key!r} of {what}: {name} is {_short(mine)} in {OWN} and {_short(theirs)} in"
                f" {CONFIG} (norm_stats): expected the same; remove those that the policy was not trained with"
            )


def _short(row: tuple[float, ...] | tuple[bool, ...]) -> str:
    return f"[{', '.join(f'{x:g}' if not isinstance(x, bool) else str(x).lower() for x in row)}]"
