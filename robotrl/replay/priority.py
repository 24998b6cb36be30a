"""Prioritized sampling (Schaul et al. 2016, "Prioritized Experience Replay", section 3.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import ConfigError, check_at_least, check_number, out_of_range
from robotrl.replay.check import host
from robotrl.replay.storage import CUT, ENDED
from robotrl.replay.types import Transitions

if TYPE_CHECKING:
    from robotrl.replay.buffer import Replay

LAST = ENDED | CUT
FANOUT = 16
"""Children per node: a million leaves are five levels, each a handful of array operations for a whole batch."""


class SumTree:
    """Sum tree over `size` float64 leaves, searched and updated in batches.

    Each node is recomputed as the sum of its children, so rounding errors do not accumulate.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        sizes = [max(FANOUT, -(-size // FANOUT) * FANOUT)]
        while sizes[-1] > FANOUT:
            sizes.append(-(-sizes[-1] // FANOUT // FANOUT) * FANOUT if sizes[-1] // FANOUT > FANOUT else FANOUT)
        self.levels = [np.zeros((n // FANOUT, FANOUT)) for n in sizes]
        """Tree levels, from the leaves to the children of the root; a row holds the children of one node."""

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self.levels[-1].sum())

    def leaves(self, index: np.ndarray) -> np.ndarray:
        """Values (M,) of the leaves `index` (M,)."""
        return self.levels[0].reshape(-1)[index]

    def assign(self, index: np.ndarray, values: np.ndarray | float) -> None:
        """Set leaves (M,) int64; if a leaf occurs twice, the last value counts."""
        self.levels[0].reshape(-1)[index] = values
        for lower, upper in zip(self.levels, self.levels[1:], strict=False):
            index = np.unique(index // FANOUT)
            upper.reshape(-1)[index] = lower[index].sum(axis=1)

    def find(self, mass: np.ndarray) -> np.ndarray:
        """(M,) int64: leaves at which the cumulative sum passes `mass` (M,), from 0 to `total`."""
        node = np.zeros(len(mass), np.int64)
        for level in reversed(self.levels):
            sums = np.cumsum(level[node], axis=1)
            # if rounding leaves the mass as large as the node, take its last non-empty child
            mass = np.minimum(mass, np.nextafter(sums[:, -1], 0.0))
            child = (sums <= mass[:, None]).sum(axis=1)
            before = np.where(child > 0, np.take_along_axis(sums, np.maximum(child - 1, 0)[:, None], axis=1)[:, 0], 0.0)
            mass = mass - before
            node = node * FANOUT + child
        return node


class Prioritized:
    """Draws start steps in proportion to priority**alpha, stratified over `batch` equal parts of the total.

    New steps get the largest priority so far; so do all steps after a rollback.
    Weights are (1 / P(i))**beta, divided by the largest of the minibatch (the number of steps in the formula's
    1 / (n P(i)) cancels there).

    Args:
        replay: to sample from.
        alpha: exponent of the priorities, 0 to 1; 0 is uniform.
        beta: exponent of the importance weights, 0 to 1; 1 corrects the bias fully; may be changed at any time.
        decisions: only steps at which the policy began a chunk.
        floor: added to every priority, so that each step can be drawn.
    """

    def __init__(
        self, replay: Replay, alpha: float = 0.6, beta: float = 0.4, decisions: bool = False, floor: float = 1e-6
    ) -> None:
        check_number("replay alpha", alpha, 0.0, 1.0)
        check_number("replay beta", beta, 0.0, 1.0)
        self.replay = replay
        self.alpha, self.beta, self.floor = alpha, beta, floor
        self.decisions = decisions
        self._tree = SumTree(replay.layout.rows)
        self._value = np.zeros(replay.layout.rows)
        self._largest = 1.0
        self._seen = replay.ring.heads * 0
        self._horizon = 0
        self._changes = -1
        self._rollbacks = replay.rollbacks

    def sample(
        self, batch: int, horizon: int, gamma: float, generator: torch.Generator, updates: int = 1
    ) -> Transitions:
        """See `Sampler.sample`."""
        check_at_least("replay batch", batch, 1)
        self._refresh(horizon)
        ring, total = self.replay.ring, self._tree.total
        if not total > 0:
            raise ConfigError(f"the replay holds no step whose chunk of {horizon} steps is complete")
        offsets = torch.rand(updates, batch, generator=generator, dtype=torch.float64).numpy()
        leaf = self._tree.find(((np.arange(batch) + offsets) / batch * total).reshape(-1))
        index = ring.fields["stamp"][leaf] - 1
        chance = self._tree.leaves(leaf).reshape(updates, batch)
        weight = (chance / chance.min(axis=1, keepdims=True)) ** -self.beta
        tensor = torch.from_numpy(weight.reshape(-1).astype(np.float32))
        return self.replay.gather(self.replay.reach(index, horizon), gamma, tensor)

    def update_priorities(self, index: Tensor, priorities: Tensor) -> None:
        """Set priorities of steps, e.g. the size of their TD errors; steps no longer stored are skipped.

        Args:
            index: (M,) int64, `Transitions.starts`.
            priorities: (M,) 0 or more.

        Raises:
            ConfigError: a priority is negative or not finite.
        """
        ids, values = index.numpy(), host(priorities).astype(np.float64)
        if ids.shape != values.shape or not (np.isfinite(values) & (values >= 0)).all():
            raise out_of_range("replay priorities", values.tolist(), f"{len(ids)} finite numbers, 0 or more")
        stored = self.replay.ring.stored(ids)
        rows, values = ids[stored] % self.replay.ring.rows, values[stored] + self.floor
        if len(rows):
            self._largest = max(self._largest, float(values.max()))
            self._value[rows] = values
            # a step that cannot be sampled yet has a zero leaf, and gets its value when its chunk is complete
            ready = self._tree.leaves(rows) > 0
            self._tree.assign(rows[ready], self._value[rows[ready]] ** self.alpha)

    def state(self) -> dict[str, Any]:
        """State for an exact resume; the buffer is saved separately."""
        return {"value": self._value, "largest": self._largest, "seen": self._seen, "beta": self.beta}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave; load the buffer first."""
        self._value[:] = state["value"]
        self._largest, self.beta = float(state["largest"]), float(state["beta"])
        self._seen = np.array(state["seen"], np.int64)
        self._horizon, self._rollbacks = 0, self.replay.rollbacks

    def _refresh(self, horizon: int) -> None:
        """Update the tree for steps that were added to the buffer or left it."""
        ring = self.replay.ring
        if self._changes == self.replay.changes and self._horizon == horizon:
            return
        if self._rollbacks != self.replay.rollbacks:
            # after a rollback it is unknown which steps are unchanged
            self._seen, self._horizon, self._rollbacks = self._seen * 0, 0, self.replay.rollbacks
        low, high = ring.window()
        n, rows = ring.streams, ring.rows
        fresh = np.maximum(self._seen, low)
        if horizon != self._horizon or (fresh > high).any():
            self._tree, start = SumTree(rows), low
        else:
            # the window moved on by the number of added steps, and chunks that were cut may now be complete
            moved = np.maximum(self._seen - ring.layout.length, 0)
            gone = _spans(moved, np.minimum(low, self._seen), n)
            self._tree.assign(gone % rows, 0.0)
            start = np.maximum(self._seen - horizon, low)
        self._value[_spans(np.minimum(fresh, high), high, n) % rows] = self._largest
        index = _spans(start, high, n)
        self._tree.assign(index % rows, 0.0)
        ready = self.replay.sampleable(index, horizon, self.decisions).starts % rows
        self._tree.assign(ready, self._value[ready] ** self.alpha)
        self._seen, self._horizon, self._changes = high.copy(), horizon, self.replay.changes


def episode_returns(replay: Replay) -> tuple[Tensor, Tensor]:
    """Undiscounted return of the episode of each step, as far as it is stored.

    Returns the indices (M,) of all stored steps and the returns (M,) float32; running episodes count up to now.
    """
    ring = replay.ring
    low, high = ring.window()
    index = np.concatenate([np.arange(low[s], high[s]) * ring.streams + s for s in range(ring.streams)])
    index = index[ring.stored(index)]
    if not len(index):
        return torch.from_numpy(index), torch.zeros(0)
    meta = ring.meta.take(index % ring.rows)
    follows = np.diff(index) == ring.streams
    starts = np.flatnonzero(np.concatenate([[True], ~follows | ((meta["flags"][:-1] & LAST) != 0)]))
    sums = np.add.reduceat(meta["reward"].astype(np.float64), starts)
    lengths = np.diff(np.concatenate([starts, [len(index)]]))
    return torch.from_numpy(index), torch.from_numpy(np.repeat(sums, lengths).astype(np.float32))


def by_return(returns: Tensor, least: float = 0.1) -> Tensor:
    """Priorities (M,) that are linear in the returns (M,): `least` for the lowest return, 1 for the highest."""
    check_number("replay least priority", least, 0.0, 1.0)
    low, high = returns.min(), returns.max()
    return least + (1 - least) * (returns - low) / (high - low).clamp_min(1e-12) if high > low else returns * 0 + 1


def _spans(low: np.ndarray, high: np.ndarray, streams: int) -> np.ndarray:
    """Indices of the steps `low` (N,) to `high` - 1 of each stream."""
    length = np.maximum(high - low, 0)
    stream = np.repeat(np.arange(streams), length)
    step = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length) + low[stream]
    return step * streams + stream
