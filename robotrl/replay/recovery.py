"""Recovery of a replay buffer from the stamps of its rows, after a kill or for a rollback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from robotrl.errors import DataError
from robotrl.replay.storage import FINAL, META, Storage

NAMED = 4
"""Number of damaged places of each kind that a warning names; all are in `Replay.dropped`."""


class Recovered(NamedTuple):
    """State of the buffer derived from the stamps."""

    heads: np.ndarray
    """(N,) int64: number of the next step of each stream."""
    free: list[int]
    """Unused rows of the table of last observations, below `side_used`."""
    side_used: int
    """Number of rows of the table of last observations that were ever used."""


def recover(meta: np.ndarray, streams: int, side: Storage, heads: np.ndarray | None = None) -> Recovered:
    """Find the stored steps, and clear rows that are incomplete or to be rolled back.

    Args:
        meta: (R,) `META` records, changed in place.
        streams: N.
        side: the last observations; a step whose last observation was lost is dropped.
        heads: (N,) drop all steps from these numbers on; None: the streams continue after the newest step found.
    """
    rows = len(meta)
    stamp, flags = meta["stamp"], meta["flags"]
    index = stamp - 1
    step = index // streams
    alive = (stamp > 0) & (index % rows == np.arange(rows))
    newest: np.ndarray = np.where(alive, step + 1, 0).reshape(-1, streams).max(axis=0) if heads is None else heads
    behind = np.tile(newest, rows // streams) - step
    alive &= (behind > 0) & (behind <= rows // streams)
    final = meta["final"]
    owner = alive & ((flags & FINAL) != 0)
    kept = owner & side.stored(final)
    alive &= kept | ~owner
    # rows of missing shards read as zeros, and must not be written to
    stamp[~alive & (stamp != 0)] = 0
    places = final[kept]
    used = int(places.max()) + 1 if len(places) else 0
    free = np.setdiff1d(np.arange(used), places)
    return Recovered(newest.copy(), free[::-1].tolist(), used)


def missing(meta: np.ndarray, heads: np.ndarray, length: int) -> np.ndarray:
    """(M,) indices of steps lost from the last `length` of each stream: not stored, though later ones are."""
    streams = len(heads)
    ring = len(meta) // streams
    slot = np.arange(ring)[:, None]
    step = heads - 1 - (heads - 1 - slot) % ring
    index = step * streams + np.arange(streams)
    wanted = (step >= 0) & (step >= heads - length)
    return index[wanted & (meta["stamp"].reshape(ring, streams) != index + 1)]


def restore(arrays: Mapping[str, np.ndarray], kept: Mapping[str, np.ndarray]) -> None:
    """Restore columns from a saved state.

    Raises:
        DataError: the columns differ.
    """
    if arrays.keys() != kept.keys():
        raise DataError(f"the replay's state has {', '.join(kept)}: the replay has {', '.join(arrays)}")
    for name, values in kept.items():
        array = arrays[name]
        stored = values.view(META).reshape(-1) if array.dtype == META else values
        if (stored.dtype, stored.shape[1:]) != (array.dtype, array.shape[1:]) or len(stored) > len(array):
            found = f"{stored.dtype}{list(stored.shape)}"
            raise DataError(f"the replay's state has {name} {found}: expected {array.dtype}{list(array.shape)}")
        array[: len(stored)] = stored


def damage(shards: Sequence[str], rows: Sequence[str], gaps: int) -> str:
    """Report of what was dropped and what is missing, one line; empty if nothing is.

    Args:
        shards: a line for each damaged shard.
        rows: a line for each damaged row.
        gaps: number of missing steps that have later steps.
    """
    parts = [
        f"{len(lines)} damaged {what} dropped ({'; '.join(lines[:NAMED])}{'; ...' if len(lines) > NAMED else ''})"
        for what, lines in (("shards", shards), ("steps", rows))
        if lines
    ]
    if gaps and not parts:
        parts.append(f"{gaps} steps are missing between others")
    return ", ".join(parts)
