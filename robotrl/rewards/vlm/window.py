"""Window of a raw score, found from the scores that are seen first."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import ConfigError, out_of_range
from robotrl.fn.language_reward import quantile_window, windowed

NARROWEST = 1e-5
"""Width of a window below which scores differ by rounding alone."""


def check_quantiles(field: str, quantiles: tuple[float, float]) -> None:
    """Check the quantiles of a window.

    Raises:
        ConfigError: they are not two numbers from 0 to 1, the lower one first.
    """
    if len(quantiles) != 2 or not 0.0 <= quantiles[0] < quantiles[1] <= 1.0:
        raise out_of_range(field, tuple(quantiles), "two numbers from 0 to 1, the lower one first")


class CalibratedWindow:
    """Maps raw scores to 0 to 1 by the quantiles of the first `count` of them, and never changes again.

    Models differ in the range of their similarities by an order of magnitude, so that no constant window fits two.

    Args:
        count: number of scores that the window is made from.
        quantiles: quantiles of them at which it begins and ends, 0 to 1.
        given: a window instead, low and high.
        name: name of the source in the registry, for errors.

    Raises:
        ConfigError: the given window is no interval.
    """

    def __init__(
        self,
        count: int,
        quantiles: tuple[float, float],
        given: tuple[float, float] | None = None,
        name: str = "contrast",
    ) -> None:
        if given is not None and not -math.inf < given[0] < given[1] < math.inf:
            raise out_of_range(f"reward.{name}.window", given, "two finite numbers, the lower one first")
        self._name = name
        self._quantiles = quantiles
        self._seen = torch.zeros(0 if given is not None else count)
        self._count = 0
        self.window = given

    def see(self, raw: Tensor) -> None:
        """Take finite raw scores (n,) into account; does nothing once the window is found.

        Raises:
            ConfigError: the first scores are all alike, so that they have no window.
        """
        if self.window is not None:
            return
        some = raw.cpu()[: len(self._seen) - self._count]
        self._seen[self._count : self._count + len(some)] = some
        self._count += len(some)
        if self._count < len(self._seen):
            return
        low, high = quantile_window(self._seen, self._quantiles)
        if high - low < NARROWEST:
            raise ConfigError(
                f"reward.{self._name}: the first {self._count} scores are all {low:.4g}: expected pictures and"
                f" sentences that the model tells apart, or reward.{self._name}.window"
            )
        self.window = (low, high)

    def __call__(self, raw: Tensor) -> Tensor | None:
        """Scores (n,) in the window, of raw scores (n,); None before the window is found."""
        return None if self.window is None else windowed(raw, *self.window)

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
