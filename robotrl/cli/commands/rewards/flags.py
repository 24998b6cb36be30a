"""Flags of reward sources: `--reward NAME [NAME ...]` picks them, `--reward.NAME.FIELD` are their settings.

The names are split off before tyro parses, because they decide which settings there are.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from robotrl.errors import ConfigError
from robotrl.registry import REWARDS

if TYPE_CHECKING:
    from robotrl.config import WeightedReward

PICK = "--reward"
SECTION = "reward_settings"
"""Field of the parsed arguments that holds the settings of the sources."""


class RewardFlags(NamedTuple):
    """Reward sources of a command line: how tyro is told of them, and the config that they give."""

    preset: tuple[WeightedReward, ...]
    """Sources of the preset; their values are the defaults."""
    names: tuple[str, ...]
    """Names of the sources of the run."""
    active: bool
    """False for a preset of another package whose config is no `TrainCfg`; it has no reward sources."""

    @classmethod
    def split(cls, preset: Any, argv: Sequence[str]) -> tuple[RewardFlags, list[str]]:
        """Split `--reward NAME [NAME ...]` off the arguments; returns the other arguments as well.

        Args:
            preset: the config whose fields the arguments override.
            argv: the arguments.

        Raises:
            ConfigError: it is given twice or without a name, a name is unknown or given twice, settings are given for a
                source that was not picked, or an old flag is given.
        """
        from robotrl.config import TrainCfg, options_of

        if not isinstance(preset, TrainCfg):
            return cls((), (), False), list(argv)
        _refuse_old(argv, options_of(preset.sim))
        picked, rest = _picked(argv)
        names = tuple(one.name for one in preset.rewards) if picked is None else picked
        _refuse_unpicked(rest, names)
        return cls(preset.rewards, names, True), rest

    @classmethod
    def named(cls, argv: Sequence[str]) -> tuple[RewardFlags, list[str]]:
        """Split `--reward NAME [NAME ...]` off the arguments of a command without a preset.

        Raises:
            ConfigError: see `split`.
        """
        picked, rest = _picked(argv)
        _refuse_unpicked(rest, picked or ())
        return cls((), picked or (), True), rest

    def hidden(self, config: Any) -> Any:
        """The config without its sources, for tyro, which gets them from `fields`."""
        return dataclasses.replace(config, rewards=()) if self.active else config

    def fields(self) -> list[Any]:
        """Fields for the dataclass that tyro parses: `--reward` itself, for the help, and the settings of each source.

        Raises:
            ConfigError: the package of a source cannot be imported.
        """
        if not self.active:
            return []
        message = (
            f"Reward sources, added up by their weights; none: the sim's own reward. Of {', '.join(REWARDS.names())}."
        )
        pick = Annotated[tuple[str, ...], tyro.conf.arg(name="reward", metavar="NAME [NAME ...]", help=message)]
        defaults = {one.name: one for one in self.preset}
        sources = [_source(name, defaults.get(name)) for name in self.names]
        section = dataclasses.make_dataclass("Rewards", sources, frozen=True, kw_only=True)
        section.__doc__ = "Settings of the reward sources."
        return [("reward_names", pick, self.names), (SECTION, Annotated[section, tyro.conf.arg(name="reward")])]

    def restored(self, config: Any, parsed: Any) -> Any:
        """The parsed config with its sources.

        Args:
            config: the parsed config.
            parsed: the parsed arguments, with the fields of `fields`.
        """
        return dataclasses.replace(config, rewards=self.picked_from(parsed)) if self.active else config

    def picked_from(self, parsed: Any) -> tuple[WeightedReward, ...]:
        """The sources with their weights and settings.

        Args:
            parsed: the parsed arguments, with the fields of `fields`.
        """
        from robotrl.config import WeightedReward

        found = [(name, getattr(getattr(parsed, SECTION), _identifier(name))) for name in self.names]
        return tuple(WeightedReward(name, one.weight, one.cfg) for name, one in found)


def _refuse_unpicked(words: Sequence[str], names: Sequence[str]) -> None:
    """Refuse settings of a source that was not picked.

    Raises:
        ConfigError: there are some.
    """
    for word in words:
        name = word.removeprefix(f"{PICK}.").partition(".")[0]
        if word.startswith(f"{PICK}.") and name in REWARDS.rows() and name not in names:
            raise ConfigError(f"{word} is given, and reward {name!r} is not picked: expected {PICK} {name}")


def _picked(argv: Sequence[str]) -> tuple[tuple[str, ...] | None, list[str]]:
    rest: list[str] = []
    found: list[list[str]] = []
    words = list(argv)
    while words:
        flag, equals, value = words[0].partition("=")
        word = words.pop(0)
        if flag != PICK:
            rest.append(word)
            continue
        names = [value] if equals else []
        while not equals and words and not words[0].startswith("-"):
            names.append(words.pop(0))
        if not names or not all(names):
            raise ConfigError(f"{PICK} is given without a name: expected one or more of `robotrl list rewards`")
        found.append(names)
    if len(found) > 1:
        raise ConfigError(f"{PICK} is given {len(found)} times: expected once, with all names")
    for name in found[0] if found else ():
        REWARDS.check(name)
        if found[0].count(name) > 1:
            raise ConfigError(f"{PICK} {name} is given {found[0].count(name)} times: expected once, with a weight")
    return (tuple(found[0]) if found else None), rest


def _refuse_old(argv: Sequence[str], sim: Any) -> None:
    """Refuse the flags by which a success classifier was given before, and name those of now.

    Args:
        argv: the arguments.
        sim: options of the sim; a field `reward` of its own is not the old flag, unless its value is a path.
    """
    own = vars(sim)
    path, ends = None, False
    for here, after in zip(argv, [*argv, ""][1:], strict=True):
        flag, equals, value = here.partition("=")
        flag, value = flag.replace("_", "-"), value if equals else after
        if flag == "--sim.reward" and ("reward" not in own or os.sep in value or Path(value).is_dir()):
            path = value
        ends = ends or (flag == "--sim.reward-ends" and "reward_ends" not in own)
    if path is None and not ends:
        return
    old = " ".join(["--sim.reward"] * (path is not None) + ["--sim.reward-ends"] * ends)
    now = f"{PICK} success {PICK}.success.path {'DIR' if path is None else shlex.quote(path)}"
    raise ConfigError(f"{old} is now {now}{f' {PICK}.success.ends' if ends else ''}")


def _identifier(name: str) -> str:
    return name.replace("-", "_")


def _source(name: str, preset: WeightedReward | None) -> tuple[str, Any]:
    """Field of one source: its weight and its settings, with the preset's values as defaults."""
    weight = Annotated[float, tyro.conf.arg(help="Factor of this source in the sum.")]
    settings = Annotated[REWARDS.load(name) if preset is None else type(preset.cfg), tyro.conf.arg(name="")]
    fields: list[Any] = [
        ("weight", weight, 1.0 if preset is None else preset.weight),
        ("cfg", settings) if preset is None else ("cfg", settings, dataclasses.field(default=preset.cfg)),
    ]
    made = dataclasses.make_dataclass("Source", fields, frozen=True, kw_only=True)
    made.__doc__ = f"Reward source {name}."
    return _identifier(name), Annotated[made, tyro.conf.arg(name=name)]
