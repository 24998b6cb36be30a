"""A process that keeps one core busy, to measure speed on a loaded machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

_SCRIPT = """
import os, sys
core, parent = int(sys.argv[1]), int(sys.argv[2])
if core >= 0:
    os.sched_setaffinity(0, {core})
print("spinning", flush=True)
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""


@contextmanager
def busy_core() -> Generator[subprocess.Popen[str]]:
    """Keep one core busy inside the block: the last usable one, if processes can be pinned."""
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else -1
    argv = [sys.executable, "-c", _SCRIPT, str(core), str(os.getpid())]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def beside_busy_core(route: Callable[[], float]) -> Callable[[], float]:
    """The route, measured while another process keeps one core busy."""

    def run() -> float:
        with busy_core():
            return route()

    return run
