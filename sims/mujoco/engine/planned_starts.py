"""Start ids of the next episodes with their planned start states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.sims import starts

Ids = NDArray[np.int64]
Plan = Callable[[Ids], NDArray[np.float64]]
"""Function (start ids (n,)) that gives start states (n, W); each depends only on its id."""

BLOCK = 256
"""Number of training starts that are drawn and planned together."""


class _Block(NamedTuple):
    key: tuple[int, int]
    """Seed and index of the block."""
    ids: Ids
    plans: NDArray[np.float64]


class PlannedStarts:
    """Queue of start ids and their start states: queued ids first, then random training ids of its seed.

    Args:
        plan: see `Plan`.
        seed: seed of the random training ids.
    """

    def __init__(self, plan: Plan, seed: int) -> None:
        self.queue = starts.StartQueue(seed)
        self._plan = plan
        self._block = _Block((-1, -1), np.zeros(0, np.int64), np.zeros((0, 0)))

    def take(self, count: int) -> tuple[Ids, NDArray[np.float64]]:
        """Next start ids (count,), removed from the queue or drawn, and their start states (count, W)."""
        queued = self.queue.queued(count)
        parts = [(queued, self._plan(queued))] if len(queued) or not count else []
        fresh = count - len(queued)
        while fresh:
            parts.append(self._fresh(fresh))
            fresh -= len(parts[-1][0])
        if len(parts) == 1:
            return parts[0]
        ids, plans = (np.concatenate(part) for part in zip(*parts, strict=True))
        return ids, plans

    def _fresh(self, wanted: int) -> tuple[Ids, NDArray[np.float64]]:
        """Next training starts and their plans: `wanted` of them, or the rest of the current block if fewer.

        Starts are drawn and planned in blocks: a step restarts one or two envs, where the call overhead dominates.
        """
        seed = self.queue.seed
        number, offset = divmod(self.queue.draws, BLOCK)
        if self._block.key != (seed, number):
            ids = starts.drawn(seed, number * BLOCK, BLOCK)
            self._block = _Block((seed, number), ids, self._plan(ids))
        chosen = slice(offset, offset + wanted)
        found = self._block.ids[chosen], self._block.plans[chosen]
        self.queue.draws += len(found[0])
        return found

    def state(self) -> dict[str, NDArray[np.int64]]:
        """State of queue and random sequence as named arrays, for `load`."""
        return self.queue.state()

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a result of `state`."""
        self.queue.load(state)
