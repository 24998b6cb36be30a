"""The command line `robotrl`: runs a command, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 the command found a fault in its input, 2 an error that the user can fix, 130 interrupted. Any
other exception is a bug of robotrl: it prints its traceback and a request to report it, and exits with 70.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import NamedTuple

from robotrl import __version__
from robotrl.errors import ConfigError, RobotrlError, short, unknown
from robotrl.registry import EXTRA_OF_MODULE
from robotrl.utils.installation import install_line
from robotrl.utils.native_thread import exit_past_native_threads
from robotrl.utils.safe_path import leave_working_directory


class CommandRow(NamedTuple):
    """A row of the table of commands."""

    module: str
    """Module under `robotrl.cli.commands` whose `main(argv)` runs the command."""
    summary: str


COMMANDS = {
    "quickstart": CommandRow("quickstart", "do it all once: demonstrations, cloning, fine-tuning, export, control"),
    "demos": CommandRow("demos", "record demonstrations of a sim's scripted expert as a dataset"),
    "dataset": CommandRow("dataset", "write several datasets of one robot as one"),
    "driving-log": CommandRow("driving_log", "record a driving log, in which bev/warp drives"),
    "train": CommandRow("train", "train a preset, or resume a run"),
    "sweep": CommandRow("sweep", "train the settings of a file with several seeds, in parallel"),
    "status": CommandRow("status", "how far runs are, from their files alone"),
    "eval": CommandRow("eval", "success of a run, checkpoint or bundle on numbered starts"),
    "view": CommandRow("view", "look at episodes in the browser, or write them as a page or a moving picture"),
    "video": CommandRow("video", "write episodes on held-out starts as a gif or an mp4"),
    "compare": CommandRow("compare", "compare runs over seeds, or judge whether one policy is better than another"),
    "improve": CommandRow("improve", "improve a policy from its robot's logs, or leave it as it is"),
    "export": CommandRow("export", "turn a run into a bundle that needs no torch, and prove that it acts the same"),
    "import": CommandRow("import_policy", "read a published vision-language-action policy strictly, and store it"),
    "inspect": CommandRow("inspect", "describe a bundle, run, checkpoint or dataset, and verify its hashes"),
    "deploy": CommandRow("deploy", "run a bundle at its fixed rate on a robot"),
    "report": CommandRow("report", "evidence from a control log: times, interventions, seams, tracking, replay, MCAP"),
    "build": CommandRow("build", "compile the native runtime: a servo and an inference engine in C++"),
    "serve": CommandRow("serve", "serve a bundle over the network, for robots that infer elsewhere"),
    "traffic": CommandRow("traffic", "clone and fine-tune the traffic of bev/drive, and measure it"),
    "reward": CommandRow("rewards.command", "train a success classifier or a process reward, and judge it"),
    "memory": CommandRow("memory", "how much memory it takes to fine-tune a policy, before it is loaded"),
    "bench": CommandRow("bench", "run a benchmark"),
    "new": CommandRow("new", "write first files of your own: a robot driver with its test, limits of a robot's site"),
    "list": CommandRow("list", "what there is: sims, presets, robots, benches"),
    "doctor": CommandRow("doctor", "what works on this machine, and what to install for the rest"),
}

USER_CAN_MEND = {
    errno.EACCES,
    errno.EBUSY,
    errno.EDQUOT,
    errno.EEXIST,
    errno.EFBIG,
    errno.EIO,
    errno.EISDIR,
    errno.ELOOP,
    errno.EMFILE,
    errno.ENAMETOOLONG,
    errno.ENFILE,
    errno.ENODEV,
    errno.ENOENT,
    errno.ENOMEM,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.ENOTEMPTY,
    errno.ENXIO,
    errno.EPERM,
    errno.EROFS,
    errno.ESTALE,
    errno.ETXTBSY,
    errno.EADDRINUSE,
    errno.EADDRNOTAVAIL,
}
"""System errors of files and ports that are not bugs of robotrl."""
NO_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "Cannot allocate memory",
    "Unable to allocate",
    "bad_alloc",
    "failed to map segment",
)
"""Phrases by which libraries report failed memory allocation in their own exceptions."""
LONGEST = 600
"""Maximum number of characters of an error message, which may quote long input."""
DEFECT = 70
"""Exit code after a traceback (`EX_SOFTWARE`)."""


def usage() -> str:
    """The text of `robotrl --help`."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    return (
        f"robotrl {__version__}: train, fine-tune and deploy robot policies\n\n"
        f"usage: robotrl COMMAND [options]\n\n{rows}\n\n"
        "robotrl COMMAND --help shows the options of a command; robotrl --version prints the version;\n"
        "robotrl --completion bash|zsh|fish prints a script that completes commands, options and names."
    )


