"""Log of a control run as JSON lines, with all data to replay any tick offline.

The supervisor writes the ticks that the servo records in shared memory, so that no tick waits for the disk. A failing
disk ends the log, not the control.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from robotrl.deploy.bundle import strict
from robotrl.deploy.robots.cameras import CameraFrame
from robotrl.errors import DataError

SCHEMA_VERSION = 1
START_TICK = "start_tick"
"""Kind of the record of a tick of the motion to the start pose."""
LOG_BEGINS = re.compile(rb'\{"kind": "header"')


class Tick(NamedTuple):
    """Record of one control tick."""

    tick: int
    deadline_ns: int
    """Deadline of the tick, from the start of the episode."""
    lateness_ns: int
    """From the deadline to the wake-up."""
    age_ns: int
    """Age of the observation when it was read; negative if its time stamp is in the future."""
    read_ns: int
    """From the wake-up until the observation was read."""
    busy_ns: int
    """From the wake-up until the command was sent."""
    inference_ns: int
    """From the request to the chunk that arrived since the last tick, or that is still waited for; 0 for none."""
    decision: int
    """Index of the inference that gave the chunk; -1 before the first."""
    cursor: int
    """Place of the action in its chunk, from 1; 0 where there is no chunk."""
    observation: np.ndarray
    """The robot's flat observation."""
    policy: np.ndarray | None
    """(A,) action of the policy, in the bundle's order."""
    sent: np.ndarray
    """(A,) action that was sent, in the bundle's order."""
    mode: int
    reason: int
    asked: int
    """Index of the inference that was asked for with this tick's observation; -1 for none."""
    committed: int
    """Number of actions, from this tick's on, that were given to it as committed."""
    frames: tuple[CameraFrame, ...] = ()
    """The newest frame of each camera, in the order of the wiring."""
    recoveries: int = 0
    """Servo ticks with a recovery of the reflex in the control period before this tick."""
    between: np.ndarray | None = None
    """(A,) last action that the reflex had sent since the control tick before; None for none."""


@dataclass
class ControlLog:
    """Writes the log; `path` None writes nothing.

    Attributes:
        error: reason why writing ended early; None if it did not.
    """

    path: Path | None
    error: str | None = None
    _file: IO[str] | None = field(default=None, repr=False)

    def open(self, header: dict[str, Any], kind: str = "header") -> None:
        """Begin the log.

        Args:
            header: its header.
            kind: kind of that line; a log of another sort has its own.

        Raises:
            DataError: the file cannot be made.
        """
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the run, see `close`
        except OSError as error:
            raise DataError(f"log {str(self.path)!r} cannot be written: {error.strerror}") from error
        self.write([{"kind": kind, "schema_version": SCHEMA_VERSION, **header}])

    def write(self, records: list[dict[str, Any]]) -> None:
        """Append records and flush them; a failure is remembered in `error` and ends the log."""
        if self._file is None:
            return
        try:
            for record in records:
                self._file.write(json.dumps(record, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            self.error = f"log {str(self.path)!r} ended early: {error.strerror}"
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            # On a full disk the flush fails again; `error` holds the reason already.
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def tick_record(episode: int, tick: Tick, observations: dict[str, np.ndarray], kind: str = "tick") -> dict[str, Any]:
    """Log record of one tick.

    Args:
        episode: serial number.
        tick: the tick.
        observations: for each observation of the bundle, its indices into the robot's flat observation.
        kind: "tick", or `START_TICK`.
    """
    complete = len(tick.observation) > 0
    return {
        "kind": kind,
        "episode": episode,
        "tick": tick.tick,
        "deadline_ns": tick.deadline_ns,
        "lateness_ns": tick.lateness_ns,
        "age_ns": tick.age_ns,
        "read_ns": tick.read_ns,
        "busy_ns": tick.busy_ns,
        "inference_ns": tick.inference_ns,
        "decision": tick.decision,
        "cursor": tick.cursor,
        "obs": {key: numbers(tick.observation[index]) if complete else None for key, index in observations.items()},
        "policy": None if tick.policy is None else numbers(tick.policy),
        "sent": numbers(tick.sent),
        "mode": tick.mode,
        "reason": tick.reason,
        "asked": tick.asked,
        "committed": tick.committed,
        **({"recoveries": tick.recoveries} if tick.recoveries else {}),
        **({} if tick.between is None else {"between": numbers(tick.between)}),
    }


def numbers(array: np.ndarray) -> Any:
    """Nested lists of floats at full precision; non-finite values become "nan", "inf" or "-inf"."""

    def one(value: Any) -> Any:
        if isinstance(value, list):
            return [one(item) for item in value]
        return value if math.isfinite(value) else str(value)

    return one(np.asarray(array, np.float64).tolist())


def array_of(values: Any) -> np.ndarray:
    """Inverse of `numbers`, float32."""
    return np.asarray(values, dtype=object).astype(np.float64).astype(np.float32)


def read_log(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read the header and the other records of a log; an incomplete last line is ignored.

    Raises:
        DataError: not a log, or of a newer schema; the line is named.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"log {str(path)!r} cannot be read: {error.strerror}") from error
    records: list[dict[str, Any]] = []
    for i, line in enumerate(lines[:-1]):
        records.append(strict.loads(line, f"log {str(path)!r} line {i + 1}"))
    if not records or records[0].get("kind") != "header":
        raise DataError(f"log {str(path)!r} does not begin with a header: not a control log")
    version = records[0].get("schema_version")
    if version != SCHEMA_VERSION:
        raise DataError(f"log {str(path)!r}: schema_version is {version!r}: this robotrl reads {SCHEMA_VERSION}")
    return records[0], records[1:]
