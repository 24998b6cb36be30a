"""Plan of a sweep: its settings with the drawn values, its seeds, and the file that it came from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from robotrl import config as configs
from robotrl.config import TrainCfg
from robotrl.errors import ConfigError, DataError, RobotrlError, short
from robotrl.jobs.training_runs import TrainingRun
from robotrl.sweeps.arguments import MakeConfig, session_arguments, train_arguments
from robotrl.sweeps.file import HalvingCfg, SweepFile
from robotrl.sweeps.search import Values
from robotrl.utils.files import dump_json, read_json, replace_file

PLAN = "sweep.json"
SCHEMA_VERSION = 1
LONGEST_NAME = 100
"""Maximum number of characters of a setting's name, which is the name of a folder."""
EXTENDS = ("samples", "seeds", "vary.")
"""Keys of a file, or their beginnings, that `--extend` may change."""


class SweepSetting(NamedTuple):
    """A setting of a sweep: one run for each seed."""

    name: str
    """Name of its folder: "lr-0.001_num_envs-8"."""
    values: Values
    """The varied fields."""


@dataclass(frozen=True)
class SweepPlan:
    """A sweep that is ready to run."""

    train: dict[str, Any]
    """Fields that all runs have."""
    settings: tuple[SweepSetting, ...]
    seeds: tuple[int, ...]
    halving: HalvingCfg | None
    data: dict[str, Any]
    """The file, see `SweepFile.data`."""

    def fields(self, setting: SweepSetting) -> dict[str, Any]:
        """All fields of a setting's runs."""
        return self.train | setting.values

    def paths(self, out: Path) -> list[Path]:
        """Directories of all runs, begun or not.

        Args:
            out: the sweep's folder.
        """
        return [out / setting.name / f"seed-{seed}" for setting in self.settings for seed in self.seeds]

    @property
    def session_options(self) -> tuple[str, ...]:
        """Options that new and resumed runs are given."""
        return session_arguments(self.train)


class CheckedSetting(NamedTuple):
    """A setting with its config."""

    setting: SweepSetting
    arguments: tuple[str, ...]
    """Arguments of `robotrl train`."""
    config: TrainCfg[Any, Any]

    def run(self, out: Path, seed: int) -> TrainingRun:
        """Run of a seed.

        Args:
            out: the sweep's folder.
            seed: the seed.
        """
        path = out / self.setting.name / f"seed-{seed}"
        return TrainingRun(f"{self.setting.name} seed {seed}", path, (*self.arguments, "--seed", str(seed)))


def plan_of(file: SweepFile, before: Sequence[SweepSetting] = ()) -> SweepPlan:
    """Plan of a sweep file.

    Args:
        file: the file.
        before: settings of an earlier plan, which come first and keep their names.

    Raises:
        ConfigError: the file's values give no plan, or lack a setting of the earlier one.
    """
    wanted = file.settings()
    known = {_key(setting.values): setting for setting in before}
    for setting in before:
        if _key(setting.values) not in map(_key, wanted):
            raise ConfigError(f"FILE lacks the setting {setting.name} of the sweep: expected all, and more")
    named = [*before]
    names = {setting.name.lower() for setting in before}
    for values in wanted:
        if _key(values) not in known:
            name = _free(_name(values), names)
            names.add(name.lower())
            named.append(SweepSetting(name, values))
    return SweepPlan(file.train, tuple(named), file.seeds, file.halving, file.data)


def _key(values: Values) -> str:
    return json.dumps(values, sort_keys=True)


def _name(values: Values) -> str:
    """Folder of a setting: last parts of the fields, where they differ, and the values."""
    last = [field.rpartition(".")[2] for field in values]
    parts = [
        f"{field if last.count(name) > 1 else name}-{_text(value)}"
        for (field, value), name in zip(values.items(), last, strict=True)
    ]
    return re.sub(r"[^\w.+-]+", "-", "_".join(parts))[:LONGEST_NAME].strip(".")


