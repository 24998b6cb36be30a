"""Child processes: started by spawn, spared by Ctrl-C, ended with their parent; their errors in the parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess

from robotrl.errors import CapabilityError, ConfigError, DataError, NumericsError, RobotrlError
from robotrl.utils.safe_path import safe_children

_OURS = {kind.__name__: kind for kind in (CapabilityError, ConfigError, DataError, NumericsError, RobotrlError)}
_starting = threading.Lock()
"""Held while environment and path are those of a child."""


def start_child(process: BaseProcess, environment: Mapping[str, str] | None = None, needs_main: bool = True) -> None:
    """Start a process of the spawn method.

    Args:
        process: the process.
        environment: variables that it gets in addition to this process's.
        needs_main: whether it may get objects of the main module, which it then imports. A script without its
            `if __name__ == "__main__":` would start anew in it.

    Raises:
        OSError: the operating system refused.
    """
    # Ctrl-C reaches the whole process group. The child inherits the blocked signal from its first moment, so the
    # parent can save first and then end it. The resource tracker, if started with the process, would lift the block
    # earlier
    without = nullcontext() if needs_main else _main_left_out()
    with _starting, safe_children(), _variables(environment or {}), without:
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _variables(environment: Mapping[str, str]) -> Generator[None]:
    """Environment variables inside the block."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _main_left_out() -> Generator[None]:
    """Processes that are started inside the block do not import this process's main module."""
    main = vars(sys.modules["__main__"])
    kept = {name: main[name] for name in ("__file__", "__spec__") if name in main}
    main.update(dict.fromkeys(kept))
    try:
        yield
    finally:
        main.update(kept)


def end_with_parent(grace_s: float) -> None:
    """End this child process when its parent is gone, even while its main thread hangs or takes long.

    Args:
        grace_s: seconds that it gets to end by itself.
    """
    threading.Thread(target=_end_after_parent, args=(grace_s,), daemon=True).start()


def _end_after_parent(grace_s: float) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    time.sleep(grace_s)
    os._exit(1)


def error_of_child(kind: str, message: str, process: str) -> RobotrlError:
    """The error that a child process reported, for its parent to raise.

    Args:
        kind: name of the error's class, which is kept where it is one of robotrl's.
        message: text of the error.
        process: description of the process, "the actor's process".
    """
    if kind in _OURS:
        return _OURS[kind](f"{message} (in {process})")
    return RobotrlError(f"{process} failed with {kind}: {message}")
