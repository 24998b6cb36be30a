"""Write lock of a run directory, and graceful stop by signals."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from robotrl.errors import RobotrlError
from robotrl.utils.progress import show_notice

TRIES, RETRY_S = 3, 0.02
_held: set[str] = set()
_installed: list[StopSignals] = []


class WriteLock:
    """Exclusive right to write in a directory, held from construction to `release` or the end of the process.

    A record lock on the file `lock`: the kernel frees it however the process ends, and worker processes that outlive
    it do not inherit it.

    Args:
        directory: the directory; must exist.
        what: the noun for it in errors.

    Raises:
        RobotrlError: another process, or another object in this one, holds it.
    """

    def __init__(self, directory: Path, what: str = "run") -> None:
        self._key = str(directory.resolve())
        # Record locks do not exclude within a process, and closing any descriptor of the file would release the lock.
        if self._key in _held:
            raise RobotrlError(f"{what} {directory} is already open for writing in this process: close it first")
        path = directory / "lock"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RobotrlError(f"{what} {directory} cannot be written: {error.strerror}") from error
        try:
            _lock(self._descriptor)
        except OSError as error:
            holder = os.pread(self._descriptor, 64, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise RobotrlError(f"{what} {directory} cannot be locked: {error.strerror}") from error
            raise RobotrlError(
                f"{what} {directory} is being written by process {holder or 'unknown'}: stop it, or choose another"
                f" {what}"
            ) from None
        _held.add(self._key)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock; may be called repeatedly."""
        if self._key in _held:
            _held.discard(self._key)
            os.close(self._descriptor)


def _lock(descriptor: int) -> None:
    """Take the record lock.

    Raises:
        OSError: another process holds it, and not only for the moment in which `is_being_written` tests it.
    """
    for _ in range(TRIES - 1):
        try:
            return fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(RETRY_S)
    return fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_being_written(directory: Path) -> bool:
    """True if a process, this one included, holds the write lock of a directory.

    It only reads: where the lock cannot be opened, nobody on this machine is known to write.
    """
    if str(directory.resolve()) in _held:  # opening and closing the file would release our own record lock
        return True
    try:
        descriptor = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN)
    finally:
        os.close(descriptor)


class StopSignals:
    """Turns SIGINT and SIGTERM into a flag while installed; a SIGINT after the first signal is a KeyboardInterrupt.

    Signals can only be taken by the main thread: elsewhere `install` does nothing.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        """Number of the first signal; None before it."""
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        """Install the signal handlers."""
        _installed.append(self)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._previous.items():
            # None means a handler that was not set from Python and cannot be restored from here.
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
                # No print: the signal may have interrupted one.
                os.write(2, f"\n{text}\n".encode())


def stop_requested() -> bool:
    """True if an installed `StopSignals` has received a signal; for code that waits for something else."""
    return any(signals.received is not None for signals in _installed)


def finish_despite_sigterm() -> None:
    """Ignore the next SIGTERM once: for a process that is already ending and still has to report why.

    Outside the main thread it does nothing.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _let_pass)


def _let_pass(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
