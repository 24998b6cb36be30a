"""`robotrl train`."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

from robotrl.cli.commands.parsing import parse
from robotrl.errors import ConfigError
from robotrl.registry import PRESETS, SIMS
from robotrl.spec.json_fields import renamed_field

COMMAND = "robotrl train"


@dataclass(frozen=True)
class Resume:
    """Resume a run from its newest undamaged checkpoint."""

    resume: Path
    """Directory of the run."""
    accept_changed_inputs: bool = False
    """Continue although the config, the dataset or another input has changed since the run began."""


def usage() -> str:
    """The text of `robotrl train --help`."""
    from robotrl.cli.profiles import ABOUT

    profiles = "\n".join(f"  {name:<11} {about}" for name, about in ABOUT.items())
    presets = "\n".join(f"  {name}" for name in PRESETS.names())
    return (
        f"usage: {COMMAND} PRESET [--run-dir DIR] [--profile NAME] [--FIELD VALUE ...]\n"
        f"       {COMMAND} --resume RUN [--accept-changed-inputs]\n\n"
        "Train a preset, with any field of its config overridden, or go on with a run that was stopped or killed.\n\n"
        f"presets:\n{presets}\n\nprofiles:\n{profiles}\n\n"
        f"{COMMAND} PRESET --help shows the fields of a preset and their values."
    )


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0
    if any(word.partition("=")[0] in ("--resume", "--accept-changed-inputs") for word in argv):
        args = parse(Resume, COMMAND, argv)
        _loading(f"--resume {args.resume}")
        from robotrl.training import resume

        _tell(resume(args.resume, accept_changed_inputs=args.accept_changed_inputs))
        return 0
    if argv[0].startswith("-"):
        raise ConfigError(f"expected a preset before {argv[0]!r}: {COMMAND} PRESET [options]")
    name = _preset(argv[0])
    if not {"-h", "--help"} & set(argv):
        _loading(name)
    config, run_dir = parse_preset(name, argv[1:])
    from robotrl.training import train

    _tell(train(config, run_dir if run_dir is not None else free_run_dir(name)))
    return 0


def _tell(path: Path) -> None:
    """Print the run's directory; with several processes only the first one, which writes it, does so."""
    if _first():
        print(path)


def _loading(what: str) -> None:
    """Announce slow work before torch is imported, which takes seconds."""
    if _first():
        print(f"{COMMAND} {what}: loading", file=sys.stderr, flush=True)


def _first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _preset(name: str) -> str:
    """The name of a preset as typed.

    Raises:
        ConfigError: it is none; for a sim or an algorithm, the presets that have it.
    """
    if name in PRESETS.rows():
        return name
    if name in SIMS.rows() or name.startswith("gym/"):
        base = name.rpartition("/")[2]
        typed = [preset for preset in PRESETS.names() if preset.startswith(f"{base}-")]
        ways = [*typed, f"gym-ppo --sim.name {name}", f"gym-sac --sim.name {name}"]
        raise ConfigError(f"{name!r} is a sim: expected a preset, one of {', '.join(ways)}")
    if typed := [preset for preset in PRESETS.names() if preset.endswith(f"-{name}")]:
        raise ConfigError(f"{name!r} is an algorithm: expected a preset of it, one of {', '.join(typed)}")
    return PRESETS.check(name)


def _made(name: str) -> Any:
    """The config of a preset.

    Raises:
        ConfigError: the function of an outside package calls a config class with a field that it does not have.
    """
    make = PRESETS.load(name)
    try:
        return make()
    except TypeError as error:
        field = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if field is None:
            raise
        new = renamed_field(f"algo.{field[1]}") or renamed_field(field[1])
        hint = f": it is now {new.rpartition('.')[2]!r}" if new else ""
        raise ConfigError(f"preset {name!r} sets the unknown field {field[1]!r}{hint} ({make.__module__})") from error


def parse_preset(name: str, argv: Sequence[str]) -> tuple[Any, Path | None]:
    """Config of the preset with the overrides of `argv`, and the run directory if one was given.

    Raises:
        ConfigError: no such preset, no such field, or an invalid value.
    """
    from robotrl.cli.profiles import PROFILES, with_profile

    config = _made(name)
    profile, argv = _profile_of(argv)
    if profile is not None:
        config = with_profile(config, profile)
    # One parser for --run-dir and the preset's fields, so that help lists both and typos are matched against both.
    both = dataclasses.make_dataclass(
        "Train",
        [
            (
                "run_dir",
                Annotated[Path | None, tyro.conf.arg(metavar="DIR", help=f"The run's directory; default runs/{name}.")],
                None,
            ),
            (
                "profile",
                Annotated[
                    str | None,
                    tyro.conf.arg(metavar="NAME", help=f"Settings for a kind of machine: {', '.join(PROFILES)}."),
                ],
                None,
            ),
            ("config", Annotated[_concrete(config), tyro.conf.arg(name="")], dataclasses.field(default=config)),
        ],
        frozen=True,
    )
    both.__doc__ = f"Train the preset {name}."
    parsed: Any = parse(both, f"{COMMAND} {name}", argv)
    _check_policy(config, parsed.config)
    return parsed.config, parsed.run_dir


def _check_policy(preset: Any, config: Any) -> None:
    """Check that no policy settings are given for a run that starts from a stored policy.

    Args:
        preset: the preset's config; a preset of another package may have any type.
        config: the same with the overrides.

    Raises:
        ConfigError: the run starts from a stored policy, and policy settings are given.
    """
    from robotrl.config import TrainCfg
    from robotrl.policies.steered import SteeredCfg

    # a noise actor is a new network around the stored policy
    if not isinstance(config, TrainCfg) or config.init_from is None or isinstance(config.policy, SteeredCfg):
        return
    given = [
        f"{field.name}={getattr(config.policy, field.name)}"
        for field in dataclasses.fields(config.policy)
        if getattr(config.policy, field.name) != getattr(preset.policy, field.name)
    ]
    if given:
        raise ConfigError(
            f"policy.* is given ({', '.join(given)}) beside init_from, whose policy is as it was trained: expected"
            f" --init-changes {given[0]}, if weights do not depend on it, or nothing"
        )


def _profile_of(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Split off `--profile`: the profile's name, and the other arguments, which may override it.

    Raises:
        ConfigError: `--profile` is given twice, or without a name.
    """
    rest, found = list[str](), list[str]()
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag != "--profile":
            rest.append(word)
            continue
        name = value if equals else next(words, "")
        if not name or name.startswith("-"):
            raise ConfigError("--profile is given without a name")
        found.append(name)
    if len(found) > 1:
        raise ConfigError(f"--profile is given {len(found)} times: expected once")
    return (found[0] if found else None), rest


def _concrete(config: Any) -> Any:
    """Type of a config with its type parameters filled in from the values, so that tyro knows the fields' types."""
    cls: Any = type(config)
    hints = get_type_hints(cls)
    filled = {hint: type(getattr(config, name)) for name, hint in hints.items() if isinstance(hint, TypeVar)}
    parameters = getattr(cls, "__parameters__", ())
    return cls[tuple(filled[parameter] for parameter in parameters)] if parameters else cls


def free_run_dir(name: str) -> Path:
    """First free directory of `runs/NAME`, `runs/NAME-2` and so on."""
    path, number = Path("runs", name), 1
    while path.exists():
        number += 1
        path = Path("runs", f"{name}-{number}")
    return path
