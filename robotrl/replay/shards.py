"""Columns in memory-mapped files: larger than RAM, and preserved when the process dies.

A shard is a directory with one raw file per column, `shards/000003/action.bin`, for a fixed number of rows. It is made
when its first row is written: under a temporary name, its disk space reserved, then renamed, so a shard is whole or
absent. All shards of a column are mapped consecutively into one address range, which makes the column an ordinary
array; rows of missing shards read as zeros.

Data written to mapped memory belongs to the operating system, not to the process, and survives a SIGKILL.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from robotrl.errors import ConfigError, RobotrlError
from robotrl.replay.storage import StoredColumn
from robotrl.utils.files import sync_directory

PAGE_BYTES = 16384
"""Page size: the shard of every column is a multiple of it. The largest page size of supported machines."""
SHARD_NAME = re.compile(r"\d{6}")
TEMPORARY = ".tmp-"
MAP_FIXED = 0x10
MS_SYNC = 0x4 if os.uname().sysname == "Linux" else 0x10

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


class MappedRange:
    """An address range that reads as zeros until files are mapped into it; freed with the last array over it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.address = _map(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        # numpy reads this attribute, and keeps a reference to self as long as an array uses the memory
        self.__array_interface__: dict[str, Any] = {
            "data": (self.address, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }

    def place(self, path: Path, offset: int, size: int) -> None:
        """Map a whole file at `offset`.

        Raises:
            RobotrlError: the system refused.
        """
        descriptor = os.open(path, os.O_RDWR)
        try:
            access = mmap.PROT_READ | mmap.PROT_WRITE
            _map(self.address + offset, size, access, mmap.MAP_SHARED | MAP_FIXED, descriptor)
        finally:
            os.close(descriptor)

    def sync(self, offset: int, size: int) -> None:
        """Wait until this part is on the disk.

        Raises:
            RobotrlError: writing failed.
        """
        if _LIBC.msync(self.address + offset, size, MS_SYNC):
            raise RobotrlError(f"cannot write the replay to the disk: {os.strerror(ctypes.get_errno())}")

    def __del__(self) -> None:
        _LIBC.munmap(self.address, self.size)


class ShardStorage:
    """Columns in shards under a directory; see `robotrl.replay.storage.Storage`.

    Args:
        root: the directory, made if missing; existing shards are used.
        columns: by name.
        rows: R.
        shard_rows: P, rows of a shard, from `rows_per_shard`.

    Raises:
        RobotrlError: a file cannot be mapped.
    """

    def __init__(self, root: Path, columns: Mapping[str, StoredColumn], rows: int, shard_rows: int) -> None:
        self.root = root
        self.dropped: list[str] = []
        """One line for each damaged shard that was removed: its number and the fault."""
        self._columns = dict(columns)
        self._files = {name: f"{quote(name, safe='')}.bin" for name in columns}
        self._shard_rows = shard_rows
        self._last = -1
        shards = math.ceil(rows / shard_rows)
        self._ranges = {name: MappedRange(shards * self._size(name)) for name in columns}
        self.arrays: dict[str, np.ndarray] = {
            name: np.asarray(self._ranges[name]).view(column.dtype).reshape(-1, *column.shape)[:rows]
            for name, column in columns.items()
        }
        try:
            root.mkdir(parents=True, exist_ok=True)
            self.present = self._find(shards)
            for number in sorted(self.present):
                self._place(number)
        except OSError as error:
            raise RobotrlError(f"replay {root} cannot be used: {error.filename}: {error.strerror}") from error

    def ensure(self, low: int, high: int) -> None:
        """Make the rows `low` to `high` - 1 writable.

        Raises:
            RobotrlError: the disk is full or refuses; nothing was changed.
        """
        first, last = low // self._shard_rows, (high - 1) // self._shard_rows
        if first == last == self._last:
            return
        for number in range(first, last + 1):
            if number not in self.present:
                self._make(number)
        self._last = last

    def stored(self, rows: np.ndarray) -> np.ndarray:
        """(M,) bool: the rows (M,) lie in shards that exist."""
        return np.isin(rows // self._shard_rows, list(self.present))

    def sync(self) -> None:
        """Wait until all that was written is on the disk.

        Raises:
            RobotrlError: writing failed.
        """
        for number in sorted(self.present):
            for name, memory in self._ranges.items():
                memory.sync(number * self._size(name), self._size(name))
            sync_directory(self.root / f"{number:06d}")
        sync_directory(self.root)

    def close(self) -> None:
        """Release the files; arrays that are still referenced stay readable."""
        self.arrays, self._ranges, self.present, self._last = {}, {}, set(), -1

    def _size(self, name: str) -> int:
        return self._shard_rows * self._columns[name].row_bytes

    def _find(self, shards: int) -> set[int]:
        """Numbers of the whole shards; damaged ones and leftovers are removed."""
        found: set[int] = set()
        for path in sorted(self.root.iterdir()):
            if path.name.startswith(TEMPORARY):
                _remove(path)
            elif SHARD_NAME.fullmatch(path.name) and int(path.name) < shards:
                damage = self._damage(path)
                if damage:
                    self.dropped.append(damage)
                    _remove(path)
                else:
                    found.add(int(path.name))
        return found

    def where(self, row: int) -> str:
        """Shard of a row, and the row's position in it."""
        return f"{self.root / f'{row // self._shard_rows:06d}'}: row {row % self._shard_rows}"

    def _damage(self, shard: Path) -> str | None:
        for name, file in self._files.items():
            path, expected = shard / file, self._size(name)
            if not path.is_file():
                return f"{path}: is missing"
            if path.stat().st_size != expected:
                return f"{path}: has {path.stat().st_size} bytes, expected {expected}"
        return None

    def _make(self, number: int) -> None:
        final = self.root / f"{number:06d}"
        temporary = self.root / f"{TEMPORARY}{final.name}"
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            for name, file in self._files.items():
                _reserve(temporary / file, self._size(name))
            temporary.rename(final)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise RobotrlError(f"cannot make the replay shard {final}: {error.strerror}") from error
        self._place(number)
        self.present.add(number)

    def _place(self, number: int) -> None:
        for name, file in self._files.items():
            path = self.root / f"{number:06d}" / file
            self._ranges[name].place(path, number * self._size(name), self._size(name))


def rows_per_shard(columns: Mapping[str, StoredColumn], rows: int, shard_bytes: int) -> int:
    """Rows per shard: about `shard_bytes` over all columns, at most `rows`, and whole pages in each column.

    Raises:
        ConfigError: this machine's pages are larger than the format's.
    """
    if PAGE_BYTES % mmap.ALLOCATIONGRANULARITY:
        raise ConfigError(f"this machine maps {mmap.ALLOCATIONGRANULARITY} bytes at a time: expected {PAGE_BYTES}")
    unit = math.lcm(*(PAGE_BYTES // math.gcd(PAGE_BYTES, column.row_bytes) for column in columns.values()))
    wanted = min(rows, shard_bytes // sum(column.row_bytes for column in columns.values()))
    return max(1, math.ceil(wanted / unit)) * unit


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _reserve(path: Path, size: int) -> None:
    """Make a file of zeros with reserved disk space: a full disk is an error here, not a SIGBUS when written to."""
    with path.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)


def _map(address: int | None, size: int, access: int, flags: int, descriptor: int) -> int:
    found = _LIBC.mmap(address, size, access, flags, descriptor, 0)
    if found is None or found == _FAILED:
        raise RobotrlError(f"cannot map {size} bytes of a replay: {os.strerror(ctypes.get_errno())}")
    return int(found)
