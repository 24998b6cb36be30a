"""`meta/robotrl.json`: what the LeRobot layout does not store, and hashes of all files.

It holds the array specs with units and bounds, the provenance of the data (sim, expert settings, seed), and size and
SHA-256 of every other file; its own content is covered by `digest`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robotrl.datasets.layout import INFO, MANIFEST, refuse
from robotrl.errors import DataError, nearest
from robotrl.spec import Spec
from robotrl.utils.atomic_directory import sha256_file
from robotrl.utils.files import check_schema, not_fetched, parse_json, read_plain

SCHEMA_VERSION = 1
POINTER_BYTES = 1024
"""Upper limit of the size of a git-LFS pointer file."""


def write_manifest(
    root: Path, observation_spec: Mapping[str, Spec], action_spec: Spec, provenance: Mapping[str, Any]
) -> None:
    """Hash all files under `root` and write the manifest beside them; nothing may change afterwards."""
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "observation_spec": {key: spec.to_json() for key, spec in observation_spec.items()},
        "action_spec": action_spec.to_json(),
        "provenance": dict(provenance),
        "files": {name: _fingerprint(root / name) for name in _files(root)},
    }
    content = json.loads(json.dumps(content, allow_nan=False))
    content["digest"] = _digest(content)
    write_json(root / MANIFEST, content)


def read_manifest(root: Path) -> dict[str, Any] | None:
    """Read and verify the manifest and every file it lists; None when the dataset has no manifest.

    Raises:
        DataError: another schema version, or a file that is missing, added, truncated or altered.
    """
    if not os.path.lexists(root / MANIFEST):
        return None
    content = _manifest(root)
    listed, found = content["files"], _files(root)
    for name in listed:
        if name not in found:
            close = nearest(name, set(found) - set(listed))
            raise refuse(root, name, "is missing" + (f": found {close} instead" if close else ""))
    for name in found:
        if name not in listed:
            raise refuse(root, name, f"is not listed in {MANIFEST}: it was added after the dataset was written")
    for name, expected in listed.items():
        size = (root / name).stat().st_size
        if size != expected["bytes"]:
            how = "truncated" if size < expected["bytes"] else "altered"
            raise refuse(root, name, f"is {how}: {size} bytes, expected {expected['bytes']}")
        if _fingerprint(root / name) != expected:
            raise refuse(root, name, f"was altered: its SHA-256 is not the one in {MANIFEST}")
    return content


def check_fetched(root: Path) -> None:
    """Check that no file is an unfetched git-LFS pointer.

    Raises:
        DataError: the first such file.
    """
    for name in _files(root):
        error = not_fetched(root / name) if (root / name).stat().st_size <= POINTER_BYTES else None
        if error is not None:
            raise error


def dataset_digest(root: Path | str) -> str:
    """SHA-256 of a dataset, 64 hexadecimal digits: equal if data, tables and statistics are equal.

    For a dataset written by robotrl only the manifest is read, which lists the hash of every file; reading the dataset
    verifies those. For other datasets every file is read. Other files in the directory do not count.

    Args:
        root: the dataset's directory.

    Raises:
        DataError: there is no dataset, a file cannot be read, or the manifest was altered.
    """
    root = Path(root)
    if not (root / INFO).is_file():
        raise refuse(root, INFO, "is missing: expected a dataset")
    if os.path.lexists(root / MANIFEST):
        return str(_manifest(root)["digest"])
    try:
        return _digest({name: _fingerprint(root / name) for name in _files(root)})
    except OSError as error:
        raise DataError(f"dataset {root} cannot be read: {' '.join(str(error).split())}") from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write strict JSON (no NaN); parent folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=4, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def read_json(root: Path, name: str) -> dict[str, Any]:
    """Read a JSON object of the dataset.

    Raises:
        DataError: missing, truncated, or not an object.
    """
    try:
        content = parse_json(read_plain(root / name, name), name)
    except FileNotFoundError as error:
        raise refuse(root, name, "is missing") from error
    except (OSError, DataError) as error:
        raise refuse(root, name, f"cannot be read as JSON, truncated or altered: {error}") from error
    if not isinstance(content, dict):
        raise refuse(root, name, f"holds a {type(content).__name__}: expected a JSON object")
    return content


def _manifest(root: Path) -> dict[str, Any]:
    """Read the manifest and check its own digest, but not the files that it lists."""
    content = check_schema(read_json(root, MANIFEST), f"dataset {root}: {MANIFEST}", SCHEMA_VERSION)
    if content.get("digest") != _digest({key: value for key, value in content.items() if key != "digest"}):
        raise refuse(root, MANIFEST, "was altered: its content does not give its digest")
    return content


def _files(root: Path) -> list[str]:
    """Data files of the dataset; other files (a README, a license) are ignored."""
    folders = (root / "data", root / "meta", root / "videos")
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in (path.relative_to(root).as_posix() for path in paths) if name != MANIFEST)


def _fingerprint(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def _digest(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
