"""Checksums of a replay buffer's rows, by which a changed byte on the disk is found when the buffer is opened.

Each column of a row is a vector of words; its checksum is the upper half of a fixed random linear combination of them
modulo 2**64 (multilinear hashing, Carter and Wegman 1979). Any single changed word is detected, and any other damage
with probability 1 - 2**-32. The checksum of a row is the XOR of those of its columns. It can therefore be updated after
a change of the small columns without reading the large ones, and a damaged row stays marked as damaged.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

import numpy as np

from robotrl.replay.storage import FINAL, LOOSE, Storage

BLOCK_BYTES = 4 << 20
"""Approximate number of bytes of a column processed at a time."""
WORDS, REWARD, FINAL_PLACE, CHECK = 8, 2, 5, 7
"""Number of 4-byte words in a `META` record, and the positions of three of them."""

Rows = np.ndarray | slice


class RowChecksums:
    """Checksums of the rows of one array (R, ...).

    Args:
        name: seeds the combination, so that columns of equal content have different checksums.
        array: contiguous array.
    """

    def __init__(self, name: str, array: np.ndarray) -> None:
        flat = array.reshape(len(array), -1)
        size = flat.shape[1] * flat.itemsize
        self._words = flat.view({0: "<u4", 2: "<u2"}.get(size % 4, "u1"))
        self._factors = factors(name, self._words.shape[1])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self._words.shape[1] * self._words.itemsize

    def of(self, rows: Rows) -> np.ndarray:
        """(M,) uint32 checksums of rows."""
        return combined(self._words[rows], self._factors)


class RowChecks:
    """The checksums of a replay buffer's rows.

    Args:
        storage: storage of the steps.
        side: storage of the last observations.
    """

    def __init__(self, storage: Storage, side: Storage) -> None:
        self._meta = storage.arrays["meta"]
        self._stored = side.stored
        self._large = _columns({name: array for name, array in storage.arrays.items() if name != "meta"})
        self._side = _columns({f"last/{key}": array for key, array in side.arrays.items()})
        self._factors = factors("meta", WORDS)
        # the row number of a last observation need not be covered: the observation's own checksum identifies it
        self._factors[[FINAL_PLACE, CHECK]] = 0

    def small(self, block: np.ndarray) -> np.ndarray:
        """(M,) uint32 checksums of `META` records (M,) before they are stored."""
        words = block.view("<u4").reshape(len(block), WORDS)
        loose = (block["flags"] & LOOSE) != 0
        if loose.any():
            words = words.copy()
            words[loose, REWARD] = 0
        return combined(words, self._factors)

    def large(self, rows: Rows) -> np.ndarray:
        """(M,) uint32 checksums of the rows' other columns as stored."""
        return _joined(self._large, rows)

    def last(self, places: np.ndarray) -> np.ndarray:
        """(M,) uint32 checksums of last observations."""
        return _joined(self._side, places)

    def damaged(self) -> np.ndarray:
        """(M,) rows with a stamp that do not match their checksum."""
        stamped = np.flatnonzero(self._meta["stamp"] != 0)
        found = [self._damaged(rows) for rows in _blocks(stamped, [*self._large, *self._side])]
        return np.concatenate([stamped[:0], *found])

    def _damaged(self, rows: np.ndarray) -> np.ndarray:
        block = self._meta.take(rows)
        check = self.small(block) ^ self.large(rows)
        owners = np.flatnonzero((block["flags"] & FINAL) != 0)
        places = block["final"][owners]
        known = (places >= 0) & (places < len(self._meta))
        known[known] = self._stored(places[known])
        check[owners[known]] ^= self.last(places[known])
        bad = check != block["check"]
        # rows of missing shards are reported with the shard
        bad[owners[~known]] = (places[~known] < 0) | (places[~known] >= len(self._meta))
        return rows[bad]


def factors(name: str, count: int) -> np.ndarray:
    """(count,) odd uint64 factors, equal on every machine: the raw stream of a generator that numpy guarantees."""
    return np.random.PCG64(zlib.crc32(name.encode())).random_raw(count).astype(np.uint64) | np.uint64(1)


def combined(words: np.ndarray, by: np.ndarray) -> np.ndarray:
    """(M,) uint32: upper halves of the linear combinations of words (M, W) with factors (W,)."""
    return ((words.astype(np.uint64) @ by) >> np.uint64(32)).astype(np.uint32)


def _columns(arrays: Mapping[str, np.ndarray]) -> list[RowChecksums]:
    return [RowChecksums(name, array) for name, array in arrays.items() if array.size]


def _joined(columns: list[RowChecksums], rows: Rows) -> np.ndarray:
    joined = np.zeros(1, np.uint32)
    for column in columns:
        joined = joined ^ column.of(rows)
    return joined


def _blocks(rows: np.ndarray, columns: list[RowChecksums]) -> Iterator[np.ndarray]:
    size = max(1, BLOCK_BYTES // max(column.row_bytes for column in columns))
    return (rows[at : at + size] for at in range(0, len(rows), size))
