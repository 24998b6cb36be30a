"""Default directories of runs."""

from __future__ import annotations

from pathlib import Path


def free_run_dir(name: str) -> Path:
    """First free directory of `runs/NAME`, `runs/NAME-2` and so on."""
    path, number = Path("runs", name), 1
    while path.exists():
        number += 1
        path = Path("runs", f"{name}-{number}")
    return path
