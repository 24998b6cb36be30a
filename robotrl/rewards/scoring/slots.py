"""Pictures in memory that the trainer shares with the worker processes.

The memory has no name in the file system. The kernel frees it with the last process that holds it, however the
processes end, so nothing is left behind and nothing needs to be cleaned up.
"""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.utils.hardware import check_memory


class SlotShape(NamedTuple):
    """Number and size of the slots."""

    slots: int
    height: int
    """Pixels."""
    width: int
    """Pixels."""

    @property
    def picture_bytes(self) -> int:
        """Bytes of one picture."""
        return 3 * self.height * self.width

    @property
    def total_bytes(self) -> int:
        """Bytes of all pictures."""
        return self.slots * self.picture_bytes


class PictureSlots:
    """Slots for pictures, one picture each.

    Args:
        shape: their shape.
        descriptor: file descriptor of the memory, which this object then owns.
        writable: True in the trainer; workers only read.
    """

    def __init__(self, shape: SlotShape, descriptor: int, writable: bool) -> None:
        self.shape = shape
        self.descriptor = descriptor
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._memory = mmap.mmap(descriptor, shape.total_bytes, prot=prot)
        pixels = np.frombuffer(self._memory, np.uint8)
        self.pictures: NDArray[np.uint8] = pixels.reshape(-1, shape.height, shape.width, 3)
        """(S, h, w, 3)."""

    @classmethod
    def reserve(cls, shape: SlotShape) -> PictureSlots:
        """Reserve the memory of the slots.

        Raises:
            ConfigError: they would take more than half of the free memory.
        """
        check_memory(f"service.queue_frames is {shape.slots}", shape.picture_bytes, shape.slots, "fewer")
        descriptor = os.memfd_create("robotrl-pictures", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, shape.total_bytes)
            return cls(shape, descriptor, writable=True)
        except BaseException:
            os.close(descriptor)
            raise

    def close(self) -> None:
        """Release the memory; may be called repeatedly."""
        if self.descriptor >= 0:
            # a mapping cannot be closed while arrays show it
            self.pictures = np.zeros((0, 1, 1, 3), np.uint8)
            self._memory.close()
            os.close(self.descriptor)
            self.descriptor = -1
