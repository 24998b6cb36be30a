"""Frames of a robot's cameras in shared memory: a few slots a camera, each with its time, number and checksum.

The robot writes, and never waits. The servo looks at the newest frame's time alone; the process that infers reads the
pixels. A frame that is overwritten while it is read is noticed and refused.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from robotrl.errors import ConfigError
from robotrl.spec import Spec, is_picture

SLOTS = 6
"""Frames of a camera that are kept; an inference must begin before so many more have come."""
AREA_BYTES = 64 << 20
_NEWEST = struct.Struct("<Q")
_HEAD = struct.Struct("<QqqI")
"""Number of the frame (from 1; 0 while it is written), time of its measurement, episode, checksum of the pixels."""
_ALIGN = 64


class CameraFrame(NamedTuple):
    """Description of a frame."""

    number: int
    """Counted by the camera, from 1."""
    stamp_ns: int
    """Time of its measurement on the machine's monotonic clock."""
    episode: int
    checksum: int
    """CRC-32 of its pixels."""


NO_FRAME = CameraFrame(0, 0, 0, 0)
"""Stands for a frame that is not there."""


class CameraSlots:
    """Slots of one camera.

    Args:
        memory: the mapped memory.
        offset: start of the slots, a multiple of 64.
        name: key of the observation, for errors.
        shape: (h, w, channels) of a frame.

    Attributes:
        slot_bytes: size of a slot; the first one begins 64 bytes after `offset`.
    """

    def __init__(self, memory: memoryview, offset: int, name: str, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._memory = memory
        self.offset = offset
        self._name = name
        self._size = int(np.prod(shape))
        self.slot_bytes = slot_bytes(self._size)

    def write(self, pixels: np.ndarray, stamp_ns: int, episode: int) -> None:
        """Store the newest frame.

        Raises:
            ConfigError: the pixels are not uint8, or have another shape.
        """
        if pixels.dtype != np.uint8 or pixels.shape != self.shape:
            raise ConfigError(
                f"camera {self._name!r} gave {pixels.dtype} {pixels.shape}: expected uint8 {self.shape}, as its spec"
                " says"
            )
        data = np.ascontiguousarray(pixels).tobytes()
        (newest,) = _NEWEST.unpack_from(self._memory, self.offset)
        number = newest + 1
        at = self._at(number)
        _NEWEST.pack_into(self._memory, at, 0)
        self._memory[at + _ALIGN : at + _ALIGN + self._size] = data
        _HEAD.pack_into(self._memory, at, number, stamp_ns, episode, zlib.crc32(data))
        _NEWEST.pack_into(self._memory, self.offset, number)

    def newest(self) -> CameraFrame | None:
        """Description of the newest frame; None if there is none yet."""
        (number,) = _NEWEST.unpack_from(self._memory, self.offset)
        if number == 0:
            return None
        found = CameraFrame(*_HEAD.unpack_from(self._memory, self._at(number)))
        return found if found.number == number else None

    def read(self, number: int) -> np.ndarray | None:
        """(h, w, channels) uint8 pixels of a frame; None if it is gone."""
        at = self._at(number)
        found, _, _, checksum = _HEAD.unpack_from(self._memory, at)
        data = bytes(self._memory[at + _ALIGN : at + _ALIGN + self._size])
        if found != number or number < 1 or zlib.crc32(data) != checksum:
            return None
        return np.frombuffer(data, np.uint8).reshape(self.shape)

    def _at(self, number: int) -> int:
        return self.offset + _ALIGN + number % SLOTS * self.slot_bytes


def slot_bytes(size: int) -> int:
    """Size of a slot for frames of so many bytes, a multiple of 64."""
    return _ALIGN + -(-size // _ALIGN) * _ALIGN


def cameras_of(specs: Mapping[str, Spec], memory: memoryview, offset: int) -> dict[str, CameraSlots]:
    """The cameras among a robot's observations, laid out one after the other.

    Args:
        specs: the robot's observations, in its order.
        memory: the mapped memory.
        offset: start of the area of `AREA_BYTES`.

    Raises:
        ConfigError: the frames do not fit into the area.
    """
    found: dict[str, CameraSlots] = {}
    at = 0
    for name, spec in specs.items():
        if not is_picture(spec):
            continue
        needed = _ALIGN + SLOTS * slot_bytes(int(np.prod(spec.shape)))
        if at + needed > AREA_BYTES:
            raise ConfigError(
                f"camera {name!r} has frames of {spec.shape}: {SLOTS} of them, beside those of {at} bytes before it, do"
                f" not fit into the {AREA_BYTES} bytes of the robot's link"
            )
        found[name] = CameraSlots(memory, offset + at, name, spec.shape)
        at += needed
    return found


def packed_numbers(numbers: list[int]) -> np.ndarray:
    """Whole numbers as (2 n,) float32 that hold their bits, for a channel of floats."""
    return np.frombuffer(np.asarray(numbers, np.int64).tobytes(), np.float32)


def unpacked_numbers(values: np.ndarray) -> list[int]:
    """Inverse of `packed_numbers`."""
    found: list[int] = np.frombuffer(np.ascontiguousarray(values, np.float32).tobytes(), np.int64).tolist()
    return found