def _text(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _free(name: str, taken: set[str]) -> str:
    number, free = 1, name
    while free.lower() in taken:
        number += 1
        free = f"{name}-{number}"
    return free


def checked(plan: SweepPlan, make: MakeConfig) -> list[CheckedSetting]:
    """Build and check the config of every setting.

    Args:
        plan: the plan.
        make: makes the config of arguments of `robotrl train`.

    Raises:
        RobotrlError: a config is invalid; the setting is named.
    """
    return [_checked(plan, setting, make) for setting in plan.settings]


def _checked(plan: SweepPlan, setting: SweepSetting, make: MakeConfig) -> CheckedSetting:
    from robotrl.utils.devices import device_of  # torch: a plan can be read without it

    try:
        arguments = train_arguments(plan.fields(setting), make)
        config = configs.resolved(make(arguments))
        configs.check(config)
        device_of(config.device)
        if plan.halving is not None:
            _check_halving(plan.halving, config)
    except RobotrlError as error:
        values = ", ".join(f"{field} {short(str(value))}" for field, value in setting.values.items())
        raise type(error)(f"with {values}: {error}") from error
    return CheckedSetting(setting, arguments, config)


def _check_halving(halving: HalvingCfg, config: TrainCfg[Any, Any]) -> None:
    """Check that a run has an evaluation before the first rung, and iterations after the last one.

    Raises:
        ConfigError: it has not, as far as its config says.
    """
    name, first, last = f"halving.{halving.unit}", halving.rungs[0], halving.rungs[-1]
    if not isinstance(config.algo, configs.CountsEnvSteps):
        if halving.unit == "env_steps":
            raise ConfigError(
                f"{name} is {list(halving.rungs)} and {type(config.algo).__name__} counts no env steps: expected"
                " halving.iterations"
            )
        every = configs.DEFAULT_EVERY if config.evaluation.every is None else config.evaluation.every
        if config.evaluation.episodes and not 0 < every <= first:
            raise ConfigError(
                f"{name} begins at {first} and evaluation.every is {every}: expected an evaluation before"
            )
        return
    length = config.algo.num_steps * config.sim.num_envs
    step = 1 if halving.unit == "env_steps" else length
    if config.algo.env_steps and last * step >= config.algo.env_steps:
        raise ConfigError(
            f"{name} ends at {last} and algo.env_steps is {config.algo.env_steps}: expected rungs below the budget"
        )
    evaluation = config.evaluation
    every = evaluation.every_env_steps
    if every is None:
        every = (configs.DEFAULT_EVERY if evaluation.every is None else evaluation.every) * length
    if evaluation.episodes and not 0 < every <= first * step:
        raise ConfigError(
            f"{name} begins at {first} and the first evaluation comes after {every:,} env steps: expected one before"
            " the first rung, evaluation.every_env_steps"
        )


def save_plan(out: Path, plan: SweepPlan) -> None:
    """Store a plan.

    Raises:
        OSError: it cannot be written.
    """
    halving = None if plan.halving is None else plan.halving.__dict__
    data = {
        "schema_version": SCHEMA_VERSION,
        "file": plan.data,
        "train": plan.train,
        "settings": [setting._asdict() for setting in plan.settings],
        "seeds": list(plan.seeds),
        "halving": halving,
    }
    replace_file(out / PLAN, dump_json(data))


def load_plan(out: Path) -> SweepPlan | None:
    """Stored plan of a sweep's folder; None if there is none.

    Raises:
        DataError: the plan is damaged.
    """
    path = out / PLAN
    if not path.exists():
        return None
    found = read_json(path, "sweep plan", SCHEMA_VERSION)
    try:
        halving: Any = found["halving"]
        return SweepPlan(
            dict(found["train"]),
            tuple(SweepSetting(str(one["name"]), dict(one["values"])) for one in found["settings"]),
            tuple(map(int, found["seeds"])),
            None if halving is None else replace(HalvingCfg(**halving), rungs=tuple(map(int, halving["rungs"]))),
            dict(found["file"]),
        )
    except KeyError as error:
        raise DataError(
            f"sweep plan {path} lacks {error.args[0]!r}: expected it as it was written, or another folder for the sweep"
        ) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"sweep plan {path} is damaged: expected it as it was written, or another folder for the sweep"
            f" ({short(str(error))})"
        ) from error


def continued(stored: SweepPlan, file: SweepFile, extend: bool) -> SweepPlan:
    """Plan of a sweep that goes on.

    Args:
        stored: the plan that it began with.
        file: the file as it is now.
        extend: whether the file may have more values, samples or seeds than before.

    Raises:
        ConfigError: the file has changed; the field is named.
    """
    changed = [name for name in {**stored.data, **file.data} if stored.data.get(name) != file.data.get(name)]
    if not changed:
        return stored
    (name, *_), allowed = sorted(changed, key=lambda name: name.startswith(EXTENDS)), extend and not stored.halving
    if not allowed or not name.startswith(EXTENDS):
        more = "" if stored.halving else ", or --extend for more values, samples or seeds"
        raise ConfigError(
            f"{name} is {_shown(file.data, name)}, and was {_shown(stored.data, name)} when the sweep began: expected"
            f" the same, another --out{more if name.startswith(EXTENDS) else ''}"
        )
    for seed in stored.seeds:
        if seed not in file.seeds:
            raise ConfigError(f"seeds lacks {seed} of the sweep: expected all of {list(stored.seeds)}, and more")
    return plan_of(file, stored.settings)


def _shown(data: Mapping[str, Any], name: str) -> str:
    return short(json.dumps(data[name])) if name in data else "not given"
