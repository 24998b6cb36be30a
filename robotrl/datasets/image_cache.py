"""Decoded pictures in the user's cache folder: made once, then an ordinary array that the system reads from the disk.

A file holds one column, (F, height, width, 3) bytes in numpy's own format, and is named by what it was decoded from, so
an old one can never stand for a changed dataset. Nothing in it is needed: it may be deleted at any time.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robotrl.errors import DataError
from robotrl.utils.files import sync_directory

MIB = 2**20


class PictureRow(NamedTuple):
    """One decoded picture and the row that it belongs to."""

    row: int
    picture: np.ndarray
    """(height, width, 3) uint8."""


def cache_folder() -> Path:
    """Where decoded pictures are kept: `ROBOTRL_CACHE`, or the user's cache folder. Not made here."""
    home = os.environ.get("ROBOTRL_CACHE") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home).expanduser() / "robotrl" / "pictures"


def cached(key: str, shape: tuple[int, ...], decode: Callable[[], Iterable[PictureRow]], what: str) -> np.ndarray:
    """The pictures of a key, decoded on the first call anywhere; a second process waits for the first.

    Memory holds one picture while they are decoded, and what is looked at afterwards. Writes to the array stay in this
    process.

    Args:
        key: a digest of everything that the pictures follow from.
        shape: (F, height, width, 3).
        decode: gives each of the F rows once, in any order.
        what: whose pictures these are, for an error.

    Raises:
        DataError: the folder cannot be written or is full; how much room is needed is said. What `decode` raises goes
            through, and leaves no file.
    """
    folder = cache_folder()
    path = folder / f"{key}.npy"
    room = math.ceil(math.prod(shape) / MIB)
    with _errors_named(f"{what}: cannot be decoded to {folder}, {room} MiB: {{}}: set ROBOTRL_CACHE to another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / f"{key}.lock"):
            found = _mapped(path, shape)
            if found is not None:
                return found
            _write(path, shape, decode())
        made = _mapped(path, shape)
    if made is None:
        raise DataError(f"{what}: {path} was changed while it was made: expected an array of shape {shape}")
    return made


def _mapped(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """The file as an array; None where it is absent, or not whole because somebody cut it."""
    try:
        array: Any = np.load(path, mmap_mode="c", allow_pickle=False)
    except (FileNotFoundError, ValueError, EOFError):
        return None
    return np.asarray(array) if array.shape == shape and array.dtype == np.uint8 else None


def _write(path: Path, shape: tuple[int, ...], rows: Iterable[PictureRow]) -> None:
    # Written, not mapped: a full disk is then an error that can be reported, not a signal that ends the process.
    partial = path.with_suffix(".partial")
    try:
        with partial.open("wb") as file:
            header: dict[str, Any] = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            begin, size = file.tell(), math.prod(shape[1:])
            for row, picture in rows:
                file.seek(begin + row * size)
                file.write(np.ascontiguousarray(picture, np.uint8).tobytes())
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
    sync_directory(path.parent)


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Hold the lock; the system frees it however the process ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _errors_named(message: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(message.format(error.strerror or error)) from error
