"""Means of each reward source over the steps of an iteration, for a run's log."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class RewardMeans:
    """Sums the scores of reward sources between two lines of a log."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._steps = 0

    def add(self, terms: Mapping[str, Tensor]) -> None:
        """Add the scores (N,) of one step, by name."""
        for name, x in terms.items():
            mean = x.double().mean()
            self._sums[name] = self._sums[name] + mean if name in self._sums else mean
        self._steps += 1

    def take(self) -> dict[str, float]:
        """Return the means over envs and steps since the last call, by name; none if there was no step."""
        names = list(self._sums)
        values = (torch.stack([self._sums[name] for name in names]) / self._steps).tolist() if names else []
        self._sums, self._steps = {}, 0
        return dict(zip(names, values, strict=True))
