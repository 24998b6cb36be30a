"""A job is a process to run; a place starts it and returns a handle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

LOST = 1000
"""Exit code of a job that ended with the node that it ran on, and may be taken up on another one."""


@dataclass(frozen=True)
class Job:
    """A process to run.

    Args:
        key: name of the job, unique in its pool.
        command: argument list.
        log: file that the output is appended to; its folder exists when the job is started.
    """

    key: str
    command: tuple[str, ...]
    log: Path


class Handle(Protocol):
    """A job that was started."""

    def poll(self) -> int | None:
        """Exit code; None while the job runs."""
        ...

    def stop(self) -> None:
        """Ask the job to save and end."""
        ...

    def kill(self) -> None:
        """End the job at once, and wait until it is gone; nothing happens if it has ended."""
        ...


class JobPlace(Protocol):
    """A place where jobs run: this machine, or the nodes of a cluster."""

    @property
    def slots(self) -> int:
        """Number of jobs that run at the same time, 1 or more; it may change."""
        ...

    def start(self, job: Job) -> Handle:
        """Start a job.

        Raises:
            OSError: it cannot be started.
        """
        ...


LOG_TAIL_BYTES = 1 << 16


def last_line(log: Path) -> str:
    """Last line of a job's output that is not blank; "(no output)" if there is none."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "(no output)"
