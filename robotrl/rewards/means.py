"""Means of each reward source over the steps of an iteration, for a run's log."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

LOST = "scoring/lost"
VALID, AGE = "reward_valid/", "reward_age/"
"""Beginnings of the names of what `add` is given."""


class RewardMeans:
    """Sums the scores of reward sources between two lines of a log."""

    def __init__(self) -> None:
        self.watched: Callable[[], Mapping[str, float]] = dict
        """Further scalars to log, of what scores elsewhere."""
        self.lost = 0
        """Number of late scores whose steps were no longer there, since the start."""
        self._sums: dict[str, Tensor] = {}
        self.steps = 0
        """Number of steps since the last line of the log."""

    def add(self, terms: Mapping[str, Tensor]) -> None:
        """Add the scores (N,) of one step, by name."""
        for name, x in terms.items():
            mean = x.double().mean()
            self._sums[name] = self._sums[name] + mean if name in self._sums else mean
        self.steps += 1

    def add_late(self, sums: Mapping[str, float], num_envs: int) -> None:
        """Add what late scores changed.

        Args:
            sums: sums over steps, by name.
            num_envs: N.
        """
        for name, change in sums.items():
            if name in self._sums:
                self._sums[name] = self._sums[name] + change / num_envs

    def take(self) -> dict[str, float]:
        """Return the means over envs and steps since the last call, by name, and what `watched` gives.

        An age is the mean over the steps that have a score.
        """
        names = list(self._sums)
        values = (torch.stack([self._sums[name] for name in names]) / self.steps).tolist() if names else []
        found = dict(zip(names, values, strict=True))
        for name in names:
            if name.startswith(AGE):
                valid = found.get(VALID + name.removeprefix(AGE), 1.0)
                found[name] = found[name] / valid if valid > 0 else 0.0
        self._sums, self.steps = {}, 0
        watched = dict(self.watched())
        return found | watched | ({LOST: float(self.lost)} if watched else {})
