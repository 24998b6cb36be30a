"""Flags of a sim: `--sim NAME` names it, `--sim.FIELD VALUE` sets an option of its config."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from robotrl.cli.commands.parsing import parse
from robotrl.errors import ConfigError, short
from robotrl.registry import SIMS, sim_options
from robotrl.spec.sim_options import SimOptions, changed_fields

T = TypeVar("T")
PREFIX = "--sim."


def split_flags(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Words of the `--sim.FIELD` flags with their values, and all other words."""
    ours, others = list[str](), list[str]()
    into = others
    for word in argv:
        if word.startswith("--"):
            into = ours if word.startswith(PREFIX) else others
        into.append(word)
    return ours, others


def refuse_old_flags(command: str, argv: Sequence[str]) -> None:
    """Answer the flags of version 0.1, `--sim.name`, `--sim.options` and `--options`, with the present ones.

    Raises:
        ConfigError: one of them is given.
    """
    for number, word in enumerate(argv):
        flag, equals, first = word.partition("=")
        values = list(itertools.takewhile(lambda value: not value.startswith("--"), argv[number + 1 :]))
        values = [first, *values] if equals else values
        if flag == "--sim.name":
            raise ConfigError(f"unknown option --sim.name: it is now --sim {' '.join(values[:1]) or 'NAME'}")
        if flag in ("--sim.options", "--options"):
            new = [f"{PREFIX}{name.replace('_', '-')} {value}" for name, _, value in (v.partition("=") for v in values)]
            instead = short(" ".join(new)) or f"{PREFIX}FIELD VALUE"
            raise ConfigError(f"unknown option {flag}: it is now {instead}; see {command} --help")


def sim_named(argv: Sequence[str]) -> str | None:
    """Sim named by `--sim NAME` or by a positional argument; None if there is none."""
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag == "--sim":
            return value if equals else next(words, None)
        if word in SIMS.rows() or word.startswith(tuple(SIMS.families)):
            return word
    return None


def parse_with_sim(
    make: type[T], command: str, argv: Sequence[str], options: Callable[[T], SimOptions]
) -> tuple[T, dict[str, Any]]:
    """Parse a command's arguments, and the flags of the sim that they name.

    Args:
        make: dataclass of the command's arguments.
        command: command before the arguments, for messages.
        argv: the arguments.
        options: the sim's config before the flags, from the parsed arguments.

    Returns:
        The arguments, and the options that the flags changed, by name.

    Raises:
        ConfigError: the arguments are invalid; one line.
        SystemExit: code 0 after help was asked for and printed.
    """
    refuse_old_flags(command, argv)
    ours, others = split_flags(argv)
    with _help_of_sim(command, argv):
        args = parse(make, command, others)
    if not ours:
        return args, {}
    before = options(args)
    return args, changed_fields(parse_options(before, command, ours), before)


def options_at(path: Path | None, sim: str | None) -> SimOptions:
    """A sim's config before flags: that of the run or bundle at a path, or of a sim by its name.

    Raises:
        ConfigError: neither is given, or nothing says which sim it is.
        DataError: nothing readable is at the path.
    """
    if path is None:
        if sim is None:
            raise ConfigError("missing: --sim, a name from robotrl list sims")
        return sim_options(sim)
    from robotrl.api.evaluation import sim_of

    return sim_options(*sim_of(path, sim))


def parse_options(before: SimOptions, command: str, words: Sequence[str]) -> SimOptions:
    """A sim's config with the flags `--sim.FIELD` applied.

    Raises:
        ConfigError: an unknown flag or an invalid value; one line.
    """
    flags = dataclasses.make_dataclass("SimFlags", [("sim", Any, dataclasses.field(default=before))], frozen=True)
    flags.__doc__ = "Options of the sim."
    parsed: Any = parse(flags, command, words)
    return parsed.sim


@contextlib.contextmanager
def _help_of_sim(command: str, argv: Sequence[str]) -> Generator[None]:
    """Add the sim's flags to a printed help."""
    try:
        yield
    except SystemExit as stop:
        name = sim_named(argv)
        if stop.code in (0, None) and name is not None:
            with contextlib.suppress(ConfigError, SystemExit):
                parse_options(sim_options(name), f"{command} ... --sim {name}", ["--help"])
        raise


SimName = Annotated[str | None, tyro.conf.arg(metavar="SIM")]
"""Type of a command's optional `--sim NAME`."""
