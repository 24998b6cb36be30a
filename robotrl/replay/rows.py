"""Checksums of a replay's rows, so that a changed byte on the disk is found when the replay is opened.

Each column of a row is a vector of words, and its checksum is the upper half of a fixed random combination of them
modulo 2**64 (multilinear hashing, Carter and Wegman 1979): any one changed word changes it, and so does any other
damage but for one in 2**32. The checksum of a row is the XOR of those of its columns. So it follows a change of the
small columns without a look at the large ones, and what was damaged stays damaged.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

import numpy as np

from robotrl.replay.storage import FINAL, LOOSE, Storage

BLOCK_BYTES = 4 << 20
"""About how much of a column is looked at in one go."""
WORDS, REWARD, FINAL_PLACE, CHECK = 8, 2, 5, 7
"""Words of 4 bytes in a `META` record, and the places of three of them."""

Rows = np.ndarray | slice


class RowChecksums:
    """Checksums of the rows of one array (R, ...).

    Args:
        name: seeds the combination, so that equal columns differ in their checksums.
        array: contiguous.
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
        """(M,) uint32."""
        return combined(self._words[rows], self._factors)


class RowChecks:
    """The checksums of a replay's rows.

    Args:
        storage: of the steps.
        side: of the last observations.
    """

    def __init__(self, storage: Storage, side: Storage) -> None:
        self._meta = storage.arrays["meta"]
        self._stored = side.stored
        self._large = _columns({name: array for name, array in storage.arrays.items() if name != "meta"})
        self._side = _columns({f"last/{key}": array for key, array in side.arrays.items()})
        self._factors = factors("meta", WORDS)
        # where a last observation lies does not matter as long as it is the right one, and its own checksum tells
        self._factors[[FINAL_PLACE, CHECK]] = 0

    def small(self, block: np.ndarray) -> np.ndarray:
        """(M,) uint32 of `META` records (M,) as they are to be stored."""
        words = block.view("<u4").reshape(len(block), WORDS)
        loose = (block["flags"] & LOOSE) != 0
        if loose.any():
            words = words.copy()
            words[loose, REWARD] = 0
        return combined(words, self._factors)

    def large(self, rows: Rows) -> np.ndarray:
        """(M,) uint32 of the rows' other columns as they are stored."""
        return _joined(self._large, rows)

    def last(self, places: np.ndarray) -> np.ndarray:
        """(M,) uint32 of last observations."""
        return _joined(self._side, places)

    def damaged(self) -> np.ndarray:
        """(M,) rows that are stamped and are not as they were written."""
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
        # what lies in a shard that is gone is told of with the shard
        bad[owners[~known]] = (places[~known] < 0) | (places[~known] >= len(self._meta))
        return rows[bad]


def factors(name: str, count: int) -> np.ndarray:
    """(count,) uint64, odd, the same on every machine: the raw stream of a generator that numpy keeps as it is."""
    return np.random.PCG64(zlib.crc32(name.encode())).random_raw(count).astype(np.uint64) | np.uint64(1)


def combined(words: np.ndarray, by: np.ndarray) -> np.ndarray:
    """(M,) uint32: the upper halves of the words (M, W) combined by factors (W,)."""
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
