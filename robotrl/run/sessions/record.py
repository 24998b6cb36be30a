"""Record of a run's present or last session: where it runs, how many iterations it has, and how it ended."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from robotrl.errors import DataError
from robotrl.utils.files import dump_json, read_json, replace_file

NAME = "session.json"
SCHEMA_VERSION = 1
SessionEnd = Literal["", "finished", "stopped", "failed"]
"""End of a session; "" while it goes on, and after a kill."""


class SessionRecord(NamedTuple):
    """A session of a run."""

    started: str
    """Time at which its first iteration began, "2026-11-29T20:15:00Z"."""
    host: str
    process: int
    first: int
    """Iterations that were done before it."""
    iterations: int
    """Iterations of the whole run, if nothing ends it earlier."""
    end: SessionEnd = ""
    why: str = ""
    """Reason of a stop, or the error of a failure."""


def new_session(iterations: int, first: int) -> SessionRecord:
    """Record of a session of this process, which begins now.

    Args:
        iterations: iterations of the whole run.
        first: iterations that were done before.
    """
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return SessionRecord(started, socket.gethostname(), os.getpid(), first, iterations)


def write_session(run: Path, record: SessionRecord) -> None:
    """Write the record of a run's session; only the process that holds the run's lock may.

    Raises:
        OSError: it cannot be written.
    """
    replace_file(run / NAME, dump_json({"schema_version": SCHEMA_VERSION, **record._asdict()}))


def read_session(run: Path) -> SessionRecord | None:
    """Record of a run's present or last session; None for runs of earlier versions, and before its first iteration.

    Raises:
        DataError: the file is damaged.
    """
    path = run / NAME
    if not path.exists():
        return None
    found = read_json(path, "session record", SCHEMA_VERSION)
    kinds = {name: int if name in ("process", "first", "iterations") else str for name in SessionRecord.__annotations__}
    values = {name: found.get(name) for name in kinds}
    for name, value in values.items():
        if type(value) is not kinds[name]:
            raise DataError(f"session record {path} has {name} {value!r}: expected {kinds[name].__name__}")
    if values["end"] not in get_args(SessionEnd):
        raise DataError(f"session record {path} has end {values['end']!r}: expected one of {get_args(SessionEnd)}")
    return SessionRecord(**values)  # pyright: ignore[reportArgumentType]


def has_finished(run: Path) -> bool:
    """True if a run has come to its end, and needs no resume.

    Raises:
        DataError: its session record is damaged.
    """
    record = read_session(run)
    return record is not None and record.end == "finished"
