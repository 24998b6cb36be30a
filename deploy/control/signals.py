"""Orderly shutdown on signals: Ctrl-C, SIGTERM (service manager) and SIGHUP (closed terminal)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(SystemExit):
    """Exit on a signal; the exit code is 128 plus its number, as for a process killed by it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name


@contextmanager
def ended_by_signals() -> Generator[None, None, None]:
    """Context in which the first signal raises (`KeyboardInterrupt`, `Stopped`) and a second one ends the process.

    Signals that are ignored (e.g. in a background job) or have a custom handler are left unchanged. Only the main
    thread can handle signals: in other threads the context does nothing.
    """
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        received.append(number)
        raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in _ENDING}
    usual = (signal.SIG_DFL, signal.default_int_handler)
    taken = {number: handler for number, handler in before.items() if handler in usual}
    for number in taken:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def words(error: BaseException) -> str:
    """Name of the signal that stopped the run."""
    return error.name if isinstance(error, Stopped) else "Ctrl-C"
