"""Atomic publication of a directory: it appears under its name completely or not at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from robotrl.utils.files import sync_directory


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def publish(partial: Path, final: Path) -> None:
    """Sync all of `partial` to the disk, then rename it to `final`, which is absent or an empty directory.

    Raises:
        OSError: the disk is full or failing, or `final` was filled in the meantime.
    """
    for path in sorted(partial.rglob("*"), reverse=True):
        if path.is_dir():
            sync_directory(path)
        else:
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
    sync_directory(partial)
    partial.rename(final)
    sync_directory(final.parent)
