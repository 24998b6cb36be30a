"""Parses arguments into a dataclass with tyro, and shortens its framed error messages to one line."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from robotrl.errors import ConfigError, nearest, out_of_range, unknown
from robotrl.spec.json_fields import LARGEST_INT, counted_iterations, renamed_field, renamed_value

T = TypeVar("T")


def parse(make: type[T] | Callable[..., T], command: str, argv: Sequence[str], default: T | None = None) -> T:
    """Parse `argv` into an instance of a dataclass.

    Args:
        make: the dataclass (or a function that returns one); field docstrings become the help.
        command: command before the arguments, for messages ("robotrl eval").
        argv: the arguments.
        default: an instance whose values are the defaults.

    Raises:
        ConfigError: the arguments are invalid; one line.
        SystemExit: code 0 after help was asked for and printed.
    """
    import tyro

    given: dict[str, Any] = {} if default is None else {"default": default}

    def run(args: Sequence[str]) -> T:
        return tyro.cli(make, prog=command, args=list(args), config=(tyro.conf.FlagCreatePairsOff,), **given)

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return run(argv)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        text = one_line(said.getvalue())
    # tyro stops at a positional argument that an unknown option consumed, and does not name the option
    if re.match(r"[^-]\S* lacks its value", text):
        text = _misspelt(argv, run) or text
    raise ConfigError(f"{text}; see {command} --help")


def _misspelt(argv: Sequence[str], run: Callable[[Sequence[str]], object]) -> str | None:
    """Message about options of `argv` that the help does not list; None if it lists all."""
    page = io.StringIO()
    with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit):
        run(["--help"])
    known = re.findall(r"--[\w.-]+", page.getvalue())
    typed = [token.split("=")[0] for token in argv if token.startswith("--") and token != "--"]
    wrong = [option for option in typed if option.replace("_", "-") not in known]
    return _unknown(wrong, known) if wrong else None


def one_line(framed: str) -> str:
    """Content of a framed tyro error as one line, with the nearest valid choice."""
    sections = _sections(framed)
    text = " ".join(line.strip() for line in sections[0])
    for section in sections:
        if section and (found := re.match(r"Unrecognized options:(.*)", section[0].strip())):
            tokens = [*found[1].split(","), *section[1:]]
            return _unknown_options([token.strip() for token in tokens if token.strip()], sections)
    if found := re.match(r"invalid choice '(.*?)' for argument '(.*?)'\. Expected one of \((.*)\)", text):
        value, option, choices = found[1], found[2], re.findall(r"'([^']*)'", found[3])
        close = nearest(value, choices)
        new = renamed_value(option.lstrip("-").replace("-", "_"), value)
        hint = f"it is now {new}; " if new else f"did you mean {close!r}? " if close else ""
        return f"{option} {value!r} is unknown: {hint}known: {', '.join(choices)}"
    if found := re.match(r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)", text):
        return f"{found[1]} is {found[2]}: expected a whole number"
    if found := re.match(r"Error parsing (\S+): could not convert string to float: (.*)", text):
        return f"{found[1]} is {found[2]}: expected a number"
    if found := re.match(r"Error parsing (\S+): no type matching (\S+) could be instantiated from \[(.*?)\]\.", text):
        return f"{found[1]} is {found[3]}: expected {_of_types(found[2])}"
    if found := re.match(r"Missing value for argument '(.*?)'", text):
        return f"{found[1]} lacks its value"
    if text.startswith("Missing from"):
        # Names are indented by four columns, their help by more.
        names = [line.split()[0] for line in sections[0][1:] if re.match(r" {4}\S", line)]
        return f"missing: {', '.join(names)}"
    return text.rstrip(".") or "the arguments do not fit"


TYPES = {"INT": "a whole number", "FLOAT": "a number", "PATH": "a path", "STR": "text"}
"""tyro's names of types, as the user is told of them."""


def _of_types(names: str) -> str:
    """Expectation of a value that may be of several types, by tyro's text: "{None}|FLOAT", "{a,b}|INT"."""
    parts = [name for name in names.split("|") if name != "{None}"]
    return " or ".join(TYPES.get(name, name.strip("{}").replace(",", ", ")) for name in parts)


def _sections(framed: str) -> list[list[str]]:
    """Lines inside the frame, split at its rules; indentation is kept.

    If stdout is not UTF-8, tyro draws no frame: the title is the first line, with a rule below it.
    """
    sections: list[list[str]] = [[]]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", framed).splitlines()
    start = next((number for number, line in enumerate(plain) if line.startswith("╭")), None)
    plain = plain[2:] if start is None else plain[start:]  # warnings may precede the frame
    for raw in plain:
        line = re.sub(r"^(│ |  )|\s*│?$", "", raw)
        if not line.strip() or line[0] in "╭╰":
            continue
        if set(line.strip()) <= {"─", "-"}:
            sections.append([])
        else:
            sections[-1].append(line)
    return sections


def _unknown_options(tokens: list[str], sections: list[list[str]]) -> str:
    options = [token.split("=")[0] for token in tokens if token.startswith("-")]
    if not options:
        return f"unexpected argument {tokens[0]!r}"
    # tyro lists similar options, and missing ones; the rest of the frame only mentions --help.
    listed = re.findall(r"--[\w.-]+", " ".join(" ".join(section) for section in sections))
    return _unknown(options, listed)


RENAMED_OPTIONS = {"--clumsiness": "--episode-noise"}
"""Former options of commands without a config, and their present names."""


def _unknown(options: Sequence[str], known: Sequence[str]) -> str:
    if new := RENAMED_OPTIONS.get(options[0]):
        return f"unknown option {', '.join(options)}: it is now {new}"
    field = options[0].lstrip("-").replace("-", "_")
    if new := renamed_field(field):
        unit = ", in env steps (an iteration: sim.num-envs times algo.num-steps)" if counted_iterations(field) else ""
        return f"unknown option {', '.join(options)}: it is now --{new.replace('_', '-')}{unit}"
    close = nearest(options[0], [name for name in known if name not in (*options, "--help")])
    hint = f": did you mean {close}?" if close else ""
    return f"unknown option {', '.join(options)}{hint}"


def run_action(
    argv: Sequence[str], usage: str, actions: Mapping[str, Callable[[Sequence[str]], int]], what: str = "action"
) -> int:
    """Run the action that the first argument names, with the others; without one, or for help, print the usage.

    Args:
        argv: arguments of the command.
        usage: the command's help.
        actions: functions by the name of the action; they return the exit code.
        what: the noun for an action, in errors.

    Raises:
        ConfigError: there is no such action.
    """
    if not argv or argv[0] in ("-h", "--help"):
        print(usage)
        return 0
    if argv[0] not in actions:
        raise unknown(what, argv[0], actions)
    return actions[argv[0]](argv[1:])


def at_least(option: str, value: float, low: float) -> None:
    """Check that a number is at least `low`.

    Raises:
        ConfigError: it is smaller, or not a number.
    """
    if not value >= low:
        raise out_of_range(option, value, f"{low} or more")


def check_seed(seed: int) -> None:
    """Check that a `--seed` is in the range of the random generators.

    Raises:
        ConfigError: it is negative, or has more than 63 bits.
    """
    at_least("--seed", seed, 0)
    if seed > LARGEST_INT:
        raise out_of_range("--seed", seed, f"{LARGEST_INT} or less")
