"""Cost of compiling an update, remembered for each shape, and the number of updates from which it pays.

The record lies beside what torch's compiler keeps of each shape, so both are there or both are gone: a shape that was
compiled before costs a fraction the next time.
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
"""Of a shape, where this machine has compiled none yet: what small policies took on two cores."""
AGAIN = 0.25
"""Share of that time that a shape takes whose kernels are in the compiler's cache, until it was measured."""
SAVED = 0.5
"""Share of an uncompiled update's time that compiling saves: 0.7 to 0.9 of small networks, 0.4 of large products."""
LONGEST_S = 3600.0
"""A record of more is none."""
MOST_SHAPES = 1000


def cache_dir() -> Path:
    """Folder in which torch's compiler keeps its kernels."""
    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return Path(given) if given else Path(tempfile.gettempdir(), f"torchinductor_{_user()}")


def shape_key(*parts: object) -> str:
    """A short name of all that decides what is compiled."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def expected_s(key: str) -> float:
    """Seconds that compiling a shape will take."""
    record = _read()
    if key in record:
        first, again = record[key]
        return AGAIN * first if again is None else again
    return statistics.median(first for first, _ in record.values()) if record else USUAL_S


def remember(key: str, seconds: float) -> None:
    """Keep how long it took; where the folder cannot be written, nothing is kept."""
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
    """Whether compiling costs less than it saves.

    Args:
        update_s: seconds of an uncompiled update.
        updates: how many are still to come.
        key: of the shape.
    """
    return updates * update_s * SAVED > expected_s(key)


def _read() -> dict[str, tuple[float, float | None]]:
    """Seconds of the first time and of the last by shape; nothing where the file is damaged."""
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
