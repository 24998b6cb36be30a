"""A replay as a directory: `replay.json` says what it holds, `lock` who writes, `shards/`, `finals/` hold the steps."""

from __future__ import annotations

import fcntl
import uuid
from pathlib import Path
from typing import IO, Any

import numpy as np

from robotrl.data.replay_layout import Layout
from robotrl.data.replay_shards import ShardStorage, rows_per_shard
from robotrl.errors import ConfigError, DataError, RobotrlError, check_at_least
from robotrl.files import dump_json, read_json, replace_file

SCHEMA_VERSION = 1
HEADER = "replay.json"
SHARD_BYTES = 64 << 20
SIDE_SHARD_BYTES = 4 << 20


class ReplayDirectory:
    """An opened directory, locked for this process.

    Args:
        path: it holds a header.

    Raises:
        DataError: no header, or one that cannot be read.
        RobotrlError: another process has it open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        header = read_json(path / HEADER, "replay", SCHEMA_VERSION)
        self._lock: IO[str] | None = _lock(path)
        try:
            self.identity = str(header["id"])
            self.layout = Layout.from_json(header["layout"])
            rows = int(header["shard_rows"]), int(header["side_shard_rows"])
        except (KeyError, TypeError, ValueError) as error:
            self.close()
            raise DataError(f"replay {path}: {HEADER} lacks what it should hold ({error!r})") from error
        self.ring = ShardStorage(path / "shards", self.layout.ring_columns(), self.layout.rows, rows[0])
        self.side = ShardStorage(path / "finals", self.layout.side_columns(), self.layout.rows, rows[1])
        self.relabelled = _counter(path / "relabelled.npy")

    def close(self) -> None:
        """Let others open it."""
        if self._lock:
            self._lock.close()
            self._lock = None


def make_directory(path: Path, layout: Layout, shard_bytes: int = SHARD_BYTES) -> ReplayDirectory:
    """A new, empty directory for a replay.

    Raises:
        ConfigError: `shard_bytes` is below 1, or there is something at `path`.
        RobotrlError: the disk refused.
    """
    check_at_least("replay shard_bytes", shard_bytes, 1)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"replay {path} exists: expected a new directory; Replay.open goes on with an old one")
    ring, side = layout.ring_columns(), layout.side_columns()
    header: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "id": uuid.uuid4().hex,
        "layout": layout.to_json(),
        "shard_rows": rows_per_shard(ring, layout.rows, shard_bytes),
        "side_shard_rows": rows_per_shard(side, layout.rows, min(shard_bytes, SIDE_SHARD_BYTES)),
    }
    try:
        path.mkdir(parents=True, exist_ok=True)
        replace_file(path / HEADER, dump_json(header))
    except OSError as error:
        raise RobotrlError(f"cannot make the replay {path}: {error.strerror}") from error
    return ReplayDirectory(path)


def _lock(path: Path) -> IO[str]:
    file = (path / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise RobotrlError(f"replay {path} is open elsewhere: expected one user at a time") from error
    return file


def _counter(path: Path) -> np.ndarray:
    """One int64 in a mapped file; made anew where it is not whole."""
    if not path.is_file() or path.stat().st_size != 136:
        np.save(path, np.zeros(1, np.int64))
    return np.load(path, mmap_mode="r+", allow_pickle=False)
