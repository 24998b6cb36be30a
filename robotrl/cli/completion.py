"""Shell completion: scripts for bash, zsh and fish, which ask `robotrl --complete WORDS...` for the candidates.

Candidates come from the tables of the registry and the arguments of the commands at the moment of completion, without
torch, so that they are never out of date and take a fraction of a second. Where there are none, the shell completes
file names.
"""

from __future__ import annotations

import dataclasses
import importlib
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from robotrl.cli.sim_fields import sim_fields
from robotrl.errors import unknown

SCRIPTS = {
    "bash": """\
_robotrl() {
    local IFS=$'\\n'
    COMPREPLY=($(robotrl --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace
    return 0
}
complete -o default -F _robotrl robotrl
""",
    "zsh": """\
#compdef robotrl
_robotrl() {
    local -a found
    found=("${(@f)$(robotrl --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then
        compadd -- "${found[@]}"
    else
        _files
    fi
}
if [[ "${funcstack[1]}" == _robotrl ]]; then
    _robotrl "$@"
else
    compdef _robotrl robotrl
fi
""",
    "fish": """\
complete -c robotrl -a '(robotrl --complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
""",
}
POSITIONAL, FIXED = (get_args(marked)[1] for marked in (tyro.conf.Positional[int], tyro.conf.Fixed[int]))
"""Annotations of positional arguments, and of fields without a flag."""
NAMED: Any = type(tyro.conf.arg())
"""Type of the annotation that may give a flag another name than its field's."""
OF_SIMS = ("demos", "driving-log", "eval", "import", "improve", "reward", "train", "video", "view")
"""Commands with the options of the sim that they name, `--sim.FIELD`."""
MAIN_FLAGS = ("--help", "--version", "--completion")
ACTIONS = {
    "train": ("rewards.command", "TrainArgs"),
    "check": ("rewards.command", "CheckArgs"),
    "milestones": ("rewards.process", "MilestoneArgs"),
    "process": ("rewards.process", "ProcessArgs"),
    "judge": ("rewards.process", "JudgeArgs"),
    "relabel": ("rewards.preferences", "RelabelArgs"),
}
"""Actions of `robotrl reward` to module and class of their arguments."""
LOG_ACTIONS = {
    "record": ("driving_log", "RecordArgs"),
    "nuplan": ("driving_log", "NuplanArgs"),
    "waymo": ("driving_log", "WaymoArgs"),
}
"""Likewise of `robotrl driving-log`."""
TRAFFIC_ACTIONS = {
    "clone": ("traffic", "CloneArgs"),
    "rift": ("traffic", "RiftArgs"),
    "self-play": ("traffic", "SelfPlayArgs"),
    "resume": ("traffic", "ResumeArgs"),
    "measure": ("traffic", "MeasureArgs"),
}
"""Likewise of `robotrl traffic`."""

DATASET_ACTIONS = {"merge": ("dataset", "MergeArgs")}
"""Likewise of `robotrl dataset`."""
NEW_KINDS = {"robot": ("new", "NewRobotArgs"), "limits": ("new", "NewLimitsArgs")}
"""Likewise of `robotrl new`."""


def script(shell: str) -> str:
    """Completion script of a shell.

    Raises:
        ConfigError: there is none for this shell.
    """
    if shell not in SCRIPTS:
        raise unknown("--completion", shell, SCRIPTS)
    return SCRIPTS[shell]


class _Flag(NamedTuple):
    """An option of a command."""

    takes_value: bool
    values: tuple[str, ...]
    """Values that can be listed; empty if any other is allowed."""


def candidates(words: Sequence[str], commands: Mapping[str, str]) -> list[str]:
    """Completions of the last of `words`, those before it being complete.

    Args:
        words: what stands after `robotrl`; the last one may be empty.
        commands: name of each command to its module under `robotrl.cli.commands`.
    """
    *before, word = _joined(words) or [""]
    if not before:
        return _starting(word, [*commands, *(MAIN_FLAGS if word.startswith("-") else ())])
    command = before[0]
    if command in MAIN_FLAGS:
        return _starting(word, SCRIPTS if command == "--completion" else ())
    if command not in commands:
        return []
    flags, positionals = _arguments(command, commands[command], before[1:])
    from robotrl.cli.commands.sim_flags import sim_named

    if command in OF_SIMS and (named := sim_named(before[1:])) is not None:
        flags |= {field.flag: _Flag(field.takes_value, field.values) for field in sim_fields(named)}
    last = before[-1]
    if last in flags and flags[last].takes_value:
        return _starting(word, flags[last].values)
    if word.startswith("-"):
        return _starting(word, [*flags, "--help"])
    return _starting(word, positionals)


def _joined(words: Sequence[str]) -> list[str]:
    """Words without the "=" at which bash parts "--flag=value"."""
    return [word for word in (part for given in words for part in _parted(given)) if word != "="]


def _parted(word: str) -> Sequence[str]:
    """ "--flag=value" as flag and value."""
    flag, equals, value = word.partition("=")
    return (flag, value) if equals and flag.startswith("--") else (word,)


