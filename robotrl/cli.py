"""The command line `robotrl`: finds the command, runs it, and turns what went wrong into one line and an exit code.

Exit codes: 0 done, 1 the command found a fault in what it looked at, 2 the user can mend it, 130 interrupted. An
exception that is none of those is a defect of robotrl and shows its traceback.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import NamedTuple

from robotrl import __version__
from robotrl.errors import RobotrlError, unknown
from robotrl.registry import EXTRA_OF_MODULE
from robotrl.safe_path import leave_working_directory


class Command(NamedTuple):
    """A row of the table of commands."""

    module: str
    """Module under `robotrl.commands` whose `main(argv)` runs it."""
    summary: str


COMMANDS = {
    "quickstart": Command("quickstart", "do it all once: demonstrations, cloning, fine-tuning, export, control"),
    "demos": Command("demos", "record demonstrations of a sim's scripted expert as a dataset"),
    "train": Command("train", "train a preset, or resume a run"),
    "eval": Command("eval", "success of a run, checkpoint or bundle on numbered starts"),
    "view": Command("view", "look at episodes in the browser, or write them as a page or a moving picture"),
    "export": Command("export", "turn a run into a bundle that needs no torch, and prove that it acts the same"),
    "import": Command("import_policy", "read a published vision-language-action policy strictly, and store it"),
    "inspect": Command("inspect", "describe a bundle, run, checkpoint or dataset, and verify its hashes"),
    "deploy": Command("deploy", "run a bundle at its fixed rate on a robot"),
    "reward": Command("reward", "train a success classifier or a process reward, and judge it"),
    "memory": Command("memory", "how much memory it takes to fine-tune a policy, before it is loaded"),
    "bench": Command("bench", "run a benchmark"),
    "list": Command("list", "what there is: sims, presets, robots, benches"),
    "doctor": Command("doctor", "what works on this machine, and what to install for the rest"),
}

USER_CAN_MEND = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR}
"""Faults of the file system that are no defect of ours."""


def usage() -> str:
    """The text of `robotrl --help`."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    return (
        f"robotrl {__version__}: train, fine-tune and deploy robot policies\n\n"
        f"usage: robotrl COMMAND [options]\n\n{rows}\n\n"
        "robotrl COMMAND --help shows the options of a command; robotrl --version prints the version."
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
    if argv[0] not in COMMANDS:
        raise unknown("command", argv[0], COMMANDS)
    module = importlib.import_module(f"robotrl.commands.{COMMANDS[argv[0]].module}")
    return module.main(list(argv[1:]))


_IN_CODE = warnings.formatwarning


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    warnings.formatwarning = _warning
    if argv is None:  # as a command of its own, not called by a program of the user's
        leave_working_directory()
    try:
        return dispatch(sys.argv[1:] if argv is None else argv)
    except RobotrlError as error:
        return _fail(str(error))
    except ModuleNotFoundError as error:
        extra = EXTRA_OF_MODULE.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        return _fail(f"this needs the module {error.name!r}: pip install 'robotrl[{extra}]'")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has left (`robotrl list | head`). Python would complain once more on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in USER_CAN_MEND:
            raise
        where = f": {error.filename}" if error.filename else ""
        return _fail(f"{error.strerror}{where}")


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """What a warning looks like to whoever runs a command; those that are for programmers also say where it was."""
    if category is UserWarning:
        return f"warning: {message}\n"
    return _IN_CODE(message, category, filename, lineno, line)


def _fail(text: str) -> int:
    print("error: " + " ".join(text.split()), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
