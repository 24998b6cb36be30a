"""Cache of compiled code: the user's folder for it, and what of the processor decides whether code runs here."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path


def cache_folder() -> Path | None:
    """Cache directory `robotrl` of the user, created if missing; None if it is not writable."""
    fallback = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or fallback).expanduser() / "robotrl"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK) else None


def processor_features() -> str:
    """CPU feature flags as part of a cache key: machines with different CPUs may share a home directory."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        return platform.processor()
