"""Regression targets of auxiliary tasks, taken from a dataset's privileged arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.datasets.layout import observation_key
from robotrl.datasets.reader import Dataset
from robotrl.errors import ConfigError


def frames_of(dataset: Dataset, key: str) -> Tensor:
    """Return (F, ...) one observation array of all frames."""
    return torch.from_numpy(dataset.frames(observation_key(key)))


class Targets(NamedTuple):
    """Targets of an auxiliary regression task, with their mean and standard deviation."""

    arrays: dict[str, Tensor]
    """(F, ...) arrays by key, one row per frame."""
    mean: Tensor
    """(S,) mean of all targets, concatenated."""
    std: Tensor
    """(S,) standard deviation, at least 1e-4."""

    @classmethod
    def of(cls, arrays: dict[str, Tensor]) -> Targets:
        """Build targets from arrays, with the arrays' own mean and standard deviation."""
        rows = torch.cat([x.flatten(1) for x in arrays.values()], dim=1)
        return cls(arrays, rows.mean(dim=0), rows.std(dim=0, correction=0).clamp(min=1e-4))

    def standard(self, arrays: Mapping[str, Tensor]) -> Tensor:
        """Return (B, S) the arrays (B, ...), concatenated and standardized to mean 0 and std 1."""
        return (torch.cat([arrays[key].flatten(1) for key in self.arrays], dim=1) - self.mean) / self.std


def hidden_numbers(dataset: Dataset, hidden: tuple[str, ...]) -> Targets:
    """Return the privileged arrays of all frames as targets.

    Raises:
        ConfigError: the sim has no privileged arrays, or the dataset was recorded without them.
    """
    known = [key for key in hidden if observation_key(key) in dataset.features]
    if not known:
        found, wanted = ", ".join(dataset.features), ", ".join(hidden) or "it has none"
        raise ConfigError(f"dataset has {found}: expected a privileged array of the sim ({wanted})")
    return Targets.of({key: frames_of(dataset, key).float() for key in known})
