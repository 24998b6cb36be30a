"""Checkpoints: directories that are written atomically and verified completely when read.

A checkpoint holds `weights.safetensors` (the arrays), `state.json` (everything else) and `manifest.json` (schema
version, step, kind, score, size and SHA-256 of the other two, and a digest of itself). Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robotrl.errors import DataError, RobotrlError, check_at_least, nearest, short
from robotrl.run.rng import generator_state, rng_state, set_generator_state, set_rng_state
from robotrl.run.state_tree import Tree, pack, unpack
from robotrl.run.tensors import read_weights, write_weights
from robotrl.utils.files import (
    check_schema,
    dump_json,
    kind_of_file,
    parse_json,
    read_plain,
    sync_directory,
    write_synced,
)

__all__ = [
    "Checkpoint",
    "CheckpointManifest",
    "Tree",
    "clean_leftovers",
    "generator_state",
    "manifest_digest",
    "read_checkpoint",
    "read_manifest",
    "read_state",
    "rng_state",
    "set_generator_state",
    "set_rng_state",
    "write_checkpoint",
]

SCHEMA_VERSION = 1
WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.json", "manifest.json"
TEMPORARY, REPLACED = ".tmp-", ".old-"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class CheckpointManifest:
    """Manifest of a checkpoint."""

    step: int
    """Training step at which it was written."""
    kind: str
    """Writer of the checkpoint, e.g. the algorithm's name."""
    score: float | None
    """Score by which the best checkpoint is chosen, higher is better; None if it was not evaluated."""
    files: dict[str, tuple[int, str]]
    """Size in bytes and SHA-256 of the other files."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and verified."""

    step: int
    kind: str
    tree: Any
    path: Path
    score: float | None = None


def write_checkpoint(directory: Path, tree: Any, *, step: int, kind: str, score: float | None = None) -> Path:
    """Write a checkpoint atomically: after a kill, `directory` is the new one, the previous one, or absent.

    The files go to a temporary sibling, each synced to the disk, the manifest last; then the sibling is renamed. A
    checkpoint already at `directory` is replaced; killed between the two renames this takes, `clean_leftovers` brings
    the old one back.

    Args:
        directory: the checkpoint's own directory; its parent is made when missing.
        tree: the state, a `robotrl.run.state_tree.Tree`; tensors on any device.
        step: training step, 0 or more.
        kind: writer, e.g. the algorithm's name.
        score: finite score by which the best checkpoint is chosen, higher is better; None if not evaluated.

    Returns:
        `directory`.

    Raises:
        ConfigError: `step` is negative, or a leaf of the tree cannot be saved (it is named).
        RobotrlError: writing failed (disk full, read-only, ...). An existing checkpoint at `directory` is unchanged.
    """
    check_at_least("checkpoint step", step, 0)
    data, arrays = pack(tree)
    temporary = directory.with_name(f"{TEMPORARY}{directory.name}-{os.getpid()}")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            _write_files(temporary, data, arrays, {"step": step, "kind": kind, "score": score})
            _move_into_place(temporary, directory)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as error:
        raise RobotrlError(
            f"cannot write checkpoint {directory}: {error.strerror}; nothing was left half-written"
        ) from error
    return directory


