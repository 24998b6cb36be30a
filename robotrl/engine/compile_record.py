"""Compile times of updates, recorded per shape, to decide whether compiling saves time.

The record lies beside the cache of torch's compiler, so that both exist or neither does: a shape that was compiled
before takes a fraction of the time.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from robotrl.utils.files import dump_json, replace_file

RECORD = "robotrl_compile_s.json"
USUAL_S = 45.0
"""Default compile time of a shape, seconds, if this machine has no record: that of small policies on two cores."""
AGAIN = 0.25
"""Estimated fraction of that time for a shape whose kernels are in the compiler's cache, until it is measured."""
SAVED = 0.5
"""Fraction of an uncompiled update's time that compiling saves: 0.7 to 0.9 for small networks, 0.4 for large
products."""
LONGEST_S = 3600.0
"""Longest plausible compile time, seconds; longer records are ignored."""
MOST_SHAPES = 1000


def cache_dir() -> Path:
    """Folder in which torch's compiler keeps its kernels."""
    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return Path(given) if given else Path(tempfile.gettempdir(), f"torchinductor_{_user()}")


def shape_key(*parts: object) -> str:
    """Hash of everything that affects compilation."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def expected_s(key: str) -> float:
    """Estimate the compile time of a shape, seconds."""
    record = _read()
    if key in record:
        first, again = record[key]
        return AGAIN * first if again is None else again
    return statistics.median(first for first, _ in record.values()) if record else USUAL_S


def remember(key: str, seconds: float) -> None:
    """Record a compile time; nothing is recorded if the folder is not writable."""
    if not 0 < seconds < LONGEST_S:
        return
    record = _read()
    first = record[key][0] if key in record else None
    record[key] = (seconds, None) if first is None else (first, seconds)
    newest = dict(list(record.items())[-MOST_SHAPES:])
    try:
        replace_file(cache_dir() / RECORD, dump_json(newest))
    except OSError:
        return


def pays(update_s: float, updates: int, key: str) -> bool:
    """Return whether compiling costs less time than it saves.

    Args:
        update_s: seconds of an uncompiled update.
        updates: number of remaining updates.
        key: `shape_key` of the update.
    """
    return updates * update_s * SAVED > expected_s(key)


def _read() -> dict[str, tuple[float, float | None]]:
    """Read the first and the last compile time of each shape, seconds; empty if the file is damaged."""
    try:
        found: Any = json.loads((cache_dir() / RECORD).read_bytes())
        return {
            str(key): (_seconds(first), None if again is None else _seconds(again))
            for key, (first, again) in found.items()
        }
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no number of seconds")
    if not 0 < value < LONGEST_S:
        raise ValueError(f"{value!r} is no time that compiling takes")
    return float(value)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a process without a name or an environment
        return str(os.getuid())
