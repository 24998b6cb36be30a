"""Numbers that a second task tells, taken from a dataset beside its chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.datasets.layout import observation_key
from robotrl.datasets.reader import Dataset
from robotrl.errors import ConfigError


def frames_of(dataset: Dataset, key: str) -> Tensor:
    """(F, ...) an array of the observation in all frames."""
    return torch.from_numpy(dataset.frames(observation_key(key)))


class Targets(NamedTuple):
    """Numbers that a second task tells."""

    arrays: dict[str, Tensor]
    """(F, ...) by key, for each frame."""
    mean: Tensor
    """(S,) of all numbers side by side ..."""
    std: Tensor
    """... and their deviation; of a number that is always the same a small one instead."""

    @classmethod
    def of(cls, arrays: dict[str, Tensor]) -> Targets:
        """Arrays, and their own mean and deviation."""
        rows = torch.cat([x.flatten(1) for x in arrays.values()], dim=1)
        return cls(arrays, rows.mean(dim=0), rows.std(dim=0, correction=0).clamp(min=1e-4))

    def standard(self, arrays: Mapping[str, Tensor]) -> Tensor:
        """(B, S) such arrays (B, ...) side by side, with mean 0 and deviation 1."""
        return (torch.cat([arrays[key].flatten(1) for key in self.arrays], dim=1) - self.mean) / self.std


def hidden_numbers(dataset: Dataset, hidden: tuple[str, ...]) -> Targets:
    """The privileged arrays of all frames.

    Raises:
        ConfigError: the sim has none, or the dataset was recorded without them.
    """
    known = [key for key in hidden if observation_key(key) in dataset.features]
    if not known:
        found, wanted = ", ".join(dataset.features), ", ".join(hidden) or "it has none"
        raise ConfigError(f"dataset has {found}: expected a privileged array of the sim ({wanted})")
    return Targets.of({key: frames_of(dataset, key).float() for key in known})
