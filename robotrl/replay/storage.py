"""Storage of a replay buffer: one array per column, in RAM; see `robotrl.replay.shards` for storage on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

META = np.dtype(
    [
        ("stamp", "<i8"),
        ("reward", "<f4"),
        ("cost", "<f4"),
        ("log_prob", "<f4"),
        ("final", "<i4"),
        ("flags", "u1"),
        ("source", "u1"),
        ("missing", "u1"),
        ("unused", "u1"),
        ("check", "<u4"),
    ]
)
"""Small columns of a step in one record, so that reading them is one gather of 32 bytes.

`stamp` is the step's index plus one, written after everything else of the row and cleared before anything is
overwritten: a row is valid, and owns a row of the side table, only with its stamp; half-written rows are not valid.
`final` is the row of the episode's last observation in the side table. `missing` is the number of reward sources that
have no score for the step. `check` is the row's checksum if the buffer has
checksums, in the same eight bytes as `flags` and `missing`, so that they change in one write.
"""

TERMINATED, TRUNCATED, DECISION, FINAL, CUT, LOOSE = 1, 2, 4, 8, 16, 32
"""Bits of `flags`. FINAL: `final` is set. CUT: the next step of the stream belongs to another episode. LOOSE: the
reward is being replaced, and the checksum does not cover it."""
ENDED = TERMINATED | TRUNCATED


class StoredColumn(NamedTuple):
    """Shape and dtype of one column."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    """Shape of one row."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


class Storage(Protocol):
    """Columns of equal length; rows never written are zero."""

    arrays: dict[str, np.ndarray]
    """(R, ...) each, R rows. Rows may be written once `ensure` was called for them."""

    def ensure(self, low: int, high: int) -> None:
        """Make the rows `low` to `high` - 1 writable."""
        ...

    def stored(self, rows: np.ndarray) -> np.ndarray:
        """(M,) bool: whether each row (M,) can have been written."""
        ...

    def sync(self) -> None:
        """Wait until all written data is on the disk."""
        ...

    def close(self) -> None:
        """Free everything; `arrays` is empty afterwards."""
        ...


class RamStorage:
    """Columns in anonymous memory, which the operating system allocates page by page as rows are written.

    Args:
        columns: columns by name.
        rows: R.
    """

    def __init__(self, columns: Mapping[str, StoredColumn], rows: int) -> None:
        self.arrays: dict[str, np.ndarray] = {
            name: np.zeros((rows, *column.shape), column.dtype) for name, column in columns.items()
        }

    def ensure(self, low: int, high: int) -> None:
        """See `Storage.ensure`."""

    def stored(self, rows: np.ndarray) -> np.ndarray:
        """See `Storage.stored`."""
        return np.ones(len(rows), np.bool_)

    def sync(self) -> None:
        """See `Storage.sync`."""

    def close(self) -> None:
        """See `Storage.close`."""
        self.arrays = {}
