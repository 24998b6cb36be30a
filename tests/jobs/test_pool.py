"""Pools of real processes: limits, failures, signals, and a parent that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from robotrl.jobs.job import LOST, Job, last_line
from robotrl.jobs.local import LocalHandle, LocalPlace
from robotrl.jobs.pool import EndedJob, run_jobs
from robotrl.jobs.training_runs import TAKEN_UP, TrainingRun, train_runs
from robotrl.run.locking import StopSignals

SLEEP = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
SAVES = (
    "import signal, sys; from pathlib import Path; "
    "signal.signal(signal.SIGTERM, lambda *_: (Path(sys.argv[1] + '.saved').touch(), sys.exit(143))); " + SLEEP
)


def job(folder: Path, key: str, code: str) -> Job:
    return Job(key, (sys.executable, "-c", code, str(folder / key)), folder / f"{key}.log")


def wait_for(condition, limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.02)


def written(path: Path) -> bool:
    return path.exists() and bool(path.read_text())


def test_as_many_run_at_once_as_there_are_slots_and_output_is_logged(tmp_path):
    spans = "import sys, time; print(time.monotonic(), flush=True); time.sleep(0.3); print(time.monotonic())"
    jobs = [job(tmp_path, str(number), spans) for number in range(4)]
    ended: list[EndedJob] = []
    run_jobs(jobs, LocalPlace(2), StopSignals(), lambda one: ended.append(one) or True)
    assert sorted(one.job.key for one in ended) == ["0", "1", "2", "3"]
    assert all(one.code == 0 and one.wall_s > 0.3 and not one.stopped for one in ended)
    times = [tuple(map(float, one.log.read_text().split())) for one in jobs]
    together = [sum(start <= at <= end for start, end in times) for at, _ in times]
    assert max(together) == 2


def test_a_failure_is_seen_and_starts_no_more_if_asked_to(tmp_path):
    jobs = [job(tmp_path, "bad", "import sys; print('so it goes\\n\\n'); sys.exit(3)"), job(tmp_path, "good", "pass")]
    ended: list[EndedJob] = []
    run_jobs(jobs, LocalPlace(1), StopSignals(), lambda one: ended.append(one) or one.code == 0)
    assert [(one.job.key, one.code) for one in ended] == [("bad", 3)]
    assert last_line(jobs[0].log) == "so it goes" and last_line(tmp_path / "none") == "(no output)"
    missing = Job("missing", ("no-such-program",), tmp_path / "missing.log")
    run_jobs([missing], LocalPlace(1), StopSignals(), lambda one: ended.append(one) or True)
    assert ended[-1].code == 1 and last_line(missing.log) == "no-such-program: No such file or directory"


def test_a_signal_stops_all_and_they_may_save(tmp_path):
    """The handler is not installed, but set as it would be."""
    signals = StopSignals()
    jobs = [job(tmp_path, key, SAVES) for key in ("a", "b", "never")]
    ended: list[EndedJob] = []

    def stop_when_both_run(running) -> None:
        if all(written(tmp_path / key) for key in ("a", "b")):
            signals.received = signal.SIGINT

    run_jobs(jobs, LocalPlace(2), signals, lambda one: ended.append(one) or True, on_poll=stop_when_both_run)
    assert sorted((one.job.key, one.code, one.stopped) for one in ended) == [("a", 143, True), ("b", 143, True)]
    assert (tmp_path / "a.saved").exists() and (tmp_path / "b.saved").exists()


def test_what_does_not_stop_is_killed_after_its_time_and_at_an_error_at_once(tmp_path):
    signals = StopSignals()
    ended: list[EndedJob] = []

    def stop(running) -> None:
        if written(tmp_path / "x"):
            signals.received = signal.SIGTERM

    stubborn = job(tmp_path, "x", STUBBORN)
    run_jobs([stubborn], LocalPlace(1), signals, lambda one: ended.append(one) or True, grace_s=0.2, on_poll=stop)
    assert ended[0].code == -signal.SIGKILL and ended[0].stopped

    def fail(running) -> None:
        if written(tmp_path / "y"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs([job(tmp_path, "y", STUBBORN)], LocalPlace(1), StopSignals(), lambda one: True, on_poll=fail)
    assert not psutil.pid_exists(int((tmp_path / "y").read_text()))


class FlakyPlace:
    """This machine, which loses the first jobs of each name, as a node that is taken away.

    Args:
        losses: number of times that each is lost.
    """

    slots = 2

    def __init__(self, losses: int) -> None:
        self._local, self._losses, self.started = LocalPlace(2), losses, Counter[str]()

    def start(self, job: Job) -> LocalHandle:
        self.started[job.key] += 1
        lost = self.started[job.key] <= self._losses
        command = (sys.executable, "-c", f"raise SystemExit({int(lost)})")
        handle = self._local.start(Job(job.key, command, job.log))
        return _Lost(handle) if lost else handle


class _Lost(LocalHandle):
    def __init__(self, handle: LocalHandle) -> None:
        self._handle = handle

    def poll(self) -> int | None:
        return None if self._handle.poll() is None else LOST

    def kill(self) -> None:
        self._handle.kill()


@pytest.mark.parametrize("losses, fails", [(2, False), (5, True)])
def test_a_run_whose_node_is_lost_is_taken_up_some_times(tmp_path, losses, fails):
    place = FlakyPlace(losses)
    runs = [TrainingRun(key, tmp_path / key / "run", ()) for key in ("one", "two")]
    failed = train_runs(runs, place, StopSignals(), title="runs")
    assert set(place.started.values()) == {min(losses, TAKEN_UP) + 1}
    assert [one.code for one in failed] == ([LOST] * 2 if fails else [])


PARENT = """
import sys
from pathlib import Path
from robotrl.jobs.job import Job
from robotrl.jobs.local import LocalPlace
from robotrl.jobs.pool import run_jobs
from robotrl.run.locking import StopSignals
path, code = sys.argv[1:]
job = Job("child", (sys.executable, "-c", code, path), Path(path + ".log"))
run_jobs([job], LocalPlace(1), StopSignals(), lambda ended: True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the children of a killed process")
def test_a_killed_parent_leaves_no_process_behind(tmp_path):
    path = tmp_path / "child"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(path), SAVES])
    wait_for(lambda: written(path))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not psutil.pid_exists(int(path.read_text())))
    assert (tmp_path / "child.saved").exists()
