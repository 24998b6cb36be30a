"""Sweep files: TOML, or Python that defines `sweep`, as checked data."""

from __future__ import annotations

import difflib
import json
import runpy
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robotrl.errors import ConfigError, DataError, check_count, out_of_range, short, unknown
from robotrl.sweeps.search import KINDS, MOST_SETTINGS, Distribution, Values, distribution, settings
from robotrl.utils.files import read_plain
from robotrl.utils.user_module import beside_the_user

NAME = "sweep"
"""Name that a Python file defines: a dict, or a function without arguments that returns one."""
KEYS = ("seeds", "samples", "draw_seed", "train", "vary", "halving")
HALVING_KEYS = ("env_steps", "iterations", "eta")
OF_SESSIONS = ("callback", "logger")
"""Options of `robotrl train` that a run does not store."""
NOT_HERE = {
    "accept_changed_inputs": "no such field",
    "help": "no such field",
    "help_all": "no such field",
    "pause_at_env_steps": "halving",
    "pause_at_iteration": "halving",
    "resume": "no such field: begun runs are resumed",
    "run_dir": "robotrl sweep --out DIR",
    "seed": "seeds, a number of seeds or a list",
    "seeds": "seeds beside train",
}
"""Other options of `robotrl train`, and what there is instead."""
LARGEST_SEED = 2**31 - 1
MOST_SEEDS = 1000
LIKE_A_KIND = 0.7
"""Similarity from which an unknown key is taken for a misspelt kind of distribution."""


@dataclass(frozen=True)
class HalvingCfg:
    """Successive halving: runs pause at rungs, and only the best settings go on."""

    unit: str
    """ "env_steps" or "iterations"."""
    rungs: tuple[int, ...]
    """Where the runs pause, ascending."""
    eta: int
    """One of so many settings goes on."""


@dataclass(frozen=True)
class SweepFile:
    """Content of a sweep file."""

    train: dict[str, Any]
    """Fields that all runs have, by dotted name."""
    grid: dict[str, tuple[Any, ...]]
    """Fields that take each of several values."""
    drawn: dict[str, Distribution]
    """Fields that are drawn."""
    samples: int
    draw_seed: int
    seeds: tuple[int, ...]
    halving: HalvingCfg | None
    data: dict[str, Any]
    """The whole file as JSON values, flat: dotted name to value."""

    def settings(self) -> list[Values]:
        """Varied values of each setting.

        Raises:
            ConfigError: too many settings, or fewer different draws than samples.
        """
        return settings(self.grid, self.drawn, self.samples, self.draw_seed)


def read_sweep_file(path: Path) -> SweepFile:
    """Read a sweep file.

    Raises:
        DataError: it cannot be read or is not TOML.
        ConfigError: a key or a value is invalid, or a Python file raised an exception.
    """
    if path.suffix not in (".toml", ".py"):
        raise ConfigError(f"FILE is {short(str(path))}: expected a name that ends in .toml or .py")
    try:
        raw = read_plain(path, f"sweep file {path}", 1 << 20)
    except FileNotFoundError:
        raise DataError(f"sweep file {path} does not exist") from None
    return parsed(_from_python(path) if path.suffix == ".py" else _from_toml(raw, path))


def _from_toml(raw: bytes, path: Path) -> Any:
    try:
        return tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and TOMLDecodeError are ValueErrors
        raise DataError(f"sweep file {path} is not TOML: {short(str(error))}") from error


def _from_python(path: Path) -> Any:
    try:
        with beside_the_user():
            found: Any = runpy.run_path(str(path)).get(NAME)
            return found() if callable(found) else found
    except (Exception, SystemExit) as error:  # the user's code
        raise ConfigError(f"sweep file {path} raised {type(error).__name__}: {short(str(error))}") from error


