"""RecordRing of records in shared memory, from one writer that never waits to one reader.

Each slot holds its number, a checksum, whole numbers and floats. A reader that falls behind by more than the ring loses
the oldest records, and counts them.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np

_HEAD = struct.Struct("<QII")
"""Number of the record (from 1), checksum, floats in the record."""
NUMBERS = 16
_BODY = struct.Struct(f"<{NUMBERS}q")
_MOST_BYTES = 32 << 20
_MOST_SLOTS, _LEAST_SLOTS = 4096, 64


class RingRecord(NamedTuple):
    """One record."""

    numbers: tuple[int, ...]
    """`NUMBERS` whole numbers."""
    values: np.ndarray
    """(n,) float32."""


def slot_bytes(max_values: int) -> int:
    """Size of a slot, a multiple of 64."""
    return -(-(_HEAD.size + _BODY.size + 4 * max_values) // 64) * 64


def slot_count(max_values: int) -> int:
    """Slots of a ring whose records hold up to so many floats: within 32 MiB, 64 to 4,096."""
    return max(_LEAST_SLOTS, min(_MOST_SLOTS, _MOST_BYTES // slot_bytes(max_values)))


class RecordRing:
    """A ring in shared memory; one process writes, another reads.

    Args:
        memory: the mapped memory.
        offset: start of the ring, a multiple of 8.
        max_values: the longest record, in floats.

    Attributes:
        lost: records that the reader missed.
    """

    def __init__(self, memory: memoryview, offset: int, max_values: int) -> None:
        self._memory = memory
        self._offset = offset
        self._max_values = max_values
        self._slot = slot_bytes(max_values)
        self._slots = slot_count(max_values)
        self._next = 1
        self.lost = 0

    def write(self, numbers: tuple[int, ...], values: np.ndarray) -> None:
        """Append a record; it replaces the oldest one where the ring is full."""
        floats = np.ascontiguousarray(values, np.float32)
        if len(floats) > self._max_values:
            raise ValueError(f"record has {len(floats)} values: the ring takes {self._max_values}")
        at = self._at(self._next)
        body = _BODY.pack(*numbers) + floats.tobytes()
        # 0 while it is being written
        struct.pack_into("<Q", self._memory, at, 0)
        self._memory[at + _HEAD.size : at + _HEAD.size + len(body)] = body
        struct.pack_into("<II", self._memory, at + 8, self._checksum(self._next, body), len(floats))
        struct.pack_into("<Q", self._memory, at, self._next)
        self._next += 1

    def read(self) -> RingRecord | None:
        """The oldest record that was not read yet; None if there is none."""
        while True:
            at = self._at(self._next)
            number, checksum, count = _HEAD.unpack_from(self._memory, at)
            if number < self._next:
                return None
            if number == self._next and count <= self._max_values:
                body = bytes(self._memory[at + _HEAD.size : at + _HEAD.size + _BODY.size + 4 * count])
                if self._checksum(number, body) == checksum:
                    self._next += 1
                    return RingRecord(_BODY.unpack_from(body), np.frombuffer(body, np.float32, count, _BODY.size))
            # overtaken by the writer: the slot after it holds the oldest record
            self._next += 1
            self.lost += 1

    @property
    def is_filling(self) -> bool:
        """True if half of the ring or more was not read yet, so that a reader should hurry."""
        half = self._next + self._slots // 2 - 1
        (number,) = struct.unpack_from("<Q", self._memory, self._at(half))
        return number >= half

    def _at(self, number: int) -> int:
        return self._offset + (number - 1) % self._slots * self._slot

    @staticmethod
    def _checksum(number: int, body: bytes) -> int:
        return zlib.crc32(body, zlib.crc32(struct.pack("<Q", number)))
