"""Time and memory limits for running an untrusted graph."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeVar

from robotrl.utils.native_thread import NativeThread

T = TypeVar("T")
_SPARE_BYTES = 256 << 20
"""Address space allowed beyond the free memory, since allocators reserve more than they use."""


def within(limit_s: float, call: Callable[[], T]) -> T:
    """Run a call in a thread and wait for its result with a time limit.

    After the limit the call continues in its thread, since it cannot be stopped from outside. Signals reach the caller
    at once.

    Raises:
        TimeoutError: the time limit has passed.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)

    thread = NativeThread(run, "robotrl-bounded")
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]


@contextlib.contextmanager
def bounded_memory() -> Generator[None, None, None]:
    """Context in which allocations beyond the free memory fail, instead of Linux killing the process."""
    free = _free_bytes()
    with contextlib.ExitStack() as undo:
        if free is not None:
            import resource

            before = resource.getrlimit(resource.RLIMIT_AS)
            most = _mapped_bytes() + free + _SPARE_BYTES
            if before[0] == resource.RLIM_INFINITY or most < before[0]:
                resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
                undo.callback(resource.setrlimit, resource.RLIMIT_AS, before)
        yield


def _free_bytes() -> int | None:
    """Memory that this process may still allocate; None if unknown."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    free = next((int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("MemAvailable:")), None)
    group = Path("/sys/fs/cgroup")
    try:
        most, used = (group / name for name in ("memory.max", "memory.current"))
        room = int(most.read_text()) - int(used.read_text())
    except (OSError, ValueError):  # no cgroup v2, or one without a limit
        return free
    return room if free is None else min(free, max(room, 0))


def _mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
