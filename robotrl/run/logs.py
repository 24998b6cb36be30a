"""Scalar logs of a run: the same numbers in a JSONL file and as TensorBoard events, consistent with the checkpoints.

Each call to `log` writes one line and one event, and passes both to the operating system before it returns: a kill
loses nothing. On resume both are cut back to the checkpoint's step, so no step occurs twice.
"""

from __future__ import annotations

import importlib
import io
import itertools
import json
import math
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from robotrl.errors import ConfigError, DataError, RobotrlError, check_at_least, short
from robotrl.run.checkpoint_store import warn
from robotrl.utils.files import open_plain, parse_json, replace_file

RESERVED = ("step", "wall_s")
NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""Text for numbers that JSON cannot represent."""
REWARD_GROUPS = ("reward/", "reward_valid/", "reward_age/", "reward_diverges", "sim_return")
"""Beginnings of scalars of reward sources, and of the truth beside them."""
OF_TIME = ("env_steps", "sim_share", "eval_s", "eval_share", "updates", "actor_updates")
"""Scalars that TensorBoard shows among times and counts, beside those of seconds."""
LONGEST_LINE = 1 << 24
"""Largest size of a record in bytes."""


class Appender:
    """A file that grows by whole records: a partial write is undone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, data: bytes) -> None:
        """Append `data`.

        Raises:
            OSError: writing failed; the file is unchanged.
        """
        before = os.fstat(self._descriptor).st_size
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            os.ftruncate(self._descriptor, before)
            raise

    def sync(self) -> None:
        """Wait until the file is on the disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class ScalarLog:
    """Writes `scalars.jsonl` and `tb/` in a run's directory.

    Args:
        directory: the run's directory.
        resume_step: None for a new run; otherwise both files are first cut back to this step (-1: to nothing).
    """

    def __init__(self, directory: Path, resume_step: int | None = None) -> None:
        self._jsonl_path = directory / "scalars.jsonl"
        self._events_path = directory / "tb"
        self._started = time.monotonic()
        try:
            self._events_path.mkdir(exist_ok=True)
            if resume_step is not None:
                self._started -= cut_scalars(self._jsonl_path, resume_step)
                for path in sorted(self._events_path.glob("events.out.tfevents.*")):
                    cut_events(path, resume_step)
            self._jsonl = Appender(self._jsonl_path)
            self._events = Appender(self._events_path / self._events_name())
            self._events.write(_first_events(resume_step))
        except OSError as error:
            raise RobotrlError(f"cannot log to {directory}: {error.strerror}") from error

    def log(self, step: int, scalars: Mapping[str, Any]) -> None:
        """Write one record.

        Args:
            step: training step, 0 or more.
            scalars: numbers by name ("train/loss"); zero-dimensional arrays and tensors are accepted. NaN and
                infinities are written as text ("NaN", "Infinity", "-Infinity"), which keeps each line valid JSON;
                `read_scalars` converts them back.

        Raises:
            ConfigError: a value is no number, or a name is "step" or "wall_s".
            RobotrlError: writing failed.
        """
        check_at_least("log step", step, 0)
        values = {name: _number(name, value) for name, value in scalars.items()}
        line = {"step": int(step), "wall_s": round(time.monotonic() - self._started, 3)}
        text = json.dumps({**line, **{name: _jsonable(value) for name, value in values.items()}}, allow_nan=False)
        try:
            self._jsonl.write(text.encode() + b"\n")
            if values:
                self._events.write(_scalar_event(step, values))
        except OSError as error:
            raise RobotrlError(f"cannot log to {self._jsonl_path.parent}: {error.strerror}") from error

    def sync(self) -> None:
        """Wait until everything logged so far is on the disk."""
        self._jsonl.sync()
        self._events.sync()

    def close(self) -> None:
        """Close the files."""
        self._jsonl.close()
        self._events.close()

    def _events_name(self) -> str:
        # TensorBoard reads files in the order of their names; a counter keeps the order even if the clock is wrong.
        session = len(list(self._events_path.glob("events.out.tfevents.*")))
        return f"events.out.tfevents.{session:010d}.{socket.gethostname()}"


def read_scalars(path: Path) -> list[dict[str, float]]:
    """The records of a `scalars.jsonl`, in order.

    An incomplete last line (after a kill) is skipped; other unreadable lines are skipped with a warning.

    Raises:
        OSError: the file cannot be read.
        DataError: it is not a regular file.
    """
    damaged: list[Damaged] = []
    records = [record for _, record in _records(path, damaged)]
    if damaged:
        warn(f"{path}: {_damage_text(damaged)}; the others are shown")
    return records


def cut_scalars(path: Path, step: int) -> float:
    """Drop the records of a `scalars.jsonl` later than `step`, and an incomplete last line.

    Other unreadable lines are moved to `scalars.damaged.jsonl` in the same folder, with a warning; later lines stay.

    Returns:
        The largest `wall_s` that remains, 0 if there is none.
    """
    if not path.exists():
        return 0.0
    kept, damaged = bytearray(), list[Damaged]()
    wall_s = 0.0
    for line, record in _records(path, damaged):
        if record["step"] <= step:
            kept += line
            wall_s = max(wall_s, record["wall_s"])
    if damaged:
        aside = path.with_name(f"{path.stem}.damaged{path.suffix}")
        appender = Appender(aside)
        for found in damaged:
            appender.write(found.line.rstrip(b"\n") + b"\n")
        appender.sync()
        appender.close()
        warn(f"{path}: {_damage_text(damaged)}; kept in {aside.name}, the lines after it stay")
    replace_file(path, bytes(kept))
    return wall_s


def cut_events(path: Path, step: int) -> None:
    """Drop the records of a TensorBoard event file later than `step`, and an incomplete last record.

    Unreadable records are dropped with a warning; `scalars.jsonl` has the same numbers.
    """
    from google.protobuf.message import DecodeError

    proto = _event_proto()
    raw = path.read_bytes()
    kept, damaged = bytearray(), 0
    position = 0
    while position + 12 <= len(raw):
        (length, check) = struct.unpack_from("<QI", raw, position)
        if check != _checksum(raw[position : position + 8]):
            # the start of the next record is unknown
            warn(f"{path}: cannot be read after byte {position:,} of {len(raw):,}; scalars.jsonl has the numbers")
            break
        end = position + 12 + length + 4
        if end > len(raw):
            break
        try:
            event = proto.Event.FromString(raw[position + 12 : position + 12 + length])
            if not event.HasField("summary") or event.step <= step:
                kept += raw[position:end]
        except DecodeError:
            damaged += 1
        position = end
    if damaged:
        warn(f"{path}: {damaged} records cannot be read and are left out; scalars.jsonl has the numbers")
    replace_file(path, bytes(kept))


class Damaged(NamedTuple):
    """A line that cannot be read."""

    number: int
    """Line number, from 1."""
    line: bytes
    why: str


def _damage_text(damaged: Sequence[Damaged]) -> str:
    first = damaged[0]
    more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
    return f"line {first.number}{more} cannot be read ({first.why})"


def _records(path: Path, damaged: list[Damaged]) -> Iterator[tuple[bytes, dict[str, float]]]:
    """Lines and their records; unreadable ones are added to `damaged`, an incomplete last line is dropped."""
    with open_plain(path, str(path)) as file:
        for number in itertools.count(1):
            line = file.readline(LONGEST_LINE)
            if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                return  # the end, or a line cut by a kill
            try:
                yield line, _record(line)
            except DataError as error:
                damaged.append(Damaged(number, line, str(error)))


def _record(line: bytes) -> dict[str, float]:
    """A line's numbers.

    Raises:
        DataError: `ScalarLog.log` would not write such a line.
    """
    record = parse_json(line, "it")
    if not isinstance(record, dict) or not set(RESERVED) <= set(record):  # pyright: ignore[reportUnknownArgumentType]
        raise DataError("it has no step and wall_s")
    if not (type(record["step"]) is int and record["step"] >= 0):
        raise DataError(f"its step is {short(repr(record['step']))}")
    out: dict[str, float] = {}
    for name, value in record.items():  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, str) and value in NOT_FINITE and name not in RESERVED:
            out[name] = float(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            out[name] = _float(name, value)
        else:
            raise DataError(f"{short(repr(name))} is {short(repr(value))}: expected a number")
    return out


def _float(name: str, value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise DataError(f"{short(repr(name))} is too large for a number") from None


def _event_proto() -> Any:
    # The module is generated and untyped; import it only when there is something to write.
    return importlib.import_module("tensorboard.compat.proto.event_pb2")


def _first_events(resume_step: int | None) -> bytes:
    proto = _event_proto()
    events = [proto.Event(wall_time=time.time(), file_version="brain.Event:2")]
    if resume_step is not None:
        # Tells a TensorBoard that has already shown later steps to drop them.
        start = proto.SessionLog(status=proto.SessionLog.START)
        events.append(proto.Event(wall_time=time.time(), step=resume_step + 1, session_log=start))
    return b"".join(_framed(event) for event in events)


def tag(name: str) -> str:
    """TensorBoard tag of a scalar, in one of the groups `rollout/`, `eval/`, `time/` and `train/`."""
    if name.partition("/")[0] in ("rollout", "eval", "time", "train"):
        return name
    if name in OF_TIME:
        return f"time/{name}"
    for group in ("rollout", "eval"):
        if name.startswith(f"{group}_"):
            return f"{group}/{name.removeprefix(f'{group}_')}"
    if name.startswith(REWARD_GROUPS):
        return f"rollout/{name}"
    if name.endswith(("_s", "_evaluations")):
        return f"time/{name}"
    return f"train/{name.rstrip('.')}"


def _scalar_event(step: int, values: Mapping[str, float]) -> bytes:
    event = _event_proto().Event(wall_time=time.time(), step=step)
    for name, value in values.items():
        event.summary.value.add(tag=tag(name), simple_value=value)
    return _framed(event)


def _checksum(data: bytes) -> int:
    """Masked CRC of a TensorBoard record."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    return masked_crc32c(data)


def _framed(event: Any) -> bytes:
    from tensorboard.summary.writer.record_writer import RecordWriter

    buffer = io.BytesIO()
    RecordWriter(buffer).write(event.SerializeToString())
    return buffer.getvalue()


def _number(name: str, value: Any) -> float:
    if name in RESERVED:
        raise ConfigError(f"scalar name {name!r} is taken by the log itself: choose another")
    if hasattr(value, "detach"):  # torch warns when a tensor with a gradient graph is converted to a number
        value = value.detach()
    try:
        return float("not a number" if isinstance(value, str) else value)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(f"scalar {name!r} is {value!r}: expected a single number") from None


def _jsonable(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
