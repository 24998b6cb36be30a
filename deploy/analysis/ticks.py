"""Control log as arrays: read once, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robotrl.deploy.control.log import LOG_BEGINS, START_TICK, array_of, read_log
from robotrl.errors import DataError, short

HEADER_FIELDS = ("bundle_id", "robot", "seed", "control_period_s", "observations", "action", "low", "high")
TICK_FIELDS = (
    "episode",
    "tick",
    "deadline_ns",
    "lateness_ns",
    "age_ns",
    "busy_ns",
    "inference_ns",
    "decision",
    "cursor",
    "obs",
    "policy",
    "sent",
    "mode",
    "reason",
)
_BEGINNING = 256


class LoggedEpisode(NamedTuple):
    """An episode of a log."""

    number: int
    """Serial number, from 1."""
    state_id: int | None
    """Start; None if the episode did not end."""
    success: bool | None
    """None if the episode did not end: the run was stopped, failed, or its log is cut off."""


@dataclass(frozen=True)
class ControlTicks:
    """All ticks of a control log. `N` is their number, `A` the number of action elements.

    Args:
        header: the header.
        records: (N) records of the ticks, in order.
        episodes: the episodes that have ticks, in order.
        fault: reason for which the run ended early; None if it did not.
        cut: the file ends in the middle of a line, which is left out.
        episode: (N,) number of the episode.
        tick: (N,) number of the tick in its episode, in control periods.
        lateness_ns: (N,) from the deadline to the wake-up.
        age_ns: (N,) age of the observation.
        busy_ns: (N,) from the wake-up to the command.
        inference_ns: (N,) from request to chunk; 0 for none.
        decision: (N,) index of the inference that gave the chunk.
        mode: (N,) modes.
        reason: (N,) reasons.
        policy: (N, A) action of the policy; NaN where it gave none.
        has_policy: (N,) whether it gave one.
        sent: (N, A) action that was sent.
        servo_lateness_us: lateness of all servo ticks; empty in older logs.
        start_episode: (M,) number of the episode of each tick of a motion to a start pose; these are none of the N.
        start_tick: (M,) their numbers, in control periods from the begin of the motion.
        start_mode: (M,) their modes.
    """

    header: dict[str, Any]
    records: list[dict[str, Any]]
    episodes: tuple[LoggedEpisode, ...]
    fault: str | None
    cut: bool
    episode: np.ndarray
    tick: np.ndarray
    lateness_ns: np.ndarray
    age_ns: np.ndarray
    busy_ns: np.ndarray
    inference_ns: np.ndarray
    decision: np.ndarray
    mode: np.ndarray
    reason: np.ndarray
    policy: np.ndarray
    has_policy: np.ndarray
    sent: np.ndarray
    servo_lateness_us: np.ndarray
    start_episode: np.ndarray
    start_tick: np.ndarray
    start_mode: np.ndarray

    @property
    def names(self) -> list[str]:
        """Names of the action elements."""
        return list(self.header["action"])

    @property
    def period_s(self) -> float:
        """Control period in seconds."""
        return float(self.header["control_period_s"])

    @property
    def observation_keys(self) -> list[str]:
        """Observations of numbers; those of cameras have frames instead."""
        return [key for key in self.header["observations"] if key in self.records[0]["obs"]]

    @property
    def camera_keys(self) -> list[str]:
        """Observations of cameras."""
        return [key for key in self.header["observations"] if key not in self.records[0]["obs"]]

    def consecutive(self) -> np.ndarray:
        """(N-1,) whether a tick and the next are neighbors: one episode, one control period apart."""
        return (np.diff(self.episode) == 0) & (np.diff(self.tick) == 1)

    def is_flat(self, key: str) -> bool:
        """True if an observation has one number for each name; stacked ones and images have more."""
        first = next((record["obs"][key] for record in self.records if record["obs"][key] is not None), None)
        size = len(self.header["observations"][key])
        return first is not None and len(first) == size and not isinstance(first[0], list)

    def observed(self, key: str, element: int) -> np.ndarray:
        """(N,) one element of a flat observation; NaN where a tick has no observation."""
        out = np.full(len(self.records), np.nan)
        for i, record in enumerate(self.records):
            values = record["obs"][key]
            if values is not None:
                out[i] = float(values[element])
        return out


def read_ticks(path: Path) -> ControlTicks:
    """Read a control log.

    Raises:
        DataError: no control log, one without a tick, or one whose record lacks a field; the record is named.
    """
    what = f"log {short(repr(str(path)))}"
    cut = _check_beginning(path, what)
    header, records = read_log(path)
    for field in HEADER_FIELDS:
        if field not in header:
            raise DataError(f"{what}: the header has no {field!r}: not a log of `robotrl deploy`")
    ticks = [record for record in records if record.get("kind") == "tick"]
    if not ticks:
        raise DataError(f"{what} holds no tick: the run ended before its first one")
    started = [record for record in records if record.get("kind") == START_TICK]
    size = len(header["action"])
    for record in (*ticks, *started):
        _check_tick(record, size, header["observations"], what)
    ends = {record["episode"]: record for record in records if record.get("kind") == "episode"}
    faults = [str(record["text"]) for record in records if record.get("kind") in ("fault", "stopped")]
    numbers = list(dict.fromkeys(int(record["episode"]) for record in ticks))

    def column(field: str, of: list[dict[str, Any]] = ticks) -> np.ndarray:
        return np.asarray([record[field] for record in of], np.int64)

    has_policy = np.asarray([record["policy"] is not None for record in ticks])
    absent = np.full(size, np.nan, np.float32)
    servo = [late for record in ticks for late in record.get("servo_lateness_us", ())]
    return ControlTicks(
        header=header,
        records=ticks,
        episodes=tuple(_episode(number, ends.get(number)) for number in numbers),
        fault=faults[-1] if faults else None,
        cut=cut,
        episode=column("episode"),
        tick=column("tick"),
        lateness_ns=column("lateness_ns"),
        age_ns=column("age_ns"),
        busy_ns=column("busy_ns"),
        inference_ns=column("inference_ns"),
        decision=column("decision"),
        mode=column("mode"),
        reason=column("reason"),
        policy=np.stack([absent if r["policy"] is None else array_of(r["policy"]) for r in ticks]),
        has_policy=has_policy,
        sent=np.stack([array_of(record["sent"]) for record in ticks]),
        servo_lateness_us=np.asarray(servo, np.float64),
        start_episode=column("episode", started),
        start_tick=column("tick", started),
        start_mode=column("mode", started),
    )


def _check_beginning(path: Path, what: str) -> bool:
    """Check the first and look at the last byte; returns whether the last line is cut off."""
    try:
        with path.open("rb") as file:
            first = file.read(_BEGINNING)
            file.seek(0, 2)
            size = file.tell()
            file.seek(max(size - 1, 0))
            last = file.read(1)
    except OSError as error:
        raise DataError(f"{what} cannot be read: {error.strerror}") from error
    if not first:
        raise DataError(f"{what} is empty: expected a log of `robotrl deploy --log`")
    if not LOG_BEGINS.match(first):
        raise DataError(f"{what} is no control log: expected the JSON lines of `robotrl deploy --log`")
    return last != b"\n"


def _check_tick(record: dict[str, Any], size: int, observations: dict[str, list[str]], what: str) -> None:
    """Check the fields of a tick and the sizes of its arrays."""
    for field in TICK_FIELDS:
        if field not in record:
            raise DataError(f"{what}: tick {_name(record)} has no {field!r}")
    for field in ("policy", "sent"):
        values = record[field]
        if values is not None and len(values) != size:
            raise DataError(f"{what}: tick {_name(record)}: {field} has {len(values)} numbers: expected {size}")
    missing = [key for key in observations if key not in {**record["obs"], **record.get("frames", {})}]
    if missing:
        raise DataError(f"{what}: tick {_name(record)} lacks the observation {missing[0]!r} of the header")


def _name(record: dict[str, Any]) -> str:
    return f"{record.get('episode', '?')}:{record.get('tick', '?')}"


def _episode(number: int, end: dict[str, Any] | None) -> LoggedEpisode:
    if end is None:
        return LoggedEpisode(number, None, None)
    return LoggedEpisode(number, int(end["state_id"]), bool(end["success"]))
