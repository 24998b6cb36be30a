"""Chunks read from per-step rows: pure functions over a replay buffer's arrays, vectorized over the batch.

Step t of stream n has the index t * N + n and the row index % R. The next step of a stream is therefore N rows further
on, and the stamp in a row tells whether it holds the expected step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from robotrl.replay.storage import CUT, ENDED, TERMINATED, TRUNCATED


class ChunkReach(NamedTuple):
    """Extent of chunks of H steps from B start steps."""

    starts: np.ndarray
    """(B,) int64."""
    rows: np.ndarray
    """(B, H + 1) int64: rows of the steps, including the one after the chunk."""
    meta: np.ndarray
    """(B, H + 1) `META` records of these rows."""
    valid: np.ndarray
    """(B, H) bool: whether the episode was still running before this step."""
    ended: np.ndarray
    """(B,) bool: whether the episode ended within the chunk."""
    complete: np.ndarray
    """(B,) bool: whether every valid step and the observation after the last one are stored, and each reward known."""

    def of(self, chosen: np.ndarray) -> ChunkReach:
        """Rows `chosen` (M,) int64 of each field. Uses `take`: indexing record arrays is 100 times slower."""
        return ChunkReach(*(field.take(chosen, axis=0) for field in self))

    def first(self, count: int) -> ChunkReach:
        """First `count` rows of each field."""
        return ChunkReach(*(field[:count] for field in self)) if count < len(self.starts) else self


class Chunks(NamedTuple):
    """`Transitions` without the observations, in numpy."""

    steps: np.ndarray
    reward: np.ndarray
    cost: np.ndarray
    discount: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    log_prob: np.ndarray
    action_rows: np.ndarray
    """(B, H) int64: rows of the chunk's actions; the last valid one is repeated."""
    next_rows: np.ndarray
    """(B,) int64: row of the next observation, unless the episode ended."""
    finals: np.ndarray
    """(B,) int32: row of the final observation in the side table, if the episode ended."""


def reach(meta: np.ndarray, index: np.ndarray, horizon: int, streams: int) -> ChunkReach:
    """Follow chunks of `horizon` steps from the starts `index` (B,) through the `META` rows (R,)."""
    ahead = np.arange(0, (horizon + 1) * streams, streams)
    ids = index[:, None] + ahead
    rows = (index % len(meta))[:, None] + ahead
    if horizon * streams < len(meta):
        rows -= np.where(rows >= len(meta), len(meta), 0)  # a modulo without a division
    else:
        rows %= len(meta)
    found = meta.take(rows)
    flags = found["flags"][:, :horizon]
    going = (flags & ENDED) == 0
    open_ = np.ones(ids.shape, np.bool_)
    np.logical_and.accumulate(going, axis=1, out=open_[:, 1:])
    bad = found["stamp"] != ids + 1
    # an abandoned episode has no observation after its last step
    bad[:, :horizon] |= going & ((flags & CUT) != 0)
    # a step without a score has no reward to learn from
    bad[:, :horizon] |= found["missing"][:, :horizon] != 0
    bad &= open_
    return ChunkReach(index, rows, found, open_[:, :horizon], ~open_[:, horizon], ~bad.any(axis=1))


def chunks(found: ChunkReach, gamma: float) -> Chunks:
    """Rewards, discounts and row numbers of complete chunks. Sums are computed in float64."""
    batch, horizon = found.valid.shape
    valid = found.valid
    steps = valid.sum(axis=1)
    powers = gamma ** np.arange(horizon + 1, dtype=np.float64)
    at = np.arange(0, batch * (horizon + 1), horizon + 1)
    last = found.meta.reshape(-1).take(at + steps - 1)
    flags = last["flags"]
    terminated, truncated = (flags & TERMINATED) != 0, (flags & TRUNCATED) != 0
    factors = np.where(valid, powers[:horizon], 0.0)
    reward, cost = (_discounted(found.meta[name][:, :horizon], factors, valid) for name in ("reward", "cost"))
    discount = np.where(terminated, 0.0, powers.take(steps)).astype(np.float32)
    action_rows = found.rows[:, :horizon]
    log_prob = found.meta["log_prob"][:, :horizon]
    if found.ended.any():
        places = np.minimum(np.arange(horizon), steps[:, None] - 1)
        action_rows = np.take_along_axis(action_rows, places, axis=1)
        log_prob = np.where(valid, log_prob, np.float32(np.nan))
    next_rows = found.rows.reshape(-1).take(at + np.where(found.ended, 0, steps))
    return Chunks(steps, reward, cost, discount, terminated, truncated, log_prob, action_rows, next_rows, last["final"])


def observations(
    arrays: Mapping[str, np.ndarray], finals: Mapping[str, np.ndarray], found: ChunkReach, parts: Chunks
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Observations (B, ...) at the start and after the chunk; `arrays` (R, ...) and `finals` have equal keys."""
    start = found.rows[:, 0]
    ended = np.flatnonzero(found.ended)
    obs: dict[str, np.ndarray] = {}
    following: dict[str, np.ndarray] = {}
    for key, array in arrays.items():
        obs[key] = array.take(start, axis=0)
        following[key] = array.take(parts.next_rows, axis=0)
        if len(ended):
            following[key][ended] = finals[key].take(parts.finals[ended], axis=0)
    return obs, following


def _discounted(values: np.ndarray, factors: np.ndarray, valid: np.ndarray) -> np.ndarray:
    # values past an episode's end are arbitrary, possibly NaN
    return (np.where(valid, values, 0.0) * factors).sum(axis=1).astype(np.float32)
