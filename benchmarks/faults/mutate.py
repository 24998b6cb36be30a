"""Mutations of sound files: changed JSON and text, and objects that are not regular files."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.kind import Outcome, outcome_of

Rng = np.random.Generator
HOSTILE_JSON: tuple[bytes, ...] = (
    b"",
    b" \n",
    b"null",
    b"[]",
    b"{}",
    b'"text"',
    b"1e400",
    b"NaN",
    b'{"schema_version": NaN}',
    b'{"schema_version": 1e999}',
    b'{"schema_version": "1"}',
    b'{"schema_version": true}',
    b'{"schema_version": 1, "schema_version": 1}',
    b'{"schema_version": 99}',
    b'{"schema_version": -1}',
    b'{"schema_version": ' + b"9" * 5000 + b"}",
    b'{"schema_version": 1}',
    b'{"schema_version": 1, "\\ud800": 1}',
    b'\xef\xbb\xbf{"schema_version": 1}',
    '{"schema_version": 1}'.encode("utf-16"),
    b"\xff\xfe\x00\x01",
    b"\x00" * 64,
    b"[" * 100_000,
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b'{"schema_version": 1, "a": ' + b"[" * 300 + b"]" * 300 + b"}",
    b"version https://git-lfs.github.com/spec/v1\n",
)
"""Texts that no reader may accept as one of its files."""
OTHER_VALUES: tuple[Any, ...] = (
    None,
    True,
    [],
    {},
    [[]],
    "",
    "text",
    -1,
    1.5,
    1e300,
    10**400,
    {"a": {"b": []}},
    [None],
)


def replaced(path: Path, data: bytes) -> None:
    """Replace a file, so that hard links to the old one are unchanged."""
    path.unlink()
    path.write_bytes(data)


def linked(source: Path, target: Path) -> Path:
    """A copy of a folder by hard links; change its files with `replaced`."""

    def link(old: Path, new: Path) -> None:
        new.mkdir(parents=True)
        for entry in os.scandir(old):
            if entry.is_dir():
                link(old / entry.name, new / entry.name)
            else:
                os.link(entry.path, new / entry.name)

    link(source, target)
    return target


def turned_bit(rng: Rng, data: bytes) -> bytes:
    """Flip one bit."""
    place = int(rng.integers(len(data)))
    return data[:place] + bytes([data[place] ^ (1 << int(rng.integers(8)))]) + data[place + 1 :]


def changed_digit(rng: Rng, data: bytes) -> bytes:
    """Change one digit."""
    places = [i for i, byte in enumerate(data) if 48 <= byte < 58]
    place = places[int(rng.integers(len(places)))]
    other = 48 + (data[place] - 48 + int(rng.integers(1, 10))) % 10
    return data[:place] + bytes([other]) + data[place + 1 :]


def truncated(rng: Rng, data: bytes) -> bytes:
    """Truncate the text, but not only by its last line break."""
    return data[: int(rng.integers(len(data) - 1))]


def other_type(rng: Rng, data: bytes) -> bytes:
    """Replace one value, or a whole branch, by another type."""
    tree = json.loads(data)
    places = list(_places(tree))
    holder, key = places[int(rng.integers(len(places)))]
    before = holder[key]
    choices = [value for value in OTHER_VALUES if _kind(value) != _kind(before)]
    holder[key] = choices[int(rng.integers(len(choices)))]
    return json.dumps(tree).encode()


def without_key(rng: Rng, data: bytes) -> bytes:
    """Remove one key."""
    tree = json.loads(data)
    places = [(holder, key) for holder, key in _places(tree) if isinstance(holder, dict)]
    holder, key = places[int(rng.integers(len(places)))]
    del holder[key]
    return json.dumps(tree).encode()


def hostile(rng: Rng, data: bytes) -> bytes:
    """Replace everything by a hostile text."""
    del data
    return HOSTILE_JSON[int(rng.integers(len(HOSTILE_JSON)))]


def doubled_key(rng: Rng, data: bytes) -> bytes:
    """Repeat the first key of the outermost object with another value."""
    tree = json.loads(data)
    key = list(tree)[int(rng.integers(len(tree)))]
    return data.rstrip()[:-1] + f", {json.dumps(key)}: {int(rng.integers(100))}}}".encode()


MUTATIONS: tuple[Callable[[Rng, bytes], bytes], ...] = (
    turned_bit,
    truncated,
    other_type,
    without_key,
    hostile,
    doubled_key,
)


def no_file(rng: Rng, path: Path) -> None:
    """Replace a file by something that is not a regular file."""
    path.unlink(missing_ok=True)
    kind = int(rng.integers(7))
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as end, contextlib.chdir(path.parent):
            end.bind(path.name)
    elif kind == 3:
        path.symlink_to("/dev/zero")
    elif kind == 4:
        path.symlink_to(path)
    elif kind == 5:
        path.symlink_to("/nowhere/at/all")
    else:
        path.symlink_to(path.parent)


def heard(call: Callable[[], object], used: Outcome = Outcome.SILENT) -> Outcome:
    """Outcome of a call whose warnings may also be in the log; its output is suppressed."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("robotrl")
    logger.addHandler(handler)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            outcome = outcome_of(call, used)
    finally:
        logger.removeHandler(handler)
    return Outcome.WARNED if outcome is used and lines else outcome


def answered(argv: list[str]) -> tuple[int | None, str]:
    """Run a command in this process; returns exit code and errors. None means a bug, or an uncaught exception."""
    from robotrl.cli.main import DEFECT, main

    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            code = main(argv)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        except Exception as error:
            return None, repr(error)
    return None if code == DEFECT else code, said.getvalue()


def _kind(value: Any) -> str:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def _places(tree: Any) -> Any:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)
