"""A directory that appears under its name whole or not at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Force a file's or directory's bytes to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(partial: Path, final: Path) -> None:
    """Force all of `partial` to the disk, then give it its name; `final` is absent or an empty directory.

    Raises:
        OSError: the disk is full or failing, or `final` was filled in the meantime.
    """
    for path in sorted(partial.rglob("*"), reverse=True):
        sync(path)
    sync(partial)
    partial.rename(final)
    sync(final.parent)
