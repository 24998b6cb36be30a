"""Jobs on a Ray cluster: their output and codes, signals, a node that is lost, and what is refused."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from robotrl.cluster import ray_jobs
from robotrl.cluster.ray_jobs import JobResources, RayPlace
from robotrl.errors import ConfigError
from robotrl.jobs.job import LOST, Job, last_line
from robotrl.jobs.pool import EndedJob, run_jobs
from robotrl.run.locking import StopSignals
from tests.kits.ray_kit import ray_of_two
from tests.kits.refusals import raises_naming

pytest.importorskip("ray")
ray_session = pytest.fixture(scope="module", autouse=True)(ray_of_two)
SAVES = (
    "import os, signal, sys, time; from pathlib import Path; "
    "signal.signal(signal.SIGTERM, lambda *_: (Path(sys.argv[1] + '.saved').touch(), sys.exit(143))); "
    "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(120)"
)
SAYS = "import os; print(os.getcwd(), os.environ.get('OMP_NUM_THREADS', 'unset'))"


def job(folder: Path, key: str, code: str) -> Job:
    return Job(key, (sys.executable, "-c", code, str(folder / key)), folder / f"{key}.log")


def wait_for(condition: Any, limit_s: float = 120.0) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.05)


def written(path: Path) -> bool:
    return path.exists() and bool(path.read_text())


@pytest.fixture
def place() -> Any:
    made = RayPlace(None, JobResources(1, 0))
    yield made
    made.close()


def test_jobs_run_where_the_sweep_runs_with_its_threads(
    tmp_path: Path, place: RayPlace, monkeypatch: pytest.MonkeyPatch
):
    """Ray would give them a number of threads of its own; and what is written by relative paths has to be found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert place.slots == 2
    bad = Job("bad", (sys.executable, "-c", "import sys; print('so it goes'); sys.exit(3)"), Path("bad.log"))
    ended: list[EndedJob] = []
    run_jobs([job(Path(), "says", SAYS), bad], place, StopSignals(), lambda one: ended.append(one) or True)
    assert sorted((one.job.key, one.code) for one in ended) == [("bad", 3), ("says", 0)]
    assert last_line(tmp_path / "says.log") == f"{tmp_path} 3" and last_line(tmp_path / "bad.log") == "so it goes"


def test_stopped_jobs_save_and_lost_ones_too(tmp_path: Path, place: RayPlace):
    stopped, lost = (place.start(job(tmp_path, key, SAVES)) for key in ("stopped", "lost"))
    wait_for(lambda: written(tmp_path / "stopped") and written(tmp_path / "lost"))
    stopped.stop()
    wait_for(lambda: stopped.poll() is not None)
    assert stopped.poll() == 143 and (tmp_path / "stopped.saved").exists()
    # the actor dies, as it does with the sweep's process or by the hands of the system
    process = psutil.Process(int((tmp_path / "lost").read_text()))
    parent = process.parent()
    assert parent is not None and parent.pid != os.getpid()
    os.kill(parent.pid, signal.SIGKILL)
    wait_for(lambda: lost.poll() is not None)
    assert lost.poll() == LOST and "gone" in last_line(tmp_path / "lost.log")
    wait_for(lambda: (tmp_path / "lost.saved").exists())


def test_another_version_on_a_node_is_named_in_the_log(
    tmp_path: Path, place: RayPlace, monkeypatch: pytest.MonkeyPatch
):
    ours = ray_jobs.versions()
    monkeypatch.setattr(ray_jobs, "versions", lambda: (ours[0], "3.9"))
    handle = place.start(job(tmp_path, "never", SAVES))
    wait_for(lambda: handle.poll() is not None)
    assert handle.poll() == 2 and not (tmp_path / "never").exists()
    assert f"has Python {ours[1]}: expected 3.9" in last_line(tmp_path / "never.log")


def test_resources_that_no_node_has_are_refused():
    with raises_naming(ConfigError, "cluster.cpus", "64", "2 CPUs"):
        RayPlace(None, JobResources(64, 0))
    with raises_naming(ConfigError, "cluster.gpus", "1", "0 GPUs"):
        RayPlace(None, JobResources(1, 1))
    for each in (JobResources(0, 0), JobResources(1, 1.5), JobResources(1, -1)):
        with pytest.raises(ConfigError, match="expected"):
            RayPlace(None, each)
