"""Checks of output paths before a command does any work; a refused command leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Generator, Sequence
from pathlib import Path

from robotrl.errors import ConfigError, DataError, short
from robotrl.utils.files import kind_of_file

OF_A_RUN = (
    "config.json",
    "run.json",
    "inputs.json",
    "versions.json",
    "git.json",
    "session.json",
    "scalars.jsonl",
    "lock",
    "tb",
    "checkpoints",
    "base",
    "wandb",
)
"""Files of a run; other files may be in its directory."""


def writable(
    option: str,
    path: Path,
    endings: Sequence[str] = (),
    *,
    inputs: Sequence[Path] = (),
    makes_folder: bool = False,
) -> None:
    """Check that a file can be written.

    Args:
        option: option that names the file, for errors.
        path: the file.
        endings: allowed file extensions; empty allows any.
        inputs: directories that the command reads, which it must not change.
        makes_folder: whether a missing folder of the file is made.

    Raises:
        ConfigError: another extension; a missing or write-protected folder; a folder or device; or a part of an input.
    """
    if endings and path.suffix.lower() not in endings:
        raise ConfigError(f"{_is(option, path)}: expected a name that ends in {' or '.join(endings)}")
    mode = _mode(option, path)
    if mode is not None and not stat.S_ISREG(mode):
        raise ConfigError(f"{_is(option, path)}: that is {kind_of_file(mode)}, expected a file")
    if mode is not None and not os.access(path, os.W_OK):
        raise ConfigError(f"{_is(option, path)}: that file may not be written")
    if makes_folder:
        _can_make(option, path)
    else:
        folder = path.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise ConfigError(
                f"{_is(option, path)}: folder {short(str(folder))} "
                f"{'is not writable' if folder.is_dir() else 'does not exist'}"
            )
        _try(option, path)
    _keep_apart(option, path, inputs)


def _try(option: str, path: Path) -> None:
    """Try to create a file: a file system can refuse writes that permissions allow (pseudo files, long names)."""
    trial = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise ConfigError(f"{_is(option, path)}: it cannot be written ({error.strerror})") from error


def makeable(option: str, path: Path) -> None:
    """Check that a folder exists or can be made.

    Raises:
        ConfigError: the path is a file or device, has an impossible name, or is in a write-protected place.
    """
    mode = _mode(option, path)
    if mode is not None and not stat.S_ISDIR(mode):
        raise ConfigError(f"{_is(option, path)}: that is {kind_of_file(mode)}, expected a folder")
    _can_make(option, path)


@contextlib.contextmanager
def fresh_folder(option: str, path: Path, *, inputs: Sequence[Path] = (), replaces: bool = False) -> Generator[None]:
    """Check that a folder can be made; if the work in it fails, remove it and the parent folders that were made.

    Args:
        option: option that names the folder, for errors.
        path: the folder.
        inputs: directories that the command reads, which it must not change.
        replaces: whether an existing folder is replaced; the caller checks its content.

    Raises:
        ConfigError: the path exists, cannot be made, or is a part of an input.
    """
    there = _mode(option, path) is not None
    if there and not replaces and not (path.is_dir() and not any(path.iterdir())):
        raise ConfigError(f"{_is(option, path)}: that exists already, expected the name of a new directory")
    _can_make(option, path)
    _keep_apart(option, path, inputs)
    missing = [folder for folder in path.absolute().parents if not folder.exists()]
    try:
        yield
    except BaseException:
        if not there:
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            for folder in missing:
                folder.rmdir()
        raise


def _mode(option: str, path: Path) -> int | None:
    """`st_mode` of a path; None if it does not exist.

    Raises:
        ConfigError: the path is impossible.
    """
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{_is(option, path)}: {why}") from error


def _can_make(option: str, path: Path) -> None:
    """Check that a path has a parent folder that exists and is writable, or can be made."""
    folder = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not folder.is_dir():
        raise ConfigError(f"{_is(option, path)}: {short(str(folder))} is no folder")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{_is(option, path)}: folder {short(str(folder))} is not writable")


def _keep_apart(option: str, path: Path, inputs: Sequence[Path]) -> None:
    """Check that a path is neither inside an input nor contains one."""
    from robotrl.api.inspection import kind_of

    place = Path(os.path.realpath(path))
    for given in inputs:
        root = Path(os.path.realpath(given))
        if place in root.parents or place == root:
            raise ConfigError(f"{_is(option, path)}: {given} lies there, which is read; expected another place")
        if root not in place.parents:
            continue
        try:
            kind = kind_of(root)
        except DataError:  # reported when the input is read
            continue
        if kind != "run" or place.relative_to(root).parts[0] in OF_A_RUN:
            raise ConfigError(
                f"{_is(option, path)}: that is in the {kind} {given}, which is read; expected a place outside"
            )


def _is(option: str, path: Path) -> str:
    return f"{option} is {short(str(path))}"
