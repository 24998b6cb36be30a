"""`inputs.json` of a run: digests of its inputs at the beginning, so that a resume detects changes.

It holds the digests of the run's own files that are never changed, its seed, and a digest for each input from outside.
It has a digest of its own, which `run.json` repeats.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from robotrl.errors import DataError, short
from robotrl.spec import Input
from robotrl.utils.files import dump_json, read_json, read_plain

SCHEMA_VERSION = 1
NAME = "inputs.json"
OWN = ("config.json", "versions.json", "git.json")
"""Files of a run that are written once."""
RECORDS = ("versions.json", "git.json")
"""Provenance records among them, which do not influence training."""


class Digest(NamedTuple):
    """An input and the SHA-256 of its content."""

    input: Input
    sha256: str | None
    """None if the input does not exist."""
    fault: str = ""
    """Reason why it could not be read; "" if it could."""


class Sealed(NamedTuple):
    """Content of `inputs.json`."""

    files: dict[str, str]
    """SHA-256 of the run's own files."""
    seed: int
    inputs: tuple[Digest, ...]
    digest: str
    """Digest of all fields above."""


class Changes(NamedTuple):
    """Differences from the run's beginning, one phrase each."""

    blocking: list[str]
    """Changed inputs that a resume would read."""
    said: list[str]
    """Missing inputs, and changed ones that a resume does not need."""


def sealed(files: Mapping[str, bytes], seed: int, inputs: Sequence[Digest]) -> dict[str, Any]:
    """Build the content of `inputs.json`.

    Args:
        files: contents of the run's own unchanging files, by name.
        seed: the run's seed.
        inputs: digests of its inputs from outside.
    """
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "files": {name: _sha256(data) for name, data in files.items()},
        "seed": seed,
        "inputs": [{**digest.input._asdict(), "sha256": digest.sha256} for digest in inputs],
    }
    return {**content, "digest": _sha256(dump_json(content))}


def read_sealed(run: Path) -> Sealed | None:
    """Read `inputs.json`; None if the run was written by a version without it.

    Raises:
        DataError: it was altered, or is of another version.
    """
    path = run / NAME
    if not path.exists():
        return None
    content = read_json(path, "run inputs", SCHEMA_VERSION)
    body = {key: value for key, value in content.items() if key != "digest"}
    digest = _sha256(dump_json(body))
    if content.get("digest") != digest:
        raise DataError(f"run inputs {path} does not match its digest: it was altered")
    try:
        inputs = tuple(
            Digest(Input(row["field"], row["kind"], row["path"], row["kept"]), row["sha256"]) for row in body["inputs"]
        )
        return Sealed(dict(body["files"]), int(body["seed"]), inputs, digest)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"run inputs {path} lacks what it should hold ({short(repr(error))})") from error


def altered_files(run: Path, before: Sealed) -> Changes:
    """Changes of the run's own files since its beginning; changed records do not block a resume."""
    found = Changes([], [])
    for name, sha256 in before.files.items():
        try:
            now = _sha256(read_plain(run / name, name))
        except (OSError, DataError) as error:
            phrase = f"{name} cannot be read ({error.strerror if isinstance(error, OSError) else error})"
        else:
            phrase = f"{name} was altered (SHA-256 {now[:12]}, was {sha256[:12]})" if now != sha256 else ""
        if phrase:
            (found.said if name in RECORDS else found.blocking).append(phrase)
    return found


def changes(before: Sequence[Digest], now: Sequence[Digest]) -> Changes:
    """Changes of inputs, by config field; fields that only one side has belong to another version and are skipped."""
    out = Changes([], [])
    current: dict[str, list[Digest]] = {}
    for digest in now:
        current.setdefault(digest.input.field, []).append(digest)
    for old in before:
        candidates = current.get(old.input.field, [])
        if not candidates or any(new.sha256 == old.sha256 for new in candidates):
            continue
        new = next((new for new in candidates if new.input.path == old.input.path), candidates[0])
        what = f"{old.input.field} {short(new.input.path)}"
        if new.fault:
            phrase = f"{what} cannot be read now ({new.fault})"
        elif new.sha256 is None:
            phrase = f"{what} is not there any more"
        else:
            phrase = f"{what} holds something else (SHA-256 {new.sha256[:12]}, was {_start(old.sha256)})"
        gone = new.sha256 is None and not new.fault
        (out.said if old.input.kept or gone else out.blocking).append(phrase)
    return out


def _start(sha256: str | None) -> str:
    return "absent" if sha256 is None else sha256[:12]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
