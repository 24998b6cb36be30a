"""Channel for the latest message from one writer to one reader: a sequence lock in shared memory.

The writer makes the sequence number odd, writes, and makes it even; the reader copies and accepts the copy only if the
number was even, is unchanged, and the checksum over number and content is right. The checksum protects against
reordered memory writes and other corruption. Neither side ever waits for a lock.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np

_SEQUENCE = struct.Struct("<Q")
_HEAD = struct.Struct("<QII")
"""Sequence number, checksum, floats in the message."""
_BODY = struct.Struct("<9q")
RETRIES = 50


class Message(NamedTuple):
    """A command to the robot, or an observation from it; some fields differ by direction."""

    stamp_ns: int
    """Time of the message, or of an observation's measurement, on the machine's monotonic clock."""
    tick: int
    """Counter of the sender: control ticks, or the robot's inner steps."""
    episode: int
    """Serial number of the episode, counted by the controller; 0 before the first."""
    state_id: int
    """Start state of that episode."""
    kind: int
    """A `RobotCommand` from the controller, a `Status` from the robot."""
    mode: int
    """A `safety.Mode` from the controller; from the robot, a `link.EpisodeState`."""
    reason: int
    """A `safety.Reason` from the controller; from the robot, number of inner steps that it caught up."""
    echo: int
    """From the robot: `tick` of the last command it received. From the controller: unused, 0."""
    lost_ns: int
    """From the robot: simulated time that it could not catch up. From the controller: unused, 0."""
    values: np.ndarray
    """(n,) float32 action or observation."""


def channel_bytes(max_values: int) -> int:
    """Size of a channel in shared memory, in bytes, a multiple of 64."""
    return -(-(_HEAD.size + _BODY.size + 4 * max_values) // 64) * 64


class Channel:
    """A channel in shared memory that holds the latest message.

    Args:
        memory: the mapped memory.
        offset: start of the channel, a multiple of 8.
        max_values: the longest message, in floats.
    """

    def __init__(self, memory: memoryview, offset: int, max_values: int) -> None:
        self._memory = memory
        self._offset = offset
        self._body = offset + _HEAD.size
        self._max_values = max_values
        self.torn = 0
        """Number of inconsistent copies that the reader discarded."""

    def write(self, message: Message) -> None:
        """Replace the latest message."""
        values = np.ascontiguousarray(message.values, np.float32)
        if len(values) > self._max_values:
            raise ValueError(f"message has {len(values)} values: the channel takes {self._max_values}")
        memory, at = self._memory, self._offset
        (sequence,) = _SEQUENCE.unpack_from(memory, at)
        # A writer that died while writing left an odd number: continue from it.
        begun = sequence + 1 if sequence % 2 == 0 else sequence
        body = _BODY.pack(*message[:-1]) + values.tobytes()
        _SEQUENCE.pack_into(memory, at, begun)
        memory[self._body : self._body + len(body)] = body
        done = begun + 1
        checksum = zlib.crc32(body, zlib.crc32(_SEQUENCE.pack(done)))
        struct.pack_into("<II", memory, at + 8, checksum, len(values))
        _SEQUENCE.pack_into(memory, at, done)

    def read(self) -> Message | None:
        """Read the latest message; None if there is none yet, or no consistent copy after `RETRIES` tries."""
        for _ in range(RETRIES):
            memory, at = self._memory, self._offset
            sequence, checksum, count = _HEAD.unpack_from(memory, at)
            if sequence == 0:
                return None
            if sequence % 2 == 0 and count <= self._max_values:
                body = bytes(memory[self._body : self._body + _BODY.size + 4 * count])
                (after,) = _SEQUENCE.unpack_from(memory, at)
                if after == sequence and zlib.crc32(body, zlib.crc32(_SEQUENCE.pack(sequence))) == checksum:
                    values = np.frombuffer(body, np.float32, count, _BODY.size)
                    return Message._make((*_BODY.unpack_from(body), values))
            self.torn += 1
        return None