def read_manifest(directory: Path) -> CheckpointManifest:
    """Read and verify the manifest alone, without the files that it lists.

    Raises:
        DataError: it is missing, altered, or of another schema version.
    """
    what = f"checkpoint {directory}: {MANIFEST}"
    try:
        raw = read_plain(directory / MANIFEST, what)
    except FileNotFoundError:
        raise _missing(directory) from None
    except OSError as error:
        raise DataError(f"{what} cannot be read: {error.strerror}") from error
    read = parse_json(raw, what)
    if isinstance(read, dict) and "bundle_id" in read:
        raise DataError(
            f"{directory} is a bundle: expected a run or a checkpoint, such as the run it was exported from"
        )
    fields = check_schema(read, what, SCHEMA_VERSION)
    claimed = fields.get("digest")
    body = {key: value for key, value in fields.items() if key != "digest"}
    # The second condition refuses bytes that JSON ignores, such as extra white space: only the written text is valid.
    if claimed != _digest(body) or _dump_or_empty(fields) != raw:
        raise DataError(f"{what} does not match its digest: it was altered")
    try:
        files = {name: (int(entry["size"]), str(entry["sha256"])) for name, entry in fields["files"].items()}
        score = fields["score"]
        return CheckpointManifest(
            int(fields["step"]), str(fields["kind"]), None if score is None else float(score), files
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{what} lacks what a manifest holds ({short(repr(error))})") from error


def manifest_digest(directory: Path) -> str:
    """SHA-256 of a checkpoint's manifest, which holds those of its files: 64 hexadecimal digits.

    Raises:
        DataError: as of `read_manifest`.
    """
    read_manifest(directory)
    return hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest()


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read a checkpoint and verify every byte.

    Raises:
        DataError: the directory, or a file in it, is missing, truncated, altered, extra, or of a newer schema version;
            the message names the file and what is wrong with it.
    """
    manifest = read_manifest(directory)
    try:
        found = {entry.name for entry in directory.iterdir()} - {MANIFEST}
    except OSError as error:
        raise DataError(f"checkpoint {directory} cannot be read: {error.strerror}") from error
    wanted = {WEIGHTS, STATE}
    if set(manifest.files) != wanted:
        raise DataError(f"checkpoint {directory}: {MANIFEST} lists {sorted(manifest.files)}: expected {sorted(wanted)}")
    for name in sorted(wanted - found):
        raise DataError(f"checkpoint {directory}: {name} is missing")
    for name in sorted(found - wanted):
        raise DataError(f"checkpoint {directory}: {name} is not one of its files: move it elsewhere")
    for name, (size, sha256) in manifest.files.items():
        _verify(directory / name, size, sha256, f"checkpoint {directory}: {name}")
    return Checkpoint(manifest.step, manifest.kind, _read_tree(directory), directory, manifest.score)


def read_state(directory: Path) -> Any:
    """State of a checkpoint with None in place of each array; fast for weights of any size.

    Raises:
        DataError: as of `read_checkpoint`, but the weights are not checked.
    """
    what = f"checkpoint {directory}: {STATE}"
    manifest = read_manifest(directory)
    if STATE not in manifest.files:
        raise DataError(f"checkpoint {directory}: {MANIFEST} does not list {STATE}")
    _verify(directory / STATE, *manifest.files[STATE], what)
    return _tree(directory, lambda kind, name: None)


def clean_leftovers(parent: Path) -> None:
    """Clean a checkpoint directory after a kill: remove temporary checkpoints, restore one that was being replaced.

    Call it only in the process that holds the write lock.
    """
    for path in sorted(parent.iterdir()):
        if path.name.startswith(REPLACED):
            original = parent / path.name.removeprefix(REPLACED)
            if original.exists():
                shutil.rmtree(path)
            else:
                path.rename(original)
        elif path.name.startswith(TEMPORARY):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _write_files(directory: Path, data: Any, arrays: dict[str, Any], fields: dict[str, Any]) -> None:
    weights_size, weights_sha = write_weights(directory / WEIGHTS, arrays)
    state = dump_json({"schema_version": SCHEMA_VERSION, "tree": data})
    write_synced(directory / STATE, state)
    files = {
        STATE: {"size": len(state), "sha256": hashlib.sha256(state).hexdigest()},
        WEIGHTS: {"size": weights_size, "sha256": weights_sha},
    }
    body = {"schema_version": SCHEMA_VERSION, **fields, "files": files}
    write_synced(directory / MANIFEST, dump_json({**body, "digest": _digest(body)}))
    sync_directory(directory)


def _move_into_place(temporary: Path, directory: Path) -> None:
    old = directory.with_name(REPLACED + directory.name)
    replacing = directory.exists()
    if replacing:
        shutil.rmtree(old, ignore_errors=True)
        directory.rename(old)
    try:
        temporary.rename(directory)
    except BaseException:
        if replacing:
            with contextlib.suppress(OSError):  # report the first error; clean_leftovers tries again
                old.rename(directory)
        raise
    sync_directory(directory.parent)
    if replacing:
        shutil.rmtree(old, ignore_errors=True)


def _verify(path: Path, size: int, sha256: str, what: str) -> None:
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise DataError(f"{what} is {kind_of_file(about.st_mode)}: expected a plain file")
        found = about.st_size
        if found != size:
            raise DataError(
                f"{what} has {found} bytes: {MANIFEST} says {size}; it was {'truncated' if found < size else 'altered'}"
            )
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise DataError(f"{what} cannot be read: {error.strerror}") from error
    if digest.hexdigest() != sha256:
        raise DataError(f"{what} does not match its SHA-256: it was altered")


def _read_tree(directory: Path) -> Any:
    from safetensors import SafetensorError

    what = f"checkpoint {directory}"
    try:
        arrays = read_weights(directory / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{what}: {WEIGHTS} cannot be read: {short(str(error))}") from error

    def take(kind: str, name: str) -> Any:
        tensor = arrays.pop(name)
        return tensor if kind == "torch" else tensor.numpy() if kind == "numpy" else tensor.numpy()[()]

    tree = _tree(directory, take)
    if arrays:
        raise DataError(f"{what}: {WEIGHTS} holds arrays that {STATE} does not name: {', '.join(sorted(arrays))}")
    return tree


def _tree(directory: Path, take: Callable[[str, str], Any]) -> Any:
    """State tree of `state.json`; see `unpack` for `take`."""
    what = f"checkpoint {directory}: {STATE}"
    try:
        state = check_schema(parse_json(read_plain(directory / STATE, what), what), what, SCHEMA_VERSION)
        return unpack(state["tree"], take)
    except OSError as error:
        raise DataError(f"{what} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise DataError(f"{what} and {WEIGHTS} do not fit together ({short(repr(error))})") from error


def _missing(directory: Path) -> DataError:
    if directory.is_dir():
        return DataError(f"checkpoint {directory}: {MANIFEST} is missing")
    parent = directory.parent
    names = [path.name for path in parent.iterdir() if not path.name.startswith(".")] if parent.is_dir() else []
    close = nearest(directory.name, names)
    return DataError(f"checkpoint {directory} does not exist" + (f": did you mean {close!r}?" if close else ""))


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(_dump_or_empty(body)).hexdigest()


def _dump_or_empty(fields: dict[str, Any]) -> bytes:
    try:
        return dump_json(fields)
    except ValueError:  # JSON that Python reads but this module never writes, such as NaN
        return b""