def dispatch(argv: Sequence[str]) -> int:
    """Run the command that `argv` names and return its exit code.

    Raises:
        ConfigError: there is no such command.
    """
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if argv[0] in ("-V", "--version"):
        print(f"robotrl {__version__}")
        return 0
    if argv[0] in ("--completion", "--complete"):
        return _complete(argv)
    if argv[0] not in COMMANDS:
        raise unknown("command", argv[0], COMMANDS)
    module = importlib.import_module(f"robotrl.cli.commands.{COMMANDS[argv[0]].module}")
    return module.main(list(argv[1:]))


def _complete(argv: Sequence[str]) -> int:
    """Print a completion script, or for such a script the completions of the words typed so far."""
    from robotrl.cli import completion

    if argv[0] == "--complete":
        found = completion.candidates(argv[1:], {name: row.module for name, row in COMMANDS.items()})
        print(*found, sep="\n", end="\n" if found else "")
        return 0
    if len(argv) != 2:
        raise ConfigError(f"--completion takes one shell: {', '.join(completion.SCRIPTS)}")
    print(completion.script(argv[1]), end="")
    return 0


_IN_CODE = warnings.formatwarning


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    code = _run(argv)
    if argv is None:
        exit_past_native_threads(code)
    return code


def _run(argv: Sequence[str] | None) -> int:
    """Run the command line with all errors turned into an exit code."""
    warnings.formatwarning = _warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # file names and foreign texts may hold characters that the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    if argv is None:  # only as the console script, not when called from a user's program
        leave_working_directory()
    try:
        return dispatch(sys.argv[1:] if argv is None else argv)
    except RobotrlError as error:
        return _fail(str(error))
    except ModuleNotFoundError as error:
        extra = EXTRA_OF_MODULE.get((error.name or "").split(".")[0])
        if extra is None:
            return _defect()
        return _fail(f"this needs the module {error.name!r}: {install_line(extra)}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output is closed (`robotrl list | head`). Python would print another error on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in USER_CAN_MEND:
            return _defect()
        where = f": {error.filename}" if error.filename else ""
        return _fail(f"{error.strerror}{where}")
    except Exception as error:
        if lacks_memory(error):
            return _fail(f"not enough memory ({error or 'MemoryError'}): expected fewer envs, rows or layers")
        return _defect()


def lacks_memory(error: BaseException) -> bool:
    """True if an exception reports failed memory allocation: Python's, numpy's, or C++ ones by their text."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY)


def _defect() -> int:
    """Print the traceback of the present exception, and a request to report it."""
    traceback.print_exc()
    print(
        "this is a defect of robotrl, not of what you typed: please report it with the command and the lines above",
        file=sys.stderr,
    )
    return DEFECT


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format of a warning for users of a command; warnings for programmers also name the code line."""
    if category is UserWarning:
        return f"warning: {message}\n"
    return _IN_CODE(message, category, filename, lineno, line)


def _fail(text: str) -> int:
    print("error: " + short(" ".join(text.split()), LONGEST), file=sys.stderr)
    return 2