def _starting(word: str, names: Any) -> list[str]:
    return sorted({name for name in names if name.startswith(word)})


def _arguments(command: str, module: str, typed: Sequence[str]) -> tuple[dict[str, _Flag], tuple[str, ...]]:
    """Flags of a command, and values of its next positional argument where they can be listed."""
    if command == "train":
        return _of_training(typed)
    tables = {
        "reward": ACTIONS,
        "dataset": DATASET_ACTIONS,
        "driving-log": LOG_ACTIONS,
        "traffic": TRAFFIC_ACTIONS,
        "new": NEW_KINDS,
    }
    actions = tables.get(command)
    if actions is not None:
        if not typed or typed[0] not in actions:
            return {}, tuple(actions)
        module, name = actions[typed[0]]
        return _of_class(getattr(importlib.import_module(f"robotrl.cli.commands.{module}"), name), typed[1:])
    return _of_class(importlib.import_module(f"robotrl.cli.commands.{module}").Args, typed)


def _of_training(typed: Sequence[str]) -> tuple[dict[str, _Flag], tuple[str, ...]]:
    """Flags that all trainings share; those of an algorithm and a policy are known only after their import."""
    from robotrl.cli.commands.train import Resume, RunFlags
    from robotrl.cli.profiles import PROFILES
    from robotrl.config import TrainCfg
    from robotrl.registry import ALGORITHMS, POLICIES, PRESETS, REWARDS, SIMS

    if "--resume" in typed:
        return dict(_flags(Resume)), ()
    parts = {
        "--sim": (*SIMS.names(), *SIMS.families),
        "--algo": ALGORITHMS.names(),
        "--policy": POLICIES.names(),
        "--reward": REWARDS.names(),
        "--profile": PROFILES,
    }
    flags = {name: _Flag(True, tuple(values)) for name, values in parts.items()}
    flags |= {**dict(_flags(RunFlags)), **dict(_flags(TrainCfg)), "--seeds": _Flag(True, ())}
    flags["--help-all"] = _Flag(False, ())
    del flags["--rewards"]  # picked by --reward
    return (flags, ()) if typed else ({**flags, **dict(_flags(Resume))}, tuple(PRESETS.names()))


def _of_class(cls: type, typed: Sequence[str]) -> tuple[dict[str, _Flag], tuple[str, ...]]:
    flags = dict(_flags(cls))
    given = [
        word
        for word, before in zip(typed, ["", *typed], strict=False)
        if not word.startswith("-") and not (before in flags and flags[before].takes_value)
    ]
    named = [(field.name, hint) for field, hint in _fields(cls) if _is_positional(hint)]
    if len(given) >= len(named):
        return flags, ()
    return flags, _values(*named[len(given)])


def _fields(cls: type) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """Fields of a dataclass with their types, annotations of tyro included."""
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        yield field, hints[field.name]


def _is_positional(hint: Any) -> bool:
    return POSITIONAL in _extras(hint)


def _extras(hint: Any) -> tuple[Any, ...]:
    """Annotations of a type."""
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def _flags(cls: type, prefix: str = "") -> Iterator[tuple[str, _Flag]]:
    """Options of a dataclass as tyro names them, those of nested ones with a prefix ("--evaluation.every")."""
    for field, hint in _fields(cls):
        kind, extras = _without_extras(hint), _extras(hint)
        if POSITIONAL in extras or FIXED in extras or kind is Any or isinstance(kind, TypeVar):
            continue
        named = next((extra.name for extra in extras if isinstance(extra, NAMED) and extra.name), field.name)
        name = f"{prefix}{named}".replace("_", "-")
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from _flags(kind, f"{name}.")
        elif any(isinstance(extra, NAMED) and extra.name == "" for extra in extras):
            # it has the name of its group
            yield f"--{prefix.removesuffix('.')}", _Flag(True, _values(field.name, hint))
        elif kind is bool:
            # tyro has one flag for a switch, which changes its default
            switch = f"--{prefix}no-{name[len(prefix) :]}" if field.default is True else f"--{name}"
            yield switch, _Flag(False, ())
        else:
            yield f"--{name}", _Flag(True, _values(name, hint))


def _without_extras(hint: Any) -> Any:
    """A type without annotations, and without None where it is optional."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(hint) in (Union, types.UnionType):
        rest = [option for option in get_args(hint) if option is not type(None)]
        return rest[0] if len(rest) == 1 else hint
    return hint


def _values(name: str, hint: Any) -> tuple[str, ...]:
    """Values of an argument that can be listed: those of its type, or names of a table."""
    from robotrl.registry import METHODS, ROBOTS, SIMS

    kind = _without_extras(hint)
    for option in (kind, *get_args(kind)):
        if get_origin(option) is Literal:
            return tuple(str(value) for value in get_args(option))
    if name == "sim":
        return (*SIMS.names(), *SIMS.families)
    if name == "method":
        return tuple(METHODS.names())
    return tuple(f"{robot}:" for robot in ROBOTS.names()) if name == "robot" else ()
