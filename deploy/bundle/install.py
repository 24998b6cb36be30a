"""Atomic creation and replacement of a bundle's directory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from robotrl.deploy.bundle.manifest import MANIFEST_FILE
from robotrl.errors import ConfigError, DataError


class Draft:
    """A temporary directory that becomes the bundle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, data: bytes) -> None:
        """Write one file and flush it to the disk."""
        with open(self.path / name, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def installed(target: Path, *, overwrite: bool) -> Generator[Draft, None, None]:
    """Context with a draft that is renamed to `target` on success and deleted on an error.

    With `overwrite` an existing bundle is moved aside first and deleted last; after a crash between the two it remains
    next to the target under a name that ends in `.old`.

    Args:
        target: the directory to create.
        overwrite: replace an existing bundle. Anything else that exists at `target` is never touched.

    Raises:
        ConfigError: `target` exists and may not be replaced.
        DataError: the disk refuses (full, read-only).
    """
    if target.exists() or target.is_symlink():
        if not overwrite:
            raise ConfigError(f"path {str(target)!r} exists: expected a new name, or overwrite")
        if target.is_symlink() or not (target / MANIFEST_FILE).is_file():
            raise ConfigError(f"path {str(target)!r} is not a bundle: it will not be replaced")
    draft = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".new", dir=target.parent))
        yield Draft(draft)
        draft.chmod(0o755)
        _sync(draft)
        aside = draft.with_suffix(".old") if target.exists() else None
        if aside is not None:
            target.rename(aside)
        draft.rename(target)
        _sync(target.parent)
        if aside is not None:
            shutil.rmtree(aside)
    except OSError as error:
        raise DataError(f"path {str(target)!r} cannot be written: {error.strerror or error}") from error
    finally:
        if draft is not None and draft.exists():
            shutil.rmtree(draft, ignore_errors=True)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
