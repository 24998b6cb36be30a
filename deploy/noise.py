"""Counter-based noise: a pure function of (seed, decision), reproducible on every machine and in any language.

It is used by the runtime, the exporter's golden ticks and the replay of logs. Raw 64-bit words come from Philox4x64-10
(key = seed, counter words 2 and 3 = decision); Box-Muller converts pairs of them to normals. NumPy's own normal sampler
is not used because its stream may change between releases; Philox words do not.
"""

from __future__ import annotations

import numpy as np


class CounterNoise:
    """Standard normal noise of a fixed shape, addressed by decision index.

    Args:
        shape: shape of one draw, e.g. (H, A).
        seed: 0 or more; the Philox key.
    """

    def __init__(self, shape: tuple[int, ...], seed: int) -> None:
        self.shape = shape
        self._size = int(np.prod(shape))
        self._pairs = (self._size + 1) // 2
        self._bits = np.random.Philox(key=seed)
        self._state = self._bits.state

    def draw(self, decision: int) -> np.ndarray:
        """The noise of one decision, float32 of `shape`."""
        state = self._state
        state["state"]["counter"][:] = (0, 0, decision & 0xFFFFFFFFFFFFFFFF, decision >> 64)
        state["buffer_pos"] = 4
        self._bits.state = state
        words = self._bits.random_raw(2 * self._pairs)
        # 53-bit uniforms in (0, 1], so that the logarithm is finite.
        unit = ((words >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53
        radius = np.sqrt(-2.0 * np.log(unit[: self._pairs]))
        angle = (2.0 * np.pi) * unit[self._pairs :]
        normal = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))
        return normal[: self._size].astype(np.float32).reshape(self.shape)
