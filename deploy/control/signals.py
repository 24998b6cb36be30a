"""Signals that end control in order: Ctrl-C, SIGTERM (of a service manager) and SIGHUP (the terminal is gone)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(SystemExit):
    """A signal asked the process to end; the exit code is 128 plus its number, as of a process that it ended."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name


@contextmanager
def ended_by_signals() -> Generator[None, None, None]:
    """Inside the block, the first of these signals raises (`KeyboardInterrupt`, `Stopped`); a second ends at once.

    A signal that is ignored, as of a background job, or that has a handler of somebody else's, is left alone. Only the
    main thread can take signals: elsewhere the block does nothing.
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
    """What asked control to end."""
    return error.name if isinstance(error, Stopped) else "Ctrl-C"
