"""Cache of decoded images: decoded once into a file of the user's cache folder, then memory-mapped as an array.

A file holds one column, (F, height, width, 3) bytes in npy format. Its name is a hash of the encoded source, so a stale
file is never used for a changed dataset. The cache may be deleted at any time.
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
    """A decoded image and its row."""

    row: int
    picture: np.ndarray
    """(height, width, 3) uint8."""


def cache_folder() -> Path:
    """Cache folder for decoded images: `ROBOTRL_CACHE`, or the user's cache folder. It is not created here."""
    home = os.environ.get("ROBOTRL_CACHE") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home).expanduser() / "robotrl" / "pictures"


def cached(key: str, shape: tuple[int, ...], decode: Callable[[], Iterable[PictureRow]], what: str) -> np.ndarray:
    """Images of a cache key; the first call decodes them, and other processes wait for it.

    Decoding holds one image in memory; afterwards only the pages that are read. Writes to the array stay in this
    process.

    Args:
        key: digest of everything that determines the images.
        shape: (F, height, width, 3).
        decode: gives each of the F rows once, in any order.
        what: name of the images' source, for errors.

    Raises:
        DataError: the folder cannot be written or is full; the required space is named. Exceptions of `decode`
            propagate, and leave no file.
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
    """The cached file as an array; None if it is absent or truncated."""
    try:
        array: Any = np.load(path, mmap_mode="c", allow_pickle=False)
    except (FileNotFoundError, ValueError, EOFError):
        return None
    return np.asarray(array) if array.shape == shape and array.dtype == np.uint8 else None


def _write(path: Path, shape: tuple[int, ...], rows: Iterable[PictureRow]) -> None:
    # Written, not mapped: a full disk is then an error that can be reported, not a SIGBUS that kills the process.
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
    """Hold the lock; the operating system frees it when the process ends."""
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
