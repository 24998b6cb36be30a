"""Time of the servo: the machine's monotonic clock, or a simulated one that advances while the servo sleeps."""

from __future__ import annotations

import time
from typing import Protocol

from robotrl.deploy.control.realtime import sleep_until


class Clock(Protocol):
    """A clock and the sleep that belongs to it."""

    def now_ns(self) -> int:
        """Time in nanoseconds."""
        ...

    def sleep_until(self, deadline_ns: int) -> None:
        """Sleep until a time; returns at once if it has passed."""
        ...


class MonotonicClock:
    """The machine's monotonic clock, which all its processes share."""

    def now_ns(self) -> int:
        """Time in nanoseconds."""
        return time.monotonic_ns()

    def sleep_until(self, deadline_ns: int) -> None:
        """Sleep until a time; returns at once if it has passed."""
        sleep_until(deadline_ns)


MONOTONIC = MonotonicClock()
