"""Jobs on this machine, each a process group of its own that ends with this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from robotrl.jobs.job import Job

_LAUNCH = """
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: the signal comes when the parent is gone
if os.getppid() != parent:
    sys.exit(143)
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(f"{command[0]}: {error.strerror}")
"""
"""Becomes the job's command. On Linux a job is then asked to end when its parent was killed."""


@dataclass(frozen=True)
class LocalPlace:
    """This machine.

    Args:
        slots: number of jobs at the same time.
        folder: working directory of the jobs, to which their logs are relative; None: that of this process.
        environment: environment of the jobs; None: that of this process.
    """

    slots: int
    folder: Path | None = None
    environment: Mapping[str, str] | None = None

    def start(self, job: Job) -> LocalHandle:
        """Start a process; its standard input is empty, its output goes to the log.

        Ctrl-C does not reach it, because it is in a process group of its own: whoever started it passes the signal on.

        Raises:
            OSError: it cannot be started, or the log cannot be written.
        """
        launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *job.command]
        path = job.log if self.folder is None else self.folder / job.log
        with path.open("ab") as log:
            process = subprocess.Popen(
                launch,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                cwd=self.folder,
                env=self.environment,
            )
        return LocalHandle(process)


class LocalHandle:
    """A process on this machine.

    Args:
        process: leader of a process group.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def poll(self) -> int | None:
        """See `Handle.poll`; minus the number of the signal that ended it, as `subprocess` has it."""
        return self._process.poll()

    def stop(self) -> None:
        """See `Handle.stop`."""
        self._process.terminate()

    def kill(self) -> None:
        """See `Handle.kill`. The processes that it started, and that are still in its group, end as well."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
