"""`robotrl train`."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

from robotrl.cli.commands.parsing import parse
from robotrl.errors import ConfigError
from robotrl.registry import PRESETS

COMMAND = "robotrl train"


@dataclass(frozen=True)
class Resume:
    """Go on with a run from its newest whole checkpoint."""

    resume: Path
    """The run's directory."""
    accept_changed_inputs: bool = False
    """Go on although the config, the dataset or another input is not what the run began with."""


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
    name = PRESETS.check(argv[0])
    if not {"-h", "--help"} & set(argv):
        _loading(name)
    config, run_dir = parse_preset(name, argv[1:])
    from robotrl.training import train

    _tell(train(config, run_dir if run_dir is not None else free_run_dir(name)))
    return 0


def _tell(path: Path) -> None:
    """Print the run's directory; of processes that learn together, the first, which writes it, does."""
    if _first():
        print(path)


def _loading(what: str) -> None:
    """Say that something goes on before torch is imported, which takes seconds."""
    if _first():
        print(f"{COMMAND} {what}: loading", file=sys.stderr, flush=True)


def _first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def parse_preset(name: str, argv: Sequence[str]) -> tuple[Any, Path | None]:
    """The preset's config with the overrides of `argv`, and the run directory if one was given.

    Raises:
        ConfigError: no such preset, no such field, or a value that does not fit.
    """
    from robotrl.cli.profiles import PROFILES, with_profile

    config = PRESETS.load(name)()
    profile, argv = _profile_of(argv)
    if profile is not None:
        config = with_profile(config, profile)
    # One parser for our option and the preset's fields, so that help lists both and typos are matched against both.
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
    """Refuse settings of a policy that would not be built.

    Args:
        preset: its config; of a preset that others brought along, whatever it is.
        config: the same with what was given.

    Raises:
        ConfigError: the run starts from a stored policy, which is as it is.
    """
    from robotrl.config import TrainCfg
    from robotrl.policies.steered import SteeredCfg

    # a noise actor is built around the stored policy
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
    """The profile that the arguments name, and the other arguments: what it sets, they may change again.

    Raises:
        ConfigError: it is named twice, or not at all behind `--profile`.
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
    """The type of a config, its type parameters filled in from the values, so that tyro knows the fields' types."""
    cls: Any = type(config)
    hints = get_type_hints(cls)
    filled = {hint: type(getattr(config, name)) for name, hint in hints.items() if isinstance(hint, TypeVar)}
    parameters = getattr(cls, "__parameters__", ())
    return cls[tuple(filled[parameter] for parameter in parameters)] if parameters else cls


def free_run_dir(name: str) -> Path:
    """`runs/NAME`, or `runs/NAME-2` and so on where that is taken."""
    path, number = Path("runs", name), 1
    while path.exists():
        number += 1
        path = Path("runs", f"{name}-{number}")
    return path
