"""Number of usable CPU cores, and a warning for too many threads."""

from __future__ import annotations

import os
import platform
import warnings

from robotrl.errors import check_count

MOST_THREADS = 1024


def usable_cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_threads(field: str, threads: int) -> int:
    """Return `threads`; warn if there are more threads than cores, because they then wait for each other.

    Raises:
        ConfigError: less than 0, or impossibly many.
    """
    check_count(field, threads, 0, MOST_THREADS)
    cores = usable_cores()
    if threads > cores:
        warnings.warn(
            f"{field} is {threads}: expected at most {cores}, the cores that this process may use; more threads than"
            " cores slow each other down",
            stacklevel=3,
        )
    return threads


def processor_features() -> str:
    """CPU feature flags as part of a cache key: machines with different CPUs may share a home directory."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        return platform.processor()
