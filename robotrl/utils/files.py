"""Atomic file writes and strict, bounded reads; JSON with a schema version.

Input may come from a stranger. It is read in bounded time and memory, or refused with a one-line error: pipes and
devices are not read, and JSON is limited in size and nesting.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from robotrl.errors import DataError, short

LARGEST = 1 << 28
"""Size limit, in bytes, of a file that is read as a whole: JSON, vocabularies, maps."""
DEEPEST = 100
"""Nesting limit of JSON, far below the interpreter's recursion limit."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""One half of a surrogate pair in JSON, which is not a character by itself."""

POINTER = b"version https://git-lfs"
"""First bytes of a git-LFS pointer, which stands in for a file that was not fetched."""


def not_fetched(path: Path) -> DataError | None:
    """Error for a file that is a git-LFS pointer; None for any other file, and for one that cannot be opened."""
    try:
        with open_plain(path, str(path)) as file:
            begins = file.read(len(POINTER))
    except (OSError, DataError):
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
    """Sync a directory, so that its entries survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and sync it to the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: readers see the complete old or new content, also after a kill.

    Raises:
        OSError: writing failed; the old file is unchanged and the temporary one is removed.
    """
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        write_synced(temporary, data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def read_json(path: Path, what: str, schema_version: int, oldest: int | None = None) -> dict[str, Any]:
    """Read a JSON object and check its `schema_version`.

    Args:
        path: the file.
        what: description of the file in errors ("run config").
        schema_version: the version that this code reads.
        oldest: the oldest version that it reads as well; None: no other.

    Raises:
        DataError: missing, not a regular file, unreadable, not a JSON object, or of another schema version.
    """
    found = f"{what} {path}"
    try:
        data = parse_json(read_plain(path, found), found)
    except FileNotFoundError:
        raise DataError(f"{found} does not exist") from None
    except OSError as error:
        raise DataError(f"{found} cannot be read: {error.strerror}") from error
    return check_schema(data, found, schema_version, oldest)


def open_plain(path: Path, what: str) -> BinaryIO:
    """Open a regular file for reading; other kinds are refused without reading or waiting.

    Args:
        path: the file.
        what: description of the file with its path, for errors.

    Raises:
        DataError: a folder, a pipe, a socket, a device, or a name that no file can have.
        OSError: it does not exist, or cannot be opened.
    """
    try:
        # opening a pipe without a writer would block
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a zero byte, or a character that no file name can hold
        raise DataError(f"{what} cannot be read: {error}") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise DataError(f"{what} is {kind_of_file(mode)}: expected a plain file")
    return open(descriptor, "rb")


def read_plain(path: Path, what: str, largest: int = LARGEST) -> bytes:
    """Read all bytes of a regular file.

    Args:
        path: the file.
        what: description of the file with its path, for errors.
        largest: size limit in bytes.

    Raises:
        DataError: as of `open_plain`, or a larger file.
        OSError: it does not exist, or cannot be read.
    """
    with open_plain(path, what) as file:
        size = os.fstat(file.fileno()).st_size
        if size > largest:
            raise DataError(f"{what} has more than {largest:,} bytes: expected no more")
        # a read of so many bytes reserves them at once
        return file.read(size)


def kind_of_file(mode: int) -> str:
    """Name of a file's type from its `st_mode`, for errors."""
    kinds = (
        (stat.S_ISREG, "a file"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((name for test, name in kinds if test(mode)), "a device")


def parse_json(raw: bytes, what: str) -> Any:
    """Parse JSON strictly: text that two parsers could interpret differently is refused.

    Args:
        raw: UTF-8 text.
        what: description with the path, for errors.

    Raises:
        DataError: not JSON, a key given twice, NaN or an infinity, half a character, or nested deeper than `DEEPEST`.
    """
    try:
        data = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_constant, parse_float=_float)
        if _SURROGATE.search(raw):
            json.dumps(data, ensure_ascii=False).encode()
    except RecursionError:
        raise _too_deep(what) from None
    except ValueError as error:
        raise DataError(f"{what} is not JSON ({short(str(error), 160)}): it was truncated or altered") from error
    level = [data]
    for _ in range(DEEPEST):
        level = [item for value in level if isinstance(value, dict | list) for item in _items(value)]
        if not level:
            return data
    raise _too_deep(what)


def _items(value: dict[str, Any] | list[Any]) -> Any:
    return value.values() if isinstance(value, dict) else value


def _too_deep(what: str) -> DataError:
    return DataError(f"{what} is nested deeper than {DEEPEST} levels: expected less")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {short(next(key for key in keys if keys.count(key) > 1))} stands there twice")
    return out


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{short(text)} is not a finite number")
    return value


def check_schema(data: Any, what: str, schema_version: int, oldest: int | None = None) -> dict[str, Any]:
    """Return `data` if it is a JSON object of this schema version, or of a version from `oldest` on.

    Raises:
        DataError: it is not; the version that was found is named.
    """
    if not isinstance(data, dict):
        raise DataError(f"{what} holds a {type(data).__name__}: expected a JSON object")
    found: dict[str, Any] = data  # pyright: ignore[reportUnknownVariableType]  # JSON objects have string keys
    version = found.get("schema_version")
    if type(version) is not int:
        raise DataError(f"{what} has schema_version {short(repr(version))}: expected {schema_version}")
    if version > schema_version:
        raise DataError(
            f"{what} has schema_version {short(repr(version))}, written by a newer robotrl: "
            f"this one reads {schema_version}; upgrade robotrl"
        )
    if version < (schema_version if oldest is None else oldest):
        raise DataError(f"{what} has schema_version {short(repr(version))}: expected {schema_version}")
    return found


def cache_folder() -> Path | None:
    """Cache directory `robotrl` of the user, created if missing; None if it is not writable."""
    fallback = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or fallback).expanduser() / "robotrl"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK) else None
