"""Files that are either whole or absent: JSON with a schema version, written beside and renamed into place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from robotrl.errors import DataError

POINTER = b"version https://git-lfs"
"""The first bytes of a file that git-LFS leaves in the place of one that was not fetched."""


def not_fetched(path: Path) -> DataError | None:
    """The error for a file that is a git-LFS pointer; None for any other, and for one that cannot be opened."""
    try:
        with path.open("rb") as file:
            begins = file.read(len(POINTER))
    except OSError:
        return None
    if begins != POINTER:
        return None
    return DataError(
        f"{path} is a git-LFS pointer: expected the file itself; fetch it by `git lfs pull` in {path.parent}"
    )


def dump_json(data: Any) -> bytes:
    """Strict JSON (no NaN, no Infinity), indented, ending in a newline; equal data gives equal bytes.

    Raises:
        ValueError: a float is not finite.
        TypeError: something is not JSON.
    """
    return (json.dumps(data, indent=1, allow_nan=False) + "\n").encode()


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: whoever reads, and whatever is killed, sees the old content or the new, whole.

    Raises:
        OSError: the disk refused; the old file is untouched and the temporary one is gone.
    """
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        write_synced(temporary, data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def read_json(path: Path, what: str, schema_version: int) -> dict[str, Any]:
    """Read a JSON object and check its `schema_version`.

    Args:
        path: the file.
        what: what the file is, as an error should call it ("run config").
        schema_version: the version that this code reads.

    Raises:
        DataError: missing, unreadable, not a JSON object, or of another schema version.
    """
    try:
        data: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{what} {path} does not exist") from None
    except OSError as error:
        raise DataError(f"{what} {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{what} {path} is not JSON ({error}): it was truncated or altered") from error
    return check_schema(data, f"{what} {path}", schema_version)


def check_schema(data: Any, what: str, schema_version: int) -> dict[str, Any]:
    """Return `data` if it is a JSON object of this schema version.

    Raises:
        DataError: it is not; the message says which version was found.
    """
    if not isinstance(data, dict):
        raise DataError(f"{what} holds a {type(data).__name__}: expected a JSON object")
    found: dict[str, Any] = data  # pyright: ignore[reportUnknownVariableType]  # JSON objects have string keys
    version = found.get("schema_version")
    if type(version) is not int:
        raise DataError(f"{what} has schema_version {version!r}: expected {schema_version}")
    if version > schema_version:
        raise DataError(
            f"{what} has schema_version {version}, written by a newer robotrl: "
            f"this one reads {schema_version}; upgrade robotrl"
        )
    if version < schema_version:
        raise DataError(f"{what} has schema_version {version}: expected {schema_version}")
    return found
