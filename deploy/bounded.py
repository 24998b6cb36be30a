"""Time and memory for a graph that nobody here has written: it may take long, hang, or ask for more than there is."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_SPARE_BYTES = 256 << 20
"""Address space beyond the memory that is free; allocators reserve more than they use."""


def within(limit_s: float, call: Callable[[], T]) -> T:
    """The result of a call that is waited for so long and no longer.

    The call runs in a thread of its own, and goes on there when its time is over: code that does not return cannot be
    stopped from outside. A signal reaches the caller at once.

    Raises:
        TimeoutError: the time is over.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # raised again where it is waited for
            errors.append(error)

    thread = threading.Thread(target=run, name="robotrl-bounded", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]


@contextlib.contextmanager
def bounded_memory() -> Generator[None, None, None]:
    """Inside the block, whoever asks for more memory than is free now is refused, where Linux would end the process."""
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
    """Memory that this process may still take; None where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    free = next((int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("MemAvailable:")), None)
    group = Path("/sys/fs/cgroup")
    try:
        most, used = (group / name for name in ("memory.max", "memory.current"))
        room = int(most.read_text()) - int(used.read_text())
    except (OSError, ValueError):  # no control group of the second kind, or one without a limit
        return free
    return room if free is None else min(free, max(room, 0))


def _mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
