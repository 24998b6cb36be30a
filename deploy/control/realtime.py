"""Real-time settings of a fixed-rate process, and sleeping until an absolute time."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

_PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK = 29, 30
_MCL_CURRENT, _MCL_FUTURE = 1, 2
_FIFO_PRIORITY = 80
_WORTH_WARMING_S = 0.002


@contextmanager
def steady(*, fifo: bool = False) -> Generator[str, None, None]:
    """Context with precise timers and without garbage collection; all settings are restored at its end.

    Sets a timer slack of 1 ns (by default Linux ends sleeps up to 50 us late to save power). Garbage is collected once
    at the start; then all objects are frozen and the collector is disabled.

    Args:
        fifo: also request the real-time scheduler (SCHED_FIFO) and locked memory, which need a privilege.

    Yields:
        The active scheduling: "normal", "fifo 80, memory locked", or "normal (fifo refused: ...)".
    """
    slack = _timer_slack(1)
    scheduling, normal = _fifo() if fifo else ("normal", None)
    if fifo:
        scheduling += ", memory locked" if _lock_memory() else ", memory not locked"
    collecting = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield scheduling
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()
        if normal is not None:
            os.sched_setscheduler(0, normal, os.sched_param(0))
        if slack is not None:
            _timer_slack(slack)


def sleep_until(deadline_ns: int) -> None:
    """Sleep until an absolute time on the monotonic clock; returns at once if it has passed."""
    remaining = deadline_ns - time.monotonic_ns()
    if remaining > 0:
        # time.sleep waits for an absolute time on the monotonic clock (Python 3.11 and newer), so that signals and
        # late starts do not accumulate.
        time.sleep(remaining * 1e-9)


def warm_leads_ns(inference_s: float) -> tuple[int, ...]:
    """Times before a deadline, in ns, at which to run a dummy inference that warms the caches.

    There are two: the first loads code and weights and is slow itself; the second, right before the deadline, undoes
    the effect of other processes in between. None for an inference of more than 2 ms, which warms its own caches.

    Args:
        inference_s: duration of an inference with warm caches.
    """
    if inference_s > _WORTH_WARMING_S:
        return ()
    return round((1e-3 + 2 * inference_s) * 1e9), round((8e-5 + 1.5 * inference_s) * 1e9)


def _timer_slack(slack_ns: int) -> int | None:
    """Set the timer slack; returns the previous value, or None if not supported."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    before = int(libc.prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0))
    libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(slack_ns), 0, 0, 0)
    return before if before > 0 else None


def _lock_memory() -> bool:
    """Keep all memory of this process from being paged out, as long as it lives; False where that is refused."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None, use_errno=True).mlockall(_MCL_CURRENT | _MCL_FUTURE) == 0)


def _fifo() -> tuple[str, int | None]:
    """Request SCHED_FIFO; returns the outcome as text, and the scheduling policy to restore (None if unchanged)."""
    if not hasattr(os, "sched_setscheduler"):
        return "normal (fifo refused: not on this system)", None
    before = os.sched_getscheduler(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_FIFO_PRIORITY))
    except OSError as error:
        return f"normal (fifo refused: {error.strerror})", None
    return f"fifo {_FIFO_PRIORITY}", before
