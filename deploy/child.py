"""Child processes of control: their start, and their end in words."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from robotrl.utils.safe_path import safe_environment


def start_child(
    module: str, arguments: Sequence[str], handles: Sequence[int], stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a module of ours in a process that Ctrl-C does not reach, so that its parent ends it in order.

    Args:
        module: the module to run.
        arguments: its arguments.
        handles: open files that it inherits.
        stdin: its standard input, as `subprocess.Popen` takes it.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        env=safe_environment(),
        pass_fds=tuple(handles),
        stdin=stdin,
        start_new_session=True,
    )


def start_program(
    program: Path, name: str, handles: Sequence[int], stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a program of ours as `start_child` starts a module.

    Args:
        program: the file.
        name: name of the process in lists of processes.
        handles: open files that it inherits.
        stdin: its standard input, as `subprocess.Popen` takes it.
    """
    return subprocess.Popen([name], executable=program, pass_fds=tuple(handles), stdin=stdin, start_new_session=True)


def end_of(process: subprocess.Popen[bytes]) -> str:
    """End of a process in words, "was ended by SIGKILL" or "ended with exit code 3"; "" while it runs."""
    code = process.poll()
    if code is None:
        return ""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def wait_or_kill(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """Wait for the end of a process that was told to end, and kill it if it takes longer than `limit_s`."""
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        # SIGKILL also ends a process that is stopped (SIGSTOP)
        process.kill()
        process.wait()
