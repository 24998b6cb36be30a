"""Checks of output files before the robot moves."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from robotrl.errors import DataError

_LOOKED_AT = 256


def check_output(path: Path, what: str, begins: re.Pattern[bytes], *, outside: Path, stream: bool = False) -> None:
    """Check that a file can be written without overwriting another kind of file; writes nothing.

    An existing file may be replaced if it is empty or of the same kind. Missing folders are created with the file.

    Args:
        path: path of the file.
        what: its name in errors ("log").
        begins: pattern of the first bytes of a file of this kind.
        outside: folder that must not contain the file (the bundle's).
        stream: written sequentially, so that a character device is allowed, too.

    Raises:
        DataError: the file must not or cannot be written; names the reason.
    """
    name = f"{what} {str(path)!r}"
    try:
        if outside.resolve() in path.resolve().parents:
            raise DataError(f"{name} lies in the bundle {str(outside)!r}: expected a place outside of it")
        mode = path.stat().st_mode if path.exists() else None
        if mode is None:
            _check_folder(path, name)
        elif not (stat.S_ISREG(mode) or (stream and stat.S_ISCHR(mode))):
            raise DataError(f"{name} cannot be written: expected a plain file, or a new name")
        elif not os.access(path, os.W_OK):
            raise DataError(f"{name} cannot be written: Permission denied")
        elif stat.S_ISREG(mode):
            with path.open("rb") as file:
                found = file.read(_LOOKED_AT)
            if found and not begins.match(found):
                raise DataError(f"{name} exists and is no {what}: expected a new name, it will not be replaced")
    except (OSError, ValueError, RuntimeError) as error:  # invalid names, circular links
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{name} cannot be written: {reason}") from error


def _check_folder(path: Path, name: str) -> None:
    if path.is_symlink():
        raise DataError(f"{name} is a link to nothing: expected a plain file, or a new name")
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise DataError(f"{name} cannot be written: {str(folder)!r} is not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(f"{name} cannot be written: {str(folder)!r} is not writable")
