"""Peak memory of this process and its descendants."""

from __future__ import annotations

import threading
from types import TracebackType

import psutil


class PeakMemory:
    """Samples the resident memory of the process tree in a thread; `mib` is the largest sum.

    Shared pages are counted once for each process, so the result is an upper estimate.

    Args:
        period_s: seconds between samples.
    """

    def __init__(self, period_s: float = 0.25) -> None:
        self.mib = 0.0
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="peak-memory")

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        root = psutil.Process()
        while True:
            total = 0
            for process in [root, *root.children(recursive=True)]:
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue  # the process ended between listing and reading
            self.mib = max(self.mib, total / 2**20)
            if self._stop.wait(self._period_s):
                return
