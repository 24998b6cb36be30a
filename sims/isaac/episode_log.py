"""Means that an Isaac environment logs about the episodes that ended, kept on its device until somebody reads them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

MOST_ENTRIES = 256
"""Steps whose logs are kept apart before they are summed."""


class _Entry(NamedTuple):
    names: tuple[str, ...]
    values: Tensor
    """(names,) float32 on the environment's device."""
    episodes: int


class EpisodeLog:
    """Means over the episodes that ended, of numbers that the environment logs when some end.

    A log's values are means over the episodes that ended in one step, so they are weighted by their number. Values are
    copied when they are added: environments overwrite them. Nothing waits for the device before `take`.

    Args:
        device: the environment's device; values that a log has elsewhere are moved there.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._entries: list[_Entry] = []
        self._sums: dict[str, float] = defaultdict(float)
        self._episodes: dict[str, int] = defaultdict(int)

    def add(self, log: Mapping[str, Any], episodes: int) -> None:
        """Add what a step logged; values that are no numbers are left out.

        Args:
            log: name to number, or to a tensor, of which the mean counts.
            episodes: number of episodes that ended in the step, 1 or more.
        """
        tensors: dict[str, Tensor] = {}
        for name, value in log.items():
            if isinstance(value, Tensor):
                if value.numel():
                    tensors[name] = value.detach() if value.dim() == 0 else value.detach().float().mean()
            elif isinstance(value, int | float):
                self._sums[name] += float(value) * episodes
                self._episodes[name] += episodes
        if tensors:
            values = torch.stack([value.to(self._device, torch.float32) for value in tensors.values()])
            self._entries.append(_Entry(tuple(tensors), values, episodes))
        if len(self._entries) >= MOST_ENTRIES:
            self._fold()

    def _fold(self) -> None:
        """Read the kept tensors: one transfer for each set of names."""
        alike: dict[tuple[str, ...], list[_Entry]] = defaultdict(list)
        for entry in self._entries:
            alike[entry.names].append(entry)
        for names, entries in alike.items():
            weights = torch.tensor([[float(entry.episodes)] for entry in entries])
            values = torch.stack([entry.values for entry in entries])
            sums = (values * weights.to(values.device)).sum(0).tolist()
            for name, total in zip(names, sums, strict=True):
                self._sums[name] += total
                self._episodes[name] += sum(entry.episodes for entry in entries)
        self._entries.clear()

    def take(self) -> dict[str, float]:
        """Mean of each number over the episodes since the last call, by name."""
        self._fold()
        found = {name: total / self._episodes[name] for name, total in self._sums.items()}
        self._sums.clear()
        self._episodes.clear()
        return found
