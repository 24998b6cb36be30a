"""Threads that run native code which nothing can stop, and the end of a process that still has one."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable


class NativeThread(threading.Thread):
    """A daemon thread for a native call, such as the inference of a policy graph, that may never return.

    Python before 3.14 unwinds a daemon thread that returns to it while it shuts down. Inside onnxruntime that aborts
    the process, whatever its exit code was to be. A program that gave up on such a call ends by
    `exit_past_native_threads`.
    """

    def __init__(self, target: Callable[[], object], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)


def exit_past_native_threads(code: int) -> None:
    """End the process with an exit code if a `NativeThread` still runs; else do nothing."""
    if any(isinstance(thread, NativeThread) for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # its reader is gone
                stream.flush()
        os._exit(code)
