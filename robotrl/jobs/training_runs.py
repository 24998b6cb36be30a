"""Training runs as jobs: each is made, or resumed, by `robotrl train` in a process of its own."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from robotrl.jobs.job import LOST, Job, JobPlace, last_line
from robotrl.jobs.pool import POLL_S, EndedJob, run_jobs
from robotrl.run.locking import StopSignals, is_being_written
from robotrl.run.sessions.status import iterations_done
from robotrl.utils.hardware import usable_cores
from robotrl.utils.progress import track

CORES_PER_RUN = 2
"""Cores of a run: one for the physics or the simulator, one for torch."""
TAKEN_UP = 3
"""Times that a run is taken up after its node was lost."""
NOTE_S = 2.0
"""Time between two looks at how far the running runs are."""


class TrainingRun(NamedTuple):
    """A run that is trained by a job."""

    key: str
    """Name for people: "seed 3"."""
    path: Path
    """Directory of the run; the log is a file beside it."""
    arguments: tuple[str, ...]
    """Arguments of `robotrl train` for a new run, without --run-dir."""

    @property
    def log(self) -> Path:
        """File with the output of its processes."""
        return self.path.with_name(f"{self.path.name}.log")

    def job(self, options: Sequence[str] = ()) -> Job:
        """Job that trains the run, or resumes it if it has begun. The folder of its directory is made.

        Args:
            options: further options of `robotrl train`, for a new run and for a resumed one.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        begin = (sys.executable, "-m", "robotrl.cli", "train")
        if (self.path / "config.json").exists():
            return Job(self.key, (*begin, "--resume", str(self.path), *options), self.log)
        return Job(self.key, (*begin, *self.arguments, "--run-dir", str(self.path), *options), self.log)


class FailedRun(NamedTuple):
    """A run whose process failed."""

    run: TrainingRun
    code: int
    said: str
    """Last line of its output."""


def parallel_runs() -> int:
    """Number of training runs that this machine has cores for at the same time."""
    return max(1, usable_cores() // CORES_PER_RUN)


def train_runs(
    runs: Sequence[TrainingRun],
    place: JobPlace,
    signals: StopSignals,
    *,
    title: str,
    done: int = 0,
    options: Sequence[str] = (),
    go_on: bool = True,
) -> list[FailedRun]:
    """Train runs until all have ended, failed, or were stopped by a signal; a failure is said at once.

    Runs that another process still writes, such as one that outlived a killed parent, are waited for first.

    Args:
        runs: the runs, without those that are done.
        place: where they are trained.
        signals: installed handlers; a signal stops all runs, which save.
        title: name of the whole, for the progress bar.
        done: number of runs that were done before.
        options: further options of `robotrl train`.
        go_on: whether others are started after a failure.

    Returns:
        The runs that failed.
    """
    of_key = {run.key: run for run in runs}
    failed: list[FailedRun] = []
    lost: Counter[str] = Counter()
    _wait_for_others(runs, signals)
    together = max(1, min(place.slots, len(runs)))
    with track(done + len(runs), title, "runs", done=done, step=together) as bar:
        looked_s = time.monotonic()

        def jobs(these: Sequence[TrainingRun]) -> Iterator[Job]:
            for run in these:
                _remove_leftovers(run.path)
                verb = "resumed" if (run.path / "config.json").exists() else "begun"
                print(f"{run.key}: {verb}, {run.path}", file=sys.stderr, flush=True)
                yield run.job(options)

        def on_end(ended: EndedJob) -> bool:
            if ended.stopped:
                return False
            if ended.code == LOST and lost[ended.job.key] < TAKEN_UP:
                lost[ended.job.key] += 1
                again.append(of_key[ended.job.key])
                print(f"{ended.job.key}: lost with its node, it is taken up on another", file=sys.stderr, flush=True)
                return True
            bar.advance(1)
            if ended.code:
                said = last_line(ended.job.log)
                failed.append(FailedRun(of_key[ended.job.key], ended.code, said))
                text = f"{ended.job.key} failed with code {ended.code}: {said}; log: {ended.job.log}"
                print(text, file=sys.stderr, flush=True)
            return go_on or not failed

        def on_poll(running: Sequence[Job]) -> None:
            nonlocal looked_s
            if time.monotonic() - looked_s >= NOTE_S:
                looked_s = time.monotonic()
                bar.advance(0, ", ".join(_note(of_key[job.key]) for job in running))

        again = list(runs)
        while again and signals.received is None and (go_on or not failed):
            these, again = again, []
            run_jobs(jobs(these), place, signals, on_end, on_poll=on_poll)
    return failed


def _note(run: TrainingRun) -> str:
    made, total = iterations_done(run.path)
    return run.key if total is None else f"{run.key} {made}/{total}"


def _wait_for_others(runs: Sequence[TrainingRun], signals: StopSignals) -> None:
    """Wait until no run is written by another process."""
    said: set[str] = set()
    while signals.received is None and (written := [run for run in runs if is_being_written(run.path)]):
        for run in written:
            if run.key not in said:
                print(f"{run.key}: waiting for the process that writes {run.path}", file=sys.stderr, flush=True)
        said |= {run.key for run in written}
        time.sleep(POLL_S)


def _remove_leftovers(path: Path) -> None:
    """Remove what a process left that was killed while it made the run's directory."""
    for folder in path.parent.glob(f".tmp-{path.name}-*"):
        shutil.rmtree(folder, ignore_errors=True)
