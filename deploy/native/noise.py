"""Noise of the C++ engine: the draw of `CounterNoise`, by the code that the C++ process that infers runs.

Words are the same; sines and logarithms come from another library, so a number may differ from numpy's in its last bit.
A log of either C++ part is computed again with these bits.
"""

from __future__ import annotations

import ctypes

import numpy as np

WORD = (1 << 64) - 1


class NativeNoise:
    """Standard normal noise of a fixed shape, addressed by decision index.

    Args:
        shape: shape of one draw, e.g. (H, A).
        seed: 0 or more, below 2^128; the Philox key.
        library: the engine's library.
    """

    def __init__(self, shape: tuple[int, ...], seed: int, library: ctypes.CDLL) -> None:
        self.shape = shape
        self._key = (seed & WORD, seed >> 64)
        self._library = library

    def draw(self, decision: int) -> np.ndarray:
        """The noise of one decision, float32 of `shape`."""
        noise = np.empty(self.shape, np.float32)
        self._library.engine_noise(*self._key, decision, noise.ctypes.data, noise.size)
        return noise
