"""Window of a raw score, found from the scores that are seen first."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.fn.language_reward import quantile_window, windowed


class CalibratedWindow:
    """Maps raw scores to 0 to 1 by the quantiles of the first `count` of them, and never changes again.

    Models differ in the range of their similarities by an order of magnitude, so that no constant window fits two.

    Args:
        count: number of scores that the window is made from.
        tail: share of them beyond either end, 0 to below 0.5.
        given: a window instead, low and high.
    """

    def __init__(self, count: int, tail: float, given: tuple[float, float] | None = None) -> None:
        self._tail = tail
        self._seen = torch.zeros(0 if given is not None else count)
        self._count = 0
        self.window = given

    def __call__(self, raw: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (n,) in the window, and whether each is valid: none is until the window is found.

        Args:
            raw: (n,) raw scores.
            valid: (n,) bool, raw scores that count.
        """
        if self.window is None:
            some = raw[valid].cpu()[: len(self._seen) - self._count]
            self._seen[self._count : self._count + len(some)] = some
            self._count += len(some)
            if self._count < len(self._seen):
                return torch.zeros_like(raw), torch.zeros_like(valid)
            low, high = quantile_window(self._seen, self._tail)
            self.window = (low, max(high, low + float(np.spacing(np.float32(abs(low) + 1e-6)))))
            return torch.zeros_like(raw), torch.zeros_like(valid)
        return windowed(raw, *self.window), valid

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Window and scores seen so far, for an exact resume."""
        window = np.array([] if self.window is None else self.window, np.float64)
        return {"window": window, "seen": self._seen[: self._count].numpy().copy()}

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore the result of `state`."""
        self._count = len(state["seen"])
        self._seen[: self._count] = torch.from_numpy(state["seen"].copy())
        low_high = [float(value) for value in state["window"]]
        self.window = (low_high[0], low_high[1]) if low_high else None