def parsed(given: Any) -> SweepFile:
    """Check the content of a sweep file.

    Raises:
        ConfigError: a key or a value is invalid.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"{NAME} is {short(repr(given))}: expected a dict with train and vary, or a function of one")
    content: Mapping[str, Any] = given  # pyright: ignore[reportUnknownVariableType]
    for key in content:
        if key not in KEYS:
            raise unknown("sweep key", str(key), KEYS)
    _check_values(content, "")
    train = _flat(_table(content, "train"), "train")
    grid: dict[str, tuple[Any, ...]] = {}
    drawn: dict[str, Distribution] = {}
    for field, value in _flat(_table(content, "vary"), "vary").items():
        if field in train:
            raise ConfigError(f"{field} is in train and in vary: expected it once")
        if field in OF_SESSIONS:
            raise ConfigError(f"vary.{field} is given, and a run does not store it: expected it in train")
        if isinstance(value, Distribution):
            drawn[field] = value
        else:
            grid[field] = _grid_values(f"vary.{field}", value)
    if not grid and not drawn:
        raise ConfigError("vary is empty: expected a field with its values; train --seeds N repeats one setting")
    for where, fields in (("train", train), ("vary", {**grid, **drawn})):
        for field, instead in NOT_HERE.items():
            if field in fields:
                raise ConfigError(f"{where}.{field} is given: expected {instead}")
    samples = content.get("samples", 0)
    if drawn:
        check_count("samples", content.get("samples"), 1, MOST_SETTINGS, "the number of draws of vary,")
    elif "samples" in content:
        raise ConfigError(f"samples is {short(repr(samples))} and vary has no distribution: expected no samples")
    draw_seed = content.get("draw_seed", 0)
    check_count("draw_seed", draw_seed, 0, LARGEST_SEED)
    return SweepFile(
        train=train,
        grid=grid,
        drawn=drawn,
        samples=samples,
        draw_seed=draw_seed,
        seeds=_seeds(content.get("seeds", 3)),
        halving=_halving(content),
        data=json.loads(json.dumps(_plain(content))),
    )


def _check_values(value: Any, name: str) -> None:
    """Check that a value can be a part of JSON and of a command line."""
    if isinstance(value, Mapping):
        items: Mapping[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
        for key, item in items.items():
            if not isinstance(key, str):
                raise ConfigError(f"{name or NAME} has the key {short(repr(key))}: expected text")
            _check_values(item, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            _check_values(item, name)
    elif isinstance(value, float) and not abs(value) < float("inf"):
        raise out_of_range(name, value, "a finite number")
    elif value is not None and not isinstance(value, str | int | float | bool):
        raise ConfigError(f"{name} is {short(repr(value))}: expected text, a number, true or false, or a list of them")


def _table(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = content.get(key, {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"{key} is {short(repr(found))}: expected a table of fields")
    return found  # pyright: ignore[reportUnknownVariableType]


def _flat(table: Mapping[str, Any], where: str, prefix: str = "") -> dict[str, Any]:
    """Fields by dotted name with underscores; in `vary`, {kind: values} becomes a distribution."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        field = f"{prefix}{key}".replace("-", "_")
        if isinstance(value, Mapping):
            inner: Mapping[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
            kind = _kind(f"{where}.{field}", inner) if where == "vary" else None
            new = (
                _flat(inner, where, f"{field}.")
                if kind is None
                else {field: distribution(f"{where}.{field}", kind, inner[kind])}
            )
        else:
            new = {field: value}
        for name in new:
            if name in out:
                raise ConfigError(f"{where}.{name} is given twice: expected once")
        out |= new
    return out


def _kind(field: str, table: Mapping[str, Any]) -> str | None:
    """Kind of distribution that a table describes; None if it holds fields.

    Raises:
        ConfigError: it has several, or one that is misspelt.
    """
    known = [key for key in table if key in KINDS]
    if known and len(table) == 1:
        return known[0]
    if known:
        raise ConfigError(f"{field} has {', '.join(map(str, table))}: expected one of {', '.join(KINDS)}")
    if len(table) == 1 and difflib.get_close_matches(str(*table), KINDS, n=1, cutoff=LIKE_A_KIND):
        raise unknown(f"{field} distribution", str(*table), KINDS)
    return None


def _grid_values(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise out_of_range(name, value, f"a list of values, or one of {', '.join(KINDS)}")
    values: Sequence[Any] = value  # pyright: ignore[reportUnknownVariableType]
    if not values:
        raise ConfigError(f"{name} is an empty list: expected one value or more")
    texts = [json.dumps(item) for item in values]
    for text in texts:
        if texts.count(text) > 1:
            raise ConfigError(f"{name} has {short(text)} {texts.count(text)} times: expected each value once")
    return tuple(values)


def _seeds(given: Any) -> tuple[int, ...]:
    if isinstance(given, list | tuple):
        several: Sequence[Any] = given  # pyright: ignore[reportUnknownVariableType]
        if not several or len(several) > MOST_SEEDS:
            raise out_of_range("seeds", list(several), f"one to {MOST_SEEDS} seeds")
        for seed in several:
            check_count("seeds", seed, 0, LARGEST_SEED)
            if several.count(seed) > 1:
                raise ConfigError(f"seeds has {seed} {several.count(seed)} times: expected each seed once")
        return tuple(several)
    check_count("seeds", given, 1, MOST_SEEDS, "a list of seeds, or a number of them")
    return tuple(range(given))


def _halving(content: Mapping[str, Any]) -> HalvingCfg | None:
    if "halving" not in content:
        return None
    table = _table(content, "halving")
    for key in table:
        if key not in HALVING_KEYS:
            raise unknown("halving key", key, HALVING_KEYS)
    units = [unit for unit in ("env_steps", "iterations") if unit in table]
    if len(units) != 1:
        raise ConfigError(f"halving has {' and '.join(units) or 'no rungs'}: expected env_steps or iterations, a list")
    (unit,) = units
    rungs = table[unit]
    if not isinstance(rungs, list | tuple) or not rungs:
        raise out_of_range(f"halving.{unit}", rungs, "a list of one rung or more")
    given: Sequence[Any] = rungs  # pyright: ignore[reportUnknownVariableType]
    for rung in given:
        check_count(f"halving.{unit}", rung, 1, 2**63 - 1)
    if list(given) != sorted(set(given)):
        raise out_of_range(f"halving.{unit}", list(given), "ascending rungs")
    eta = table.get("eta", 3)
    check_count("halving.eta", eta, 2, 1000)
    return HalvingCfg(unit, tuple(given), eta)


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the file, one level deep, with dotted field names: {"vary.algo.lr": [0.1]}."""
    out: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            inner: Mapping[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
            out |= {f"{key}.{name}": item for name, item in _flat(inner, key).items()}
        else:
            out[key] = value
    return {
        name: {item.kind: list(item.values)} if isinstance(item, Distribution) else item for name, item in out.items()
    }
