"""Runs jobs at a place, as many at once as it has room for; signals stop all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from robotrl.jobs.job import Handle, Job, JobPlace
from robotrl.run.locking import StopSignals

POLL_S = 0.1


class EndedJob(NamedTuple):
    """A job whose process has ended."""

    job: Job
    code: int
    wall_s: float
    """Time from its start to its end, s."""
    stopped: bool
    """True if a signal to this process stopped it."""


@dataclass
class _Running:
    job: Job
    handle: Handle
    started_s: float


def run_jobs(
    jobs: Iterable[Job],
    place: JobPlace,
    signals: StopSignals,
    on_end: Callable[[EndedJob], bool],
    *,
    grace_s: float | None = None,
    on_poll: Callable[[Sequence[Job]], None] | None = None,
) -> None:
    """Run jobs until all have ended.

    A signal stops the running jobs and starts no more. If this function is left by an exception, such as a second
    Ctrl-C, running jobs are killed.

    Args:
        jobs: the jobs; each is taken when there is room to start it.
        place: where they run.
        signals: installed handlers.
        on_end: called with each job that has ended; returns False to start no more jobs.
        grace_s: time that stopped jobs get to save and end, s, before they are killed; None waits for them.
        on_poll: called several times a second with the running jobs.
    """
    waiting, more = iter(jobs), True
    running: list[_Running] = []
    stopped_s: float | None = None
    try:
        while True:
            while more and signals.received is None and len(running) < place.slots:
                job = next(waiting, None)
                if job is None:
                    more = False
                else:
                    running.append(_Running(job, place.start(job), time.monotonic()))
            if not running:
                return
            time.sleep(POLL_S)
            if on_poll is not None:
                on_poll([one.job for one in running])
            if signals.received is not None and stopped_s is None:
                stopped_s = time.monotonic()
                for one in running:
                    one.handle.stop()
            if stopped_s is not None and grace_s is not None and time.monotonic() - stopped_s > grace_s:
                for one in running:
                    one.handle.kill()
            for one in [one for one in running if one.handle.poll() is not None]:
                running.remove(one)
                code, wall_s = one.handle.poll(), time.monotonic() - one.started_s
                assert code is not None
                more = on_end(EndedJob(one.job, code, wall_s, stopped_s is not None)) and more
    finally:
        for one in running:
            one.handle.kill()
