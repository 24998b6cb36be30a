"""Start ids of a remote sim: the queue stays in the trainer, and workers are shown the next ids ahead of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.starts import StartQueue

Ids = NDArray[np.int64]


class StartWindow:
    """Queue of start ids with a view of those that come next.

    Args:
        seed: seed of the random training ids.
        size: number of ids that are shown.
    """

    def __init__(self, seed: int, size: int) -> None:
        self._queue = StartQueue(seed)
        self._size = size
        self.generation = 0
        """Raised when the ids that come next are others than those shown before."""
        self._ahead: Ids = np.zeros(0, np.int64)
        self._stale = True

    def restart(self, seed: int | None) -> None:
        """Restart the random sequence; see `StartQueue.restart`."""
        self._queue.restart(seed)
        self._changed()

    def put(self, ids: list[int]) -> None:
        """Replace the queue by these start ids."""
        self._queue.put(ids)
        self._changed()

    def take(self, count: int) -> Ids:
        """Next start ids (count,)."""
        if count > len(self._ahead):
            self._ahead = self._queue.peek(max(count, 2 * self._size))
        taken, self._ahead = self._ahead[:count], self._ahead[count:]
        self._queue.skip(count)
        self._stale = True
        return taken

    def show(self, out: Ids) -> None:
        """Write the next ids into `out` (size,) if they have changed."""
        if not self._stale:
            return
        if len(self._ahead) < self._size:
            self._ahead = self._queue.peek(2 * self._size)
        out[:] = self._ahead[: self._size]
        self._stale = False

    def hidden(self) -> None:
        """Note that the place where ids are shown was used for others."""
        self._stale = True

    def state(self) -> dict[str, Ids]:
        """State of queue and random sequence, for `load`."""
        return self._queue.state()

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a result of `state`."""
        self._queue.load(state)
        self._changed()

    def _changed(self) -> None:
        self._ahead = self._ahead[:0]
        self.generation += 1
        self._stale = True
