"""Link between a controller and a robot's process: anonymous shared memory.

The controller creates it and passes it to the robot's process as an open file, so that nothing remains however either
of them ends. It contains two introductions (JSON, written once) and two channels (the latest command, the latest
observation). Both sides stamp their messages with the monotonic clock; a side that stops sending counts as dead.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
import tempfile
import time
import zlib
from enum import IntEnum
from typing import Any

import numpy as np

from robotrl.deploy.bundle import strict
from robotrl.deploy.robots.channel import Channel, Message, channel_bytes
from robotrl.errors import DataError, RobotrlError

MAGIC = b"robotrl1"
MAX_OBSERVATION = 65536
MAX_ACTION = 1024
_INTRODUCTION_BYTES = 1 << 17
_HEADER = struct.Struct("<8sq")
_TEXT = struct.Struct("<II")


class RobotFault(RobotrlError):
    """The robot's process died, stopped answering or reported a fault, or too many ticks in a row were bad."""


class RobotCommand(IntEnum):
    """Kind of a command from the controller."""

    ACT = 1
    """Execute the action `values` according to `mode`."""
    RESET = 2
    """Start episode `episode` from `state_id`; hold until the first ACT."""
    STOP = 3
    """End the process."""


class Status(IntEnum):
    """Kind of a message from the robot."""

    READY = 1
    """`values` is the observation of inner step `tick` of `episode`."""
    LEFT = 2
    """The process ends as commanded."""


_OFFSETS = {"controller": 64, "robot": 64 + _INTRODUCTION_BYTES}
_COMMAND_AT = 64 + 2 * _INTRODUCTION_BYTES
_OBSERVATION_AT = _COMMAND_AT + channel_bytes(MAX_ACTION)
LINK_BYTES = _OBSERVATION_AT + channel_bytes(MAX_OBSERVATION)


class Link:
    """One end of the link. Create it with `create` (controller) or `attach` (robot).

    Attributes:
        commands: channel of the latest command.
        observations: channel of the latest observation.
        controller_pid: id of the process that created the link.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._map = mmap.mmap(handle, LINK_BYTES)
        self._memory = memoryview(self._map)
        self.commands = Channel(self._memory, _COMMAND_AT, MAX_ACTION)
        self.observations = Channel(self._memory, _OBSERVATION_AT, MAX_OBSERVATION)
        self.controller_pid = 0

    @classmethod
    def create(cls) -> Link:
        """Create the shared memory; the robot's process must inherit `handle`."""
        if sys.platform == "linux":
            handle = os.memfd_create("robotrl-link", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                handle = os.dup(file.fileno())
        os.ftruncate(handle, LINK_BYTES)
        link = cls(handle)
        link.controller_pid = os.getpid()
        _HEADER.pack_into(link._memory, 0, MAGIC, link.controller_pid)
        return link

    @classmethod
    def attach(cls, name: str) -> Link:
        """Attach the robot's end.

        Args:
            name: "fd:N", the inherited file.

        Raises:
            DataError: the file is no link.
        """
        kind, _, number = name.partition(":")
        if kind != "fd" or not number.isdigit():
            raise DataError(f"link {name!r}: expected 'fd:NUMBER', as the controller passes it")
        try:
            size = os.fstat(int(number)).st_size
        except OSError as error:
            raise DataError(f"link {name!r}: {error.strerror}") from error
        if size != LINK_BYTES:
            raise DataError(f"link {name!r} has {size} bytes: expected {LINK_BYTES}, both sides of one robotrl version")
        link = cls(int(number))
        magic, link.controller_pid = _HEADER.unpack_from(link._memory, 0)
        if magic != MAGIC:
            raise DataError(f"link {name!r} begins with {magic!r}: expected {MAGIC!r}")
        return link

    @property
    def name(self) -> str:
        """Name for `attach` in the robot's process."""
        return f"fd:{self.handle}"

    def introduce(self, side: str, data: dict[str, Any]) -> None:
        """Write the introduction of "controller" or "robot", once."""
        text = json.dumps(data, allow_nan=False).encode()
        if len(text) > _INTRODUCTION_BYTES - _TEXT.size:
            raise ValueError(f"introduction has {len(text)} bytes: at most {_INTRODUCTION_BYTES - _TEXT.size}")
        at = _OFFSETS[side]
        self._memory[at + _TEXT.size : at + _TEXT.size + len(text)] = text
        _TEXT.pack_into(self._memory, at, len(text), zlib.crc32(text))

    def introduction(self, side: str) -> dict[str, Any] | None:
        """Read the introduction of a side; None if there is none yet (or it is being written)."""
        at = _OFFSETS[side]
        length, checksum = _TEXT.unpack_from(self._memory, at)
        if not 0 < length <= _INTRODUCTION_BYTES - _TEXT.size:
            return None
        text = bytes(self._memory[at + _TEXT.size : at + _TEXT.size + length])
        return strict.loads(text, f"introduction of the {side}") if zlib.crc32(text) == checksum else None

    def close(self) -> None:
        """Unmap and close this end."""
        self.commands = self.observations = Channel(memoryview(b""), 0, 0)
        self._memory.release()
        self._map.close()
        os.close(self.handle)


def now_ns() -> int:
    """Time of the monotonic clock, which all processes of this machine share."""
    return time.monotonic_ns()


def message(
    kind: IntEnum,
    *,
    tick: int,
    episode: int,
    state_id: int,
    values: np.ndarray,
    mode: int = 0,
    reason: int = 0,
    echo: int = 0,
    lost_ns: int = 0,
    stamp_ns: int | None = None,
) -> Message:
    """Create a message, stamped with the time of a measurement or the current time."""
    stamp = time.monotonic_ns() if stamp_ns is None else stamp_ns
    return Message(stamp, tick, episode, state_id, int(kind), mode, reason, echo, lost_ns, values)
