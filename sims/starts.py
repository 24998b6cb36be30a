"""Start ids, shared by all sims with numbered start states: splits, queue and random draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, unknown
from robotrl.fn.random import counter_rng
from robotrl.spec import Split

Ids = NDArray[np.int64]

SPLITS: dict[Split, range] = {
    "train": range(0, 1 << 30),
    "val": range(1 << 30, (1 << 30) + (1 << 20)),
    "test": range((1 << 30) + (1 << 20), (1 << 30) + (1 << 21)),
}
"""Start ids of each split. Training draws from `train`; `val` (model selection) and `test` are held out."""


def ids_of(split: Split) -> range:
    """Start ids of a split.

    Raises:
        ConfigError: unknown split.
    """
    if split not in SPLITS:
        raise unknown("split", str(split), SPLITS)
    return SPLITS[split]


def queue_of(ids: Any) -> list[int]:
    """Validated queue of start ids, in the given order.

    Raises:
        ConfigError: an id outside all splits.
    """
    end = SPLITS["test"].stop
    for i in ids:
        if not 0 <= int(i) < end:
            raise ConfigError(f"state id {int(i)} is out of range: expected 0 to {end - 1}")
    return [int(i) for i in ids]


def queue_for_all(ids: Any, num_envs: int) -> list[int]:
    """Validated queue for the reset option "state_ids": one start id for each env.

    Raises:
        ConfigError: the wrong shape, or an id outside all splits.
    """
    array = np.asarray(ids, np.int64)
    if array.shape != (num_envs,):
        raise ConfigError(f"state_ids has shape {array.shape}: expected ({num_envs},), one id for each env")
    return queue_of(array)


def drawn(seed: int, first: int, count: int) -> Ids:
    """Training start ids (count,) of a seed's random sequence, from index `first` on."""
    return counter_rng.among(seed, np.arange(first, first + count), SPLITS["train"])


class StartQueue:
    """Source of a sim's next start ids: queued ids first, then random training ids of its seed.

    Args:
        seed: seed of the random training ids.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.draws = seed, 0
        """Seed, and number of training ids drawn so far."""
        self._ids: list[int] = []

    def restart(self, seed: int | None) -> None:
        """Restart the random sequence with a seed and clear the queue; None leaves both unchanged."""
        if seed is not None:
            self.seed, self.draws, self._ids = int(seed), 0, []

    def put(self, ids: list[int]) -> None:
        """Replace the queue by these start ids."""
        self._ids = ids

    def again(self, number: int) -> None:
        """Put a start id in front of the queue."""
        self._ids = [int(number), *self._ids]

    def queued(self, count: int) -> Ids:
        """Remove up to `count` ids from the queue and return them."""
        taken = np.array(self._ids[:count], np.int64)
        del self._ids[:count]
        return taken

    def peek(self, count: int) -> Ids:
        """Next start ids (count,), which stay."""
        queued = np.array(self._ids[:count], np.int64)
        return np.concatenate([queued, drawn(self.seed, self.draws, count - len(queued))])

    def skip(self, count: int) -> None:
        """Leave out the next `count` start ids."""
        self.draws += count - len(self.queued(count))

    def take(self, count: int) -> Ids:
        """Next start ids (count,), removed from the queue or drawn."""
        queued = self.queued(count)
        fresh = count - len(queued)
        ids = np.concatenate([queued, drawn(self.seed, self.draws, fresh)])
        self.draws += fresh
        return ids

    def state(self) -> dict[str, NDArray[np.int64]]:
        """State of queue and random sequence as named arrays, for `load`."""
        return {"queue": np.array(self._ids, np.int64), "draws": np.array([self.seed, self.draws], np.int64)}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a result of `state`."""
        self._ids = [int(i) for i in state["queue"]]
        self.seed, self.draws = int(state["draws"][0]), int(state["draws"][1])
