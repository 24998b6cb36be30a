"""One writer, one reader, the latest message: a sequence lock over shared memory.

The writer makes the sequence number odd, writes, and makes it even; the reader copies and accepts the copy only if the
number was even, is unchanged, and the checksum over number and content is right. The checksum is what makes this safe
where memory may be written out of order, and against whatever else scribbles there. Nobody ever waits for a lock.
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
    """What travels both ways; each side documents how it uses the fields."""

    stamp_ns: int
    """Monotonic clock (shared by the processes of one machine) when the message was made; of an observation, when it
    was measured."""
    tick: int
    """Counts what the sender does: control ticks, or inner steps."""
    episode: int
    """Serial number of the episode, counted by the controller; 0 before the first."""
    state_id: int
    """Start state of that episode."""
    kind: int
    """A `Command` from the controller, a `Status` from the robot."""
    mode: int
    """A `safety.Mode` from the controller; from the robot, 1 when the task is done."""
    reason: int
    """A `safety.Reason` from the controller; from the robot, inner steps it had to make up for."""
    echo: int
    """From the robot: `tick` of the last command it took. From the controller: unused, 0."""
    lost_ns: int
    """From the robot: simulated time that could not be made up for. From the controller: unused, 0."""
    values: np.ndarray
    """(n,) float32."""


def channel_bytes(max_values: int) -> int:
    """Shared memory that a channel takes, a multiple of 64."""
    return -(-(_HEAD.size + _BODY.size + 4 * max_values) // 64) * 64


class Channel:
    """A place in shared memory for the latest message.

    Args:
        memory: the mapped memory.
        offset: where the channel begins, a multiple of 8.
        max_values: the longest message, in floats.
    """

    def __init__(self, memory: memoryview, offset: int, max_values: int) -> None:
        self._memory = memory
        self._offset = offset
        self._body = offset + _HEAD.size
        self._max_values = max_values
        self.torn = 0
        """Copies that the reader threw away."""

    def write(self, message: Message) -> None:
        """Replace the latest message."""
        values = np.ascontiguousarray(message.values, np.float32)
        if len(values) > self._max_values:
            raise ValueError(f"message has {len(values)} values: the channel takes {self._max_values}")
        memory, at = self._memory, self._offset
        (sequence,) = _SEQUENCE.unpack_from(memory, at)
        # A writer that died in the middle left an odd number; the next even one is ours.
        begun = sequence + 1 if sequence % 2 == 0 else sequence
        body = _BODY.pack(*message[:-1]) + values.tobytes()
        _SEQUENCE.pack_into(memory, at, begun)
        memory[self._body : self._body + len(body)] = body
        done = begun + 1
        checksum = zlib.crc32(body, zlib.crc32(_SEQUENCE.pack(done)))
        struct.pack_into("<II", memory, at + 8, checksum, len(values))
        _SEQUENCE.pack_into(memory, at, done)

    def read(self) -> Message | None:
        """The latest message, or None when there is none yet, or none that is whole after some tries."""
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
