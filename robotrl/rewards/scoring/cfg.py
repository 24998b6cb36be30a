"""Settings of the scoring service."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from robotrl.errors import check_count, check_number, out_of_range, unknown

WHEN_FULL = ("drop", "wait")
MAX_PROCESSES, MAX_BATCH, MAX_FRAMES, MAX_CACHED = 64, 4096, 1 << 20, 1 << 26
SHORTEST_S, LONGEST_S = 0.001, 86400.0


@dataclass(frozen=True)
class ServiceCfg:
    """Scoring service: processes, batches, bounds of its queue, faults."""

    processes: int = 1
    """Worker processes, each with a scorer of its own; 1 to 64."""
    batch_size: int = 64
    """Pictures that a worker scores at once, 1 to 4096; fewer if the oldest one has waited for `flush_after_s`."""
    flush_after_s: float = 0.05
    """Longest wait of a picture for its batch to become full, s, 0 to 86400."""
    queue_frames: int = 1024
    """Bound on the pictures that wait or are being scored, `batch_size` to 1048576; each takes its bytes of memory."""
    when_full: Literal["drop", "wait"] = "drop"
    """Full queue: "drop" the picture, whose step then has no score, or let the trainer "wait"."""
    wait_s: float = 1.0
    """Longest wait of the trainer for room in the queue, s, for all pictures of a step together, 0 to 86400; after it
    they are dropped."""
    timeout_s: float = 60.0
    """Time limit of an answer, s, 0.001 to 86400: a later one is discarded and its step has no score; a worker
    that scores one batch for so long is replaced."""
    cache_frames: int = 4096
    """Answers kept in memory for pictures that come again, the least recently used leaves first; 0 to 67108864, 0 keeps
    none."""
    max_requests: int | None = None
    """Budget: pictures that the scorer is asked about in a run, its resumes included, 0 or more; answers that are known
    already are free. None: no limit."""
    threads: int = 1
    """Threads of torch and of linear algebra in each worker, 1 to 1024."""
    cores: tuple[int, ...] = ()
    """CPU cores that the workers are pinned to; none: they run on any."""
    answers: str | None = None
    """Directory in which answers are kept, so that later runs with the same scorer do not ask again; None stores
    nothing."""

    def check(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a field is out of range.
        """
        check_count("service.processes", self.processes, 1, MAX_PROCESSES)
        check_count("service.batch_size", self.batch_size, 1, MAX_BATCH)
        check_number("service.flush_after_s", self.flush_after_s, 0.0, LONGEST_S, "s")
        check_count("service.queue_frames", self.queue_frames, self.batch_size, MAX_FRAMES, "service.batch_size")
        if self.when_full not in WHEN_FULL:
            raise unknown("service.when_full", str(self.when_full), WHEN_FULL)
        check_number("service.wait_s", self.wait_s, 0.0, LONGEST_S, "s")
        check_number("service.timeout_s", self.timeout_s, SHORTEST_S, LONGEST_S, "s")
        check_count("service.cache_frames", self.cache_frames, 0, MAX_CACHED)
        if self.max_requests is not None:
            check_count("service.max_requests", self.max_requests, 0, 2**63 - 1)
        check_count("service.threads", self.threads, 1, 1024)
        usable = os.sched_getaffinity(0)
        for core in self.cores:
            if core not in usable:
                cores = ", ".join(map(str, sorted(usable)))
                raise out_of_range("service.cores", self.cores, f"cores among {cores}")
        if self.answers is not None and not self.answers.strip():
            raise out_of_range("service.answers", self.answers, "the name of a directory, or nothing")
