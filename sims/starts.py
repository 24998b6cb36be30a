"""Start ids: how starts are numbered, split, queued and drawn, alike in every sim whose starts have numbers."""

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
"""Training draws from the first; the other two are held out, `val` for choosing, `test` for the verdict."""


def ids_of(split: Split) -> range:
    """Start ids of a split.

    Raises:
        ConfigError: unknown split.
    """
    if split not in SPLITS:
        raise unknown("split", str(split), SPLITS)
    return SPLITS[split]


def queue_of(ids: Any) -> list[int]:
    """Start ids to be taken in this order, checked.

    Raises:
        ConfigError: an id outside all splits.
    """
    end = SPLITS["test"].stop
    for i in ids:
        if not 0 <= int(i) < end:
            raise ConfigError(f"state id {int(i)} is out of range: expected 0 to {end - 1}")
    return [int(i) for i in ids]


def queue_for_all(ids: Any, num_envs: int) -> list[int]:
    """The reset option "state_ids", one start id for each env, as a queue.

    Raises:
        ConfigError: the wrong shape, or an id outside all splits.
    """
    array = np.asarray(ids, np.int64)
    if array.shape != (num_envs,):
        raise ConfigError(f"state_ids has shape {array.shape}: expected ({num_envs},), one id for each env")
    return queue_of(array)


def drawn(seed: int, first: int, count: int) -> Ids:
    """Training starts (count,) number `first` and following of the endless draw that belongs to a seed."""
    return counter_rng.among(seed, np.arange(first, first + count), SPLITS["train"])


class StartQueue:
    """The start ids that a sim takes next: those that were queued, then training starts of its seed's endless draw.

    Args:
        seed: of the draw.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.draws = seed, 0
        """How many starts have been drawn."""
        self._ids: list[int] = []

    def restart(self, seed: int | None) -> None:
        """Begin the draw of a seed anew and drop what is queued; None lets both run on."""
        if seed is not None:
            self.seed, self.draws, self._ids = int(seed), 0, []

    def put(self, ids: list[int]) -> None:
        """Queue start ids in place of those that are queued."""
        self._ids = ids

    def queued(self, count: int) -> Ids:
        """Take up to `count` ids out of the queue."""
        taken = np.array(self._ids[:count], np.int64)
        del self._ids[:count]
        return taken

    def take(self, count: int) -> Ids:
        """The next ids (count,)."""
        queued = self.queued(count)
        fresh = count - len(queued)
        ids = np.concatenate([queued, drawn(self.seed, self.draws, fresh)])
        self.draws += fresh
        return ids

    def state(self) -> dict[str, NDArray[np.int64]]:
        """What `load` takes, as named arrays."""
        return {"queue": np.array(self._ids, np.int64), "draws": np.array([self.seed, self.draws], np.int64)}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on where `state` was."""
        self._ids = [int(i) for i in state["queue"]]
        self.seed, self.draws = int(state["draws"][0]), int(state["draws"][1])
