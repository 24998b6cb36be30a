"""Directory of a replay buffer: `replay.json` (header), `lock` (of the writer), `shards/` and `finals/` (steps)."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robotrl.errors import ConfigError, DataError, RobotrlError, check_at_least
from robotrl.replay.layout import ReplayLayout
from robotrl.replay.shards import PAGE_BYTES, ShardStorage, rows_per_shard
from robotrl.replay.storage import StoredColumn
from robotrl.utils.files import dump_json, read_json, replace_file

SCHEMA_VERSION = 2
"""Version of the header. Version 1 has no checksums, neither of rows nor of the header; it is still read and
written."""
HEADER = "replay.json"
SHARD_ROWS = "shard_rows", "side_shard_rows"
SHARD_BYTES = 64 << 20
SIDE_SHARD_BYTES = 4 << 20


class ReplayDirectory:
    """An open directory, locked for this process.

    Args:
        path: directory with a header.

    Raises:
        DataError: the header is missing, unreadable or altered.
        RobotrlError: another process has it open, or reading failed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        header = read_header(path)
        self._descriptor: int | None = _lock(path)
        try:
            self._read(header)
        except BaseException:
            self.close()
            raise

    def _read(self, header: dict[str, Any]) -> None:
        path = self.path
        self.checked = header["schema_version"] > 1
        """True if rows have checksums."""
        try:
            self.identity = str(header["id"])
            self.layout = ReplayLayout.from_json(header["layout"])
            columns = self.layout.ring_columns(), self.layout.side_columns()
            rows = [_shard_rows(header[name], of) for name, of in zip(SHARD_ROWS, columns, strict=True)]
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"replay {path}: {HEADER} lacks what it should hold ({error!r})") from error
        self.ring = ShardStorage(path / "shards", columns[0], self.layout.rows, rows[0])
        self.side = ShardStorage(path / "finals", columns[1], self.layout.rows, rows[1])
        self.relabeled = _counter(path / "relabelled.npy")

    def close(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        # nothing to release if it was never locked
        if "_descriptor" in vars(self):
            self.close()


def read_header(path: Path) -> dict[str, Any]:
    """Content of the directory's header.

    Raises:
        DataError: no header, or one that cannot be read or was altered.
    """
    header = read_json(path / HEADER, "replay", SCHEMA_VERSION, oldest=1)
    if header["schema_version"] > 1 and header.get("digest") != _digest(header):
        raise DataError(f"replay {path}: {HEADER} is not as it was written: its digest is of another content")
    return header


def make_directory(
    path: Path, layout: ReplayLayout, shard_bytes: int = SHARD_BYTES, owner: str = ""
) -> ReplayDirectory:
    """Make a new, empty directory for a replay buffer; one whose creation was interrupted counts as empty.

    Raises:
        ConfigError: `shard_bytes` is below 1, or `path` exists.
        RobotrlError: writing failed.
    """
    check_at_least("replay shard_bytes", shard_bytes, 1)
    taken = ConfigError(f"replay {path} exists: expected a new directory; Replay.open goes on with an old one")
    if path.exists() and (not path.is_dir() or any(not _begun(file) for file in path.iterdir())):
        raise taken
    ring, side = layout.ring_columns(), layout.side_columns()
    header: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "id": uuid.uuid4().hex,
        "owner": owner,
        "layout": layout.to_json(),
        SHARD_ROWS[0]: rows_per_shard(ring, layout.rows, shard_bytes),
        SHARD_ROWS[1]: rows_per_shard(side, layout.rows, min(shard_bytes, SIDE_SHARD_BYTES)),
    }
    try:
        path.mkdir(parents=True, exist_ok=True)
        # if two processes begin at the same moment, only one gets the directory
        lock = _lock(path)
        try:
            if (path / HEADER).exists():
                raise taken
            replace_file(path / HEADER, dump_json({**header, "digest": _digest(header)}))
        finally:
            os.close(lock)
    except OSError as error:
        raise RobotrlError(f"cannot make the replay {path}: {error.strerror}") from error
    return ReplayDirectory(path)


def _begun(file: Path) -> bool:
    """True if this file may be in a directory that does not have its header yet."""
    return file.name == "lock" or file.name.startswith(f".tmp-{HEADER}-")


def _digest(header: Mapping[str, Any]) -> str:
    """SHA-256 of a header's content."""
    return hashlib.sha256(dump_json({k: v for k, v in header.items() if k != "digest"})).hexdigest()


def _shard_rows(value: Any, columns: Mapping[str, StoredColumn]) -> int:
    """Rows per shard as stated in the header.

    Raises:
        ValueError: the number is impossible: a column would not be a whole number of pages.
    """
    rows = int(value)
    if rows < 1 or any(rows * column.row_bytes % PAGE_BYTES for column in columns.values()):
        raise ValueError(f"shards of {rows} rows: expected whole pages of {PAGE_BYTES} bytes in each column")
    return rows


def _lock(path: Path) -> int:
    """Acquire the lock; returns the descriptor that holds it until it is closed."""
    try:
        # non-blocking: do not wait if something else, such as a pipe, has the file's name
        descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o644)
    except OSError as error:
        raise RobotrlError(f"replay {path} cannot be locked: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise RobotrlError(f"replay {path} is open elsewhere: expected one user at a time") from error
    except OSError as error:
        os.close(descriptor)
        raise RobotrlError(f"replay {path} cannot be locked: {error.strerror}") from error
    return descriptor


def _counter(path: Path) -> np.ndarray:
    """One int64 in a memory-mapped npy file; made anew if the file is not whole.

    The npy header is known in advance: it is not parsed, and is rewritten if it was altered.

    Raises:
        RobotrlError: writing failed.
    """
    file = io.BytesIO()
    np.save(file, np.zeros(1, np.int64))
    blank = file.getvalue()
    offset = len(blank) - 8
    try:
        found = path.read_bytes() if path.is_file() and path.stat().st_size == len(blank) else blank
        if found[:offset] != blank[:offset] or not path.is_file() or path.stat().st_size != len(blank):
            replace_file(path, blank[:offset] + found[offset:])
        return np.memmap(path, np.dtype("<i8"), "r+", offset, (1,))
    except OSError as error:
        raise RobotrlError(f"replay file {path} cannot be used: {error.strerror}") from error
