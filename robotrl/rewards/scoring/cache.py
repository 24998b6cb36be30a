"""Answers of pictures that were scored before: those in memory."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 16


def picture_key(picture: NDArray[np.uint8]) -> bytes:
    """Hash of a picture (h, w, 3), contiguous; pictures of one service have one shape."""
    # processors have instructions for it: half of blake2's time
    return hashlib.sha256(picture.data).digest()[:KEY_BYTES]


class AnswerCache:
    """Valid answers by the hash of their picture; the least recently used leaves first.

    Args:
        size: number of answers; 0 keeps none.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._rows = OrderedDict[bytes, NDArray[np.float32]]()

    def __len__(self) -> int:
        """Number of answers."""
        return len(self._rows)

    def get(self, key: bytes) -> NDArray[np.float32] | None:
        """Outputs (K,) of the picture with this hash; None if they are not known."""
        row = self._rows.get(key)
        if row is not None:
            self._rows.move_to_end(key)
        return row

    def put(self, key: bytes, outputs: NDArray[np.float32]) -> None:
        """Keep the outputs (K,) of a picture."""
        if self._size:
            self._rows[key] = outputs
            self._rows.move_to_end(key)
            if len(self._rows) > self._size:
                self._rows.popitem(last=False)
