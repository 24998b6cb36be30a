"""Sampling in proportion to priorities (Schaul et al. 2016, "Prioritized Experience Replay", section 3.3)."""

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
"""Children of a node: a million leaves are five levels, each a handful of array operations for a whole batch."""


class SumTree:
    """Sums over `size` leaves (float64), searched and changed many at a time.

    A node is always the sum of its children as they are, so it does not drift, and follows from the leaves alone.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        sizes = [max(FANOUT, -(-size // FANOUT) * FANOUT)]
        while sizes[-1] > FANOUT:
            sizes.append(-(-sizes[-1] // FANOUT // FANOUT) * FANOUT if sizes[-1] // FANOUT > FANOUT else FANOUT)
        self.levels = [np.zeros((n // FANOUT, FANOUT)) for n in sizes]
        """Leaves first, the children of the root last; a row holds the children of one node."""

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self.levels[-1].sum())

    def leaves(self, index: np.ndarray) -> np.ndarray:
        """Values (M,) of leaves (M,)."""
        return self.levels[0].reshape(-1)[index]

    def assign(self, index: np.ndarray, values: np.ndarray | float) -> None:
        """Set leaves (M,) int64; of a leaf named twice, the last value counts."""
        self.levels[0].reshape(-1)[index] = values
        for lower, upper in zip(self.levels, self.levels[1:], strict=False):
            index = np.unique(index // FANOUT)
            upper.reshape(-1)[index] = lower[index].sum(axis=1)

    def find(self, mass: np.ndarray) -> np.ndarray:
        """(M,) int64: the leaves at which the running sum of all leaves passes `mass` (M,), from 0 to `total`."""
        node = np.zeros(len(mass), np.int64)
        for level in reversed(self.levels):
            sums = np.cumsum(level[node], axis=1)
            # rounding may leave a mass as large as the node: its last child that is not empty takes it
            mass = np.minimum(mass, np.nextafter(sums[:, -1], 0.0))
            child = (sums <= mass[:, None]).sum(axis=1)
            before = np.where(child > 0, np.take_along_axis(sums, np.maximum(child - 1, 0)[:, None], axis=1)[:, 0], 0.0)
            mass = mass - before
            node = node * FANOUT + child
        return node


class Prioritised:
    """Start steps drawn in proportion to priority**alpha, one from each of `batch` equal parts of the whole.

    A step that is new has the largest priority so far, and so has every step once the replay has forgotten some.
    Weights are (1 / P(i))**beta, divided by the largest of the minibatch (the number of steps in the formula's
    1 / (n P(i)) cancels there).

    Args:
        replay: to sample from.
        alpha: how much priorities count, 0 to 1; 0 is uniform.
        beta: how much of the bias the weights take back, 0 to 1; may be changed at any time.
        decisions: only steps at which a chunk began.
        floor: added to every priority, so that each step keeps a chance.
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
        """Give steps new priorities, e.g. the size of their TD errors; steps that are gone by now are passed over.

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
            # a step that cannot be sampled yet has an empty leaf, and gets its value when it can
            ready = self._tree.leaves(rows) > 0
            self._tree.assign(rows[ready], self._value[rows[ready]] ** self.alpha)

    def state(self) -> dict[str, Any]:
        """For an exact resume; the replay is saved on its own."""
        return {"value": self._value, "largest": self._largest, "seen": self._seen, "beta": self.beta}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave; the replay must have been loaded before."""
        self._value[:] = state["value"]
        self._largest, self.beta = float(state["largest"]), float(state["beta"])
        self._seen = np.array(state["seen"], np.int64)
        self._horizon, self._rollbacks = 0, self.replay.rollbacks

    def _refresh(self, horizon: int) -> None:
        """Take in what was added to the replay and let go of what left it."""
        ring = self.replay.ring
        if self._changes == self.replay.changes and self._horizon == horizon:
            return
        if self._rollbacks != self.replay.rollbacks:
            # which of the steps that it knows are still the same, it cannot tell
            self._seen, self._horizon, self._rollbacks = self._seen * 0, 0, self.replay.rollbacks
        low, high = ring.window()
        n, rows = ring.streams, ring.rows
        fresh = np.maximum(self._seen, low)
        if horizon != self._horizon or (fresh > high).any():
            self._tree, start = SumTree(rows), low
        else:
            # the window moved on by as much as was added, and what ends a chunk may be new
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
    """The undiscounted return of the episode that each step belongs to, as far as it is stored.

    Gives indices (M,) of all stored steps and returns (M,) float32; episodes under way count with what they have.
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
    """Priorities (M,) that rise with returns (M,), from `least` for the lowest to 1 for the highest."""
    check_number("replay least priority", least, 0.0, 1.0)
    low, high = returns.min(), returns.max()
    return least + (1 - least) * (returns - low) / (high - low).clamp_min(1e-12) if high > low else returns * 0 + 1


def _spans(low: np.ndarray, high: np.ndarray, streams: int) -> np.ndarray:
    """Indices of the steps `low` (N,) to `high` - 1 of each stream."""
    length = np.maximum(high - low, 0)
    stream = np.repeat(np.arange(streams), length)
    step = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length) + low[stream]
    return step * streams + stream
