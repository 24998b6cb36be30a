"""Actors that end or hang before they have begun: the learner says so, replaces them, and can be stopped."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import tests.kits.actor_kit as actor_kit
import tests.kits.off_policy_kit as off
from robotrl.errors import RobotrlError
from tests.kits.walk_sim import Walk
from tests.learners.test_remote_actor import CFG, STEPS, alive, gone_within, remote

WIDE = replace(off.POLICY, hidden=(512, 512))
"""More weights than a pipe holds."""
ENDS = {
    "at once": ("os._exit(3)", "ended with exit code 3"),
    "by a signal": ("os.kill(os.getpid(), 9)", "ended with exit code -9"),
    "with an error": ("sys.modules['pickle'] = None", "ended with exit code 1"),
    "in its first message": (
        "import multiprocessing.connection as c\n"
        "    c.Connection._recv = lambda *_: os.read(_[0]._handle, 999) and os._exit(5)",
        "ended with exit code 5",
    ),
    "with a child that holds on to its files": (
        "pid = os.fork()\n    if not pid: import time; time.sleep(600)\n"
        "    open(os.environ['ORPHAN'], 'a').write(f'{pid}\\n'); os._exit(4)",
        "ended with exit code 4",
    ),
    "never": ("import time; time.sleep(600)", "did not start for 2 s"),
}


@pytest.fixture
def spoiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose `sitecustomize.py` every process runs before anything else; what it left behind is ended."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("ORPHAN", str(tmp_path / "orphans"))
    yield tmp_path
    if (tmp_path / "orphans").exists():
        for pid in (tmp_path / "orphans").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def spoil(folder: Path, how: str) -> None:
    condition = "if any('spawn_main' in word for word in sys.orig_argv):"
    (folder / "sitecustomize.py").write_text(f"import os, sys\n{condition}\n    {how}\n")


@pytest.mark.parametrize("how", ENDS)
def test_an_actor_that_ends_before_it_has_begun_ends_the_run_with_the_reason(spoiled: Path, how: str) -> None:
    code, said = ENDS[how]
    spoil(spoiled, code)
    timeout_s = 2.0 if how == "never" else 120.0
    one = remote(partial(Walk, off.ENVS), replace(CFG, restarts=0, start_timeout_s=timeout_s), policy=WIDE)
    with pytest.raises(RobotrlError, match=rf"the actor's process {said}, after 0 env steps.*so the run ends"):
        one.collect(STEPS)
    assert one.pid is None


def test_an_actor_that_ends_before_it_has_begun_is_replaced(spoiled: Path) -> None:
    mark = spoiled / "died"
    spoil(spoiled, f"os.path.exists({str(mark)!r}) or (open({str(mark)!r}, 'w'), os._exit(3))")
    one = remote(partial(Walk, off.ENVS))
    try:
        with pytest.warns(UserWarning, match="ended with exit code 3: another one goes on"):
            one.collect(STEPS)
        assert one.restarts == 1 and one.env_steps == off.ENVS * STEPS
    finally:
        one.close()


def test_a_recipe_that_cannot_be_read_ends_the_run_with_its_error() -> None:
    one = remote(partial(Walk, off.ENVS))
    one.watch(actor_kit.Unreadable())
    with pytest.raises(RobotrlError, match="failed with LookupError: the recipe is of another time"):
        one.collect(STEPS)
    one.close()


def test_a_system_that_gives_no_files_is_told() -> None:
    one = remote(partial(Walk, off.ENVS), replace(CFG, restarts=0))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(
            RobotrlError, match=r"process could not be started \(Too many open files\), after 0 env steps"
        ):
            one.collect(STEPS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


LEARNER = """
import sys
from functools import partial
sys.path[:0] = {path!r}
import robotrl.learners.actor.remote as actor
from robotrl.run.locking import StopSignals
from tests.learners.test_remote_actor import *

if __name__ == "__main__":
    actor.STOP_S = 0.5
    StopSignals().install()
    one = remote(partial(Walk, off.ENVS), replace(CFG, start_timeout_s=600.0), policy={policy})
    print("begun", flush=True)
    try:
        one.collect(STEPS)
    except RobotrlError as error:
        sys.exit(str(error))
"""


def test_a_learner_whose_actor_does_not_start_can_be_stopped(spoiled: Path) -> None:
    spoil(spoiled, f"open({str(spoiled / 'actor')!r}, 'w').write(str(os.getpid())); import time; time.sleep(600)")
    script = spoiled / "learner.py"
    script.write_text(LEARNER.format(path=sys.path, policy="replace(off.POLICY, hidden=(512, 512))"))
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as learner:
        assert learner.stdout is not None and learner.stdout.readline() == "begun\n"
        while not (spoiled / "actor").exists() or not (spoiled / "actor").read_text():
            assert learner.poll() is None
            time.sleep(0.05)
        learner.send_signal(signal.SIGTERM)
        _, err = learner.communicate()
    assert learner.returncode == 1 and "did not start" in err and "the run was asked to stop" in err, err
    pid = int((spoiled / "actor").read_text())
    assert gone_within(pid, 10.0) and not alive(pid)
