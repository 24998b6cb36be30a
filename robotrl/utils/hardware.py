"""Number of usable CPU cores, a warning for too many threads, and an error for more memory than there is."""

from __future__ import annotations

import os
import platform
import warnings

import psutil

from robotrl.errors import ConfigError, check_count

MOST_THREADS = 1024
LARGEST_SHARE = 0.5
"""Largest share of the free memory that one thing may reserve."""


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


def check_memory(said: str, item_bytes: int, items: int, expected: str) -> None:
    """Check that items take at most half of the free memory, before they are reserved.

    The system promises memory that it does not have, and ends a process that then uses it.

    Args:
        said: setting and value, for the error: "memory is 200".
        item_bytes: bytes of an item.
        items: number of items.
        expected: what to change, for the error: "fewer".

    Raises:
        ConfigError: they take more.
    """
    free = int(psutil.virtual_memory().available)
    if item_bytes * items > free * LARGEST_SHARE:
        raise ConfigError(
            f"{said}, of {item_bytes:,} bytes each: expected {expected}, together at most half of the {free:,} bytes of"
            " memory that are free"
        )


def processor_features() -> str:
    """CPU feature flags as part of a cache key: machines with different CPUs may share a home directory."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        return platform.processor()
