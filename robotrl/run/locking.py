"""One writer at a time, and a wish to stop that comes by signal."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from robotrl.errors import RobotrlError
from robotrl.utils.progress import show_notice

_held: set[str] = set()
_installed: list[StopSignals] = []


class WriteLock:
    """The exclusive right to write in a directory, held from construction to `release` or the end of the process.

    A record lock on the file `lock`: the kernel frees it however the process ends, and worker processes that outlive
    it do not inherit it.

    Raises:
        RobotrlError: another process, or another object in this one, holds it.
    """

    def __init__(self, directory: Path) -> None:
        self._key = str(directory.resolve())
        # Within a process record locks do not exclude, and closing any descriptor of the file would free the lock.
        if self._key in _held:
            raise RobotrlError(f"run {directory} is already open for writing in this process: close it first")
        path = directory / "lock"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RobotrlError(f"run {directory} cannot be written: {error.strerror}") from error
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, 64, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise RobotrlError(f"run {directory} cannot be locked: {error.strerror}") from error
            raise RobotrlError(
                f"run {directory} is being written by process {holder or 'unknown'}: stop it, or choose another run"
            ) from None
        _held.add(self._key)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the right back; calling it again does nothing."""
        if self._key in _held:
            _held.discard(self._key)
            os.close(self._descriptor)


class StopSignals:
    """Turns SIGINT and SIGTERM into a flag while installed; a SIGINT after the first signal is a KeyboardInterrupt.

    Signals can only be taken by the main thread: elsewhere `install` does nothing.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        """The number of the first signal, None before it."""
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        """Take the signals over."""
        _installed.append(self)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Give the signals back to whoever had them."""
        for number, handler in self._previous.items():
            # None stands for a handler that was not set from python and cannot be set again from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()
        if self in _installed:
            _installed.remove(self)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is None:
            self.received = number
            name = signal.Signals(number).name
            text = f"{name}: saving and stopping; Ctrl-C (again) aborts at once"
            if not show_notice(text):
                # Not print: the signal may have come in the middle of one.
                os.write(2, f"\n{text}\n".encode())


def stop_wished() -> bool:
    """Whether whoever has taken the signals over was told to stop: for code that waits for something else."""
    return any(signals.received is not None for signals in _installed)


def finish_despite_sigterm() -> None:
    """Let the next SIGTERM pass, once: for a process that is ending by itself and has yet to say why.

    Outside the main thread it does nothing.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _let_pass)


def _let_pass(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
