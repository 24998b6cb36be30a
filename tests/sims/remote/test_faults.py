"""Workers that die, hang, answer late or lie: what each costs, with real processes and signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import robotrl
from robotrl.errors import ConfigError, NumericsError, RobotrlError
from robotrl.rollout.evaluate import run_episodes
from robotrl.sims.remote.faults import RemoteFault
from robotrl.sims.remote.process import WORKER_FILE
from robotrl.spec import lost
from tests.kits.paths_kit import ROOT
from tests.kits.refusals import raises_naming

KITS = str(ROOT / "tests" / "kits")


def toy(num_envs: int = 4, factory: str = "point", options: dict[str, Any] | None = None, **settings: Any) -> Any:
    return robotrl.make_sim(
        f"remote/remote_toys:{factory}", num_envs=num_envs, path=(KITS,), kwargs=options or {}, **settings
    )


def gone(pid: int, within_s: float = 8.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.02)
                continue
        return True
    return False


def zeros(sim: Any) -> torch.Tensor:
    return torch.zeros(sim.num_envs, *sim.action_spec.shape)


def episodes(sim: Any, steps: int, disturb: Callable[[int], None] = lambda _: None) -> dict[int, list[float]]:
    """Rewards of each episode that ended and was not lost, by its start, under a policy that reads the state."""
    obs = sim.reset(seed=0)
    running: list[list[float]] = [[] for _ in range(sim.num_envs)]
    found = {}
    for t in range(steps):
        disturb(t)
        out = sim.step(-0.5 * obs["state"][:, :1])
        for env in range(sim.num_envs):
            running[env].append(float(out.reward[env]))
            if out.terminated[env] or out.truncated[env]:
                if not lost(out)[env]:
                    found[int(out.info["state_id"][env])] = running[env]
                running[env] = []
        obs = out.obs
    return found


# a worker is lost


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_killed_by_a_signal_costs_its_episodes_and_nothing_else(workers: int) -> None:
    sim = toy(workers=workers)
    first = {key: value.clone() for key, value in sim.reset(seed=0).items()}
    before = {key: value.clone() for key, value in sim.step(zeros(sim) + 0.1).obs.items()}
    os.kill(sim.pool.pids[0], signal.SIGKILL)
    with pytest.warns(UserWarning, match=r"worker 0 \(envs 0 to \d\) was ended by SIGKILL"):
        out = sim.step(zeros(sim) + 0.1)
    n = 4 // workers
    assert lost(out).tolist() == [env < n for env in range(4)]
    assert out.truncated.tolist() == lost(out).tolist()
    assert not out.terminated.any()
    assert out.reward[:n].tolist() == [0.0] * n
    assert out.final_ids.tolist() == list(range(n))
    for key, value in out.final_obs.items():
        assert torch.equal(value, before[key][:n])
        assert torch.equal(out.obs[key][:n], first[key][:n])  # the same starts run again
    assert sim.pool.lost == 1
    sim.close()


@pytest.mark.parametrize("workers", [1, 3])
def test_episodes_are_those_of_an_undisturbed_run(workers: int) -> None:
    steps = 200
    calm = toy(6, options={"limit_steps": 20}, workers=workers)
    expected = episodes(calm, steps)
    calm.close()
    sim = toy(6, options={"limit_steps": 20}, workers=workers, restarts=10)

    def disturb(t: int) -> None:
        if t % 31 == 25:
            os.kill(sim.pool.pids[t % workers], signal.SIGKILL)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = episodes(sim, steps, disturb)
    assert sim.pool.lost == 6
    assert len(found) > 12
    # each takes the ids in order, so that nearly all of the disturbed run's are among the other's
    assert len(found.keys() & expected.keys()) > 0.8 * len(found)
    for start in found.keys() & expected.keys():
        assert found[start] == expected[start], start
    sim.close()


def test_a_worker_killed_in_the_middle_of_a_step() -> None:
    sim = toy(options={"step_s": 0.5})
    sim.reset(seed=0)
    timer = threading.Timer(0.2, os.kill, (sim.pool.pids[0], signal.SIGKILL))
    timer.start()
    began = time.monotonic()
    with pytest.warns(UserWarning, match="SIGKILL"):
        out = sim.step(zeros(sim))
    assert lost(out).all()
    assert time.monotonic() - began < 10  # its end is noticed, not waited for
    assert not lost(sim.step(zeros(sim))).any()
    sim.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_observations_before_a_step_outlive_a_worker_that_dies_while_it_writes(workers: int, tmp_path: Path) -> None:
    options = {"fault": "half", "at": 3, "once": str(tmp_path / "died")}
    calm, sim = toy(factory="point", workers=workers), toy(factory="direct", options=options, workers=workers)
    assert torch.equal(calm.reset(seed=0)["state"], sim.reset(seed=0)["state"])
    for _ in range(2):
        before = {key: value.clone() for key, value in calm.step(zeros(sim) + 0.1).obs.items()}
        out = sim.step(zeros(sim) + 0.1)
        for key, value in before.items():
            assert torch.equal(out.obs[key], value)
    with pytest.warns(UserWarning, match="SIGKILL"):
        out = sim.step(zeros(sim) + 0.1)
    assert lost(out).sum() == 4 // workers
    for key, value in out.final_obs.items():
        assert torch.equal(value, before[key][out.final_ids])
    assert not lost(sim.step(zeros(sim))).any()
    calm.close()
    sim.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_parameters_are_set_again_in_the_new_worker(workers: int) -> None:
    sim = toy(factory="tuned", workers=workers)
    sim.reset(seed=0)
    sim.set_params([0, 3], {"gain": np.array([0.5, 2.0])})
    state = sim.get_state()
    for number, pid in enumerate(sim.pool.pids):
        os.kill(pid, signal.SIGKILL)
        with pytest.warns(UserWarning, match=f"worker {number} .*SIGKILL"):
            sim.step(zeros(sim))
        assert sim.get_params()["gain"].tolist() == [0.5, 1.0, 1.0, 2.0]
    sim.set_params([3], {"gain": np.array([1.0])})
    sim.set_state(state)  # holds other values than were set last
    os.kill(sim.pool.pids[-1], signal.SIGKILL)
    with pytest.warns(UserWarning, match="SIGKILL"):
        assert sim.get_params()["gain"].tolist() == [0.5, 1.0, 1.0, 2.0]
    sim.close()


@pytest.mark.parametrize("how", ["SIGSTOP", "hang"])
def test_a_worker_that_hangs_is_killed_after_the_time_limit(how: str, tmp_path: Path) -> None:
    options = {"fault": "hang", "at": 2, "once": str(tmp_path / "hung")} if how == "hang" else {}
    sim = toy(options=options, step_timeout_s=0.5)
    sim.reset(seed=0)
    sim.step(zeros(sim))
    (pid,) = sim.pool.pids
    if how == "SIGSTOP":
        os.kill(pid, signal.SIGSTOP)
    with pytest.warns(UserWarning, match=r"gave no answer within 0\.5 s"):
        out = sim.step(zeros(sim))
    assert lost(out).all()
    assert gone(pid)
    assert not lost(sim.step(zeros(sim))).any()
    sim.close()


def test_a_late_answer_within_the_limit_is_an_answer(tmp_path: Path) -> None:
    sim = toy(options={"fault": "late", "at": 2}, step_timeout_s=5.0)
    sim.reset(seed=0)
    for _ in range(3):
        assert not lost(sim.step(zeros(sim))).any()
    assert sim.pool.lost == 0
    sim.close()


def test_an_answer_after_the_limit_is_never_taken_for_another_one(tmp_path: Path) -> None:
    sim = toy(options={"fault": "late", "at": 2, "once": str(tmp_path / "late")}, step_timeout_s=0.2)
    obs = sim.reset(seed=0)
    first = obs["state"].clone()
    sim.step(zeros(sim))
    with pytest.warns(UserWarning, match="gave no answer"):
        out = sim.step(zeros(sim))
    assert torch.equal(out.obs["state"], first)
    time.sleep(0.4)  # when the old worker would have answered
    out = sim.step(zeros(sim) + 1)
    assert torch.allclose(out.obs["state"][:, 0], first[:, 0] + 0.1)
    sim.close()


@pytest.mark.parametrize(("fault", "code"), [("exit", 7), ("leave", 3)])
def test_an_environment_that_ends_its_process_gets_a_new_one(fault: str, code: int, tmp_path: Path) -> None:
    sim = toy(options={"fault": fault, "at": 2, "once": str(tmp_path / "left")})
    sim.reset(seed=0)
    sim.step(zeros(sim))
    with pytest.warns(UserWarning, match=f"ended with exit code {code}"):
        assert lost(sim.step(zeros(sim))).all()
    sim.close()


def test_losses_in_a_row_end_the_sim() -> None:
    sim = toy(options={"fault": "exit", "at": 3}, restarts=2)
    sim.reset(seed=0)
    with pytest.warns(UserWarning), raises_naming(RemoteFault, "restarts", 2, 7, "3rd"):
        for _ in range(20):
            sim.step(zeros(sim))
    sim.close()


def test_a_restart_that_comes_far_enough_is_forgiven() -> None:
    """Episodes of two steps, each process dies in its fifth."""
    sim = toy(options={"fault": "exit", "at": 5, "limit_steps": 2}, restarts=1)
    sim.reset(seed=0)
    with pytest.warns(UserWarning):
        for _ in range(16):
            sim.step(zeros(sim))
    assert sim.pool.lost == 3
    sim.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_lost_between_steps_is_replaced_by_the_next_request(workers: int) -> None:
    sim = toy(workers=workers)
    sim.reset(seed=0)
    last = sim.step(zeros(sim) + 0.1).obs["state"].clone()
    n = 4 // workers
    os.kill(sim.pool.pids[0], signal.SIGKILL)
    with pytest.warns(UserWarning, match="SIGKILL"):
        state = sim.get_state()  # of the new episodes
    assert state["worker0/steps"].tolist() == [0] * n
    out = sim.step(zeros(sim))
    assert lost(out).tolist() == [env < n for env in range(4)]
    assert torch.equal(out.final_obs["state"], last[:n])
    assert not lost(sim.step(zeros(sim))).any()
    sim.close()


def test_a_worker_lost_before_a_reset_costs_nothing() -> None:
    sim = toy()
    first = sim.reset(seed=3)["state"].clone()
    os.kill(sim.pool.pids[0], signal.SIGKILL)
    with pytest.warns(UserWarning, match="SIGKILL"):
        again = sim.reset(seed=3)["state"].clone()
    assert torch.equal(again, first)
    assert not lost(sim.step(zeros(sim))).any()
    sim.close()


def test_an_evaluation_outlives_a_lost_worker_and_counts_each_start_once() -> None:
    class Homing:
        def act(self, obs: Any, turn: Any) -> torch.Tensor:
            del turn
            return -0.5 * obs["state"][:, :1]

    def run(disturbed: bool) -> list[Any]:
        sim = toy(4, options={"limit_steps": 15}, workers=2, restarts=5)
        calls = [0]

        def disturb(_: int) -> None:
            calls[0] += 1
            if disturbed and calls[0] % 9 == 4:
                os.kill(sim.pool.pids[calls[0] % 2], signal.SIGKILL)

        ids = sim.state_ids("val")[:12]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = run_episodes(Homing(), sim, ids, on_step=disturb)
        assert (sim.pool.lost > 0) == disturbed
        sim.close()
        return [(e.state_id, e.success, e.length, e.ret) for e in found]

    assert run(True) == run(False)


# faults that no new worker mends


@pytest.mark.parametrize(
    ("fault", "error", "named"),
    [
        ("raise", RemoteFault, ("step()", "ValueError", "remote_toys.py", "hinge")),
        ("nan", NumericsError, ("env 3", "'state'", "'pos'", "nan")),
        ("nan reward", NumericsError, ("env 0", "reward", "inf")),
        ("shape", RemoteFault, ("'state'", "(4, 1)", "(4, 2)")),
        ("missing", RemoteFault, ("'far'", "['state']")),
        ("type", RemoteFault, ("'far'", "float64", "uint8")),
        ("four", RemoteFault, ("tuple of 4", "truncated")),
        ("unlisted", RemoteFault, ("'solved'", "info_spec")),
    ],
)
def test_what_an_environment_may_not_give_is_an_error_of_one_line(fault: str, error: Any, named: Any) -> None:
    sim = toy(options={"fault": fault, "at": 2})
    sim.reset(seed=0)
    sim.step(zeros(sim))
    with pytest.raises(error) as caught:
        sim.step(zeros(sim))
    text = str(caught.value)
    assert "\n" not in text
    for part in ("remote/remote_toys:point", "worker 0", *named):
        assert part in text, text
    sim.reset()  # the sim can go on
    assert not lost(sim.step(zeros(sim))).any()
    sim.close()


def test_a_fault_of_one_worker_leaves_the_others_in_step(tmp_path: Path) -> None:
    sim = toy(options={"fault": "raise", "at": 2, "once": str(tmp_path / "raised")}, workers=2)
    sim.reset(seed=0)
    sim.step(zeros(sim))
    with pytest.raises(RemoteFault, match="hinge"):
        sim.step(zeros(sim))
    first = sim.reset(seed=0)["state"].clone()
    out = sim.step(zeros(sim) + 1)
    assert torch.allclose(out.obs["state"][:, 0], (first[:, 0] + 0.1))
    sim.close()


def test_a_request_that_was_interrupted_does_not_answer_the_next() -> None:
    sim = toy(options={"step_s": 0.3})
    first = sim.reset(seed=0)["state"].clone()
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        sim.step(zeros(sim))
    assert torch.equal(sim.reset(seed=0)["state"], first)
    assert torch.allclose(sim.step(zeros(sim) + 1).obs["state"][:, 0], first[:, 0] + 0.1)
    sim.close()


# starting


def test_a_factory_that_raises_names_itself() -> None:
    with pytest.raises(RemoteFault, match=r"making it raised RuntimeError: no license for 4 envs \(remote_toys.py"):
        toy(factory="broken")


@pytest.mark.parametrize(
    ("served", "named"),
    [
        ("remote_toys:pointt", "pointt"),
        ("no_such_module:make", "no_such_module"),
        ("mujoco/peg-inserd", "mujoco/peg-insert"),
        ("remote/remote_toys:point", "remote already"),
    ],
)
def test_what_cannot_be_served_is_named(served: str, named: str) -> None:
    with pytest.raises(RobotrlError, match=re.escape(named)):
        robotrl.make_sim(f"remote/{served}", num_envs=1, path=(KITS,))


def test_a_name_that_is_neither_sim_nor_factory_is_refused() -> None:
    with pytest.raises(ConfigError, match="MODULE:FUNCTION"):
        robotrl.make_sim("remote/cart.py", num_envs=1)


@pytest.mark.parametrize(
    ("part", "named"), [("names", "names"), ("bounds", "finite bounds"), ("start", "neither start")]
)
def test_specs_that_contradict_themselves_are_refused(part: str, named: str) -> None:
    with pytest.raises(RobotrlError, match=named):
        toy(factory="without", options={"part": part})


def test_another_version_of_the_worker_is_refused_with_the_fix(tmp_path: Path) -> None:
    old = tmp_path / "worker.py"
    old.write_text(WORKER_FILE.read_text().replace("PROTOCOL = 1\n", "PROTOCOL = 0\n"))
    with raises_naming(ConfigError, "protocol", 0, 1, str(WORKER_FILE)):
        toy(worker_file=str(old))
    with raises_naming(ConfigError, "worker_file"):
        toy(worker_file=str(tmp_path / "none.py"))


def test_a_python_that_is_none_is_refused(tmp_path: Path) -> None:
    with raises_naming(ConfigError, "python", "interpreter"):
        toy(python=str(tmp_path / "python"))
    with pytest.raises(RemoteFault, match="ended with exit code 1 while it was started"):
        toy(python="/bin/false")
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 100\n")
    sleeper.chmod(0o755)
    with (
        pytest.warns(UserWarning, match="another one is started"),
        pytest.raises(RemoteFault, match=r"gave no answer within 0\.3 s"),
    ):
        toy(python=str(sleeper), start_timeout_s=0.3, restarts=1)


@pytest.mark.parametrize(
    ("field", "value"), [("workers", 0), ("workers", 5000), ("restarts", -1), ("step_timeout_s", 0), ("kwargs", 3)]
)
def test_options_out_of_range_are_refused(field: str, value: Any) -> None:
    with raises_naming(ConfigError, field, value):
        robotrl.make_sim("remote/remote_toys:point", num_envs=4, **{field: value})


# nothing is left behind


def test_a_closed_sim_leaves_nothing(tmp_path: Path) -> None:
    once = tmp_path / "once"
    sim = toy(workers=2, options={"once": str(once)})
    obs = sim.reset(seed=0)
    pids = sim.pool.pids
    below = [child.pid for child in psutil.Process().children(recursive=True)]
    assert set(pids) < set(below)
    sim.close()
    sim.close()
    assert all(gone(pid) for pid in below if pid in pids or not psutil.pid_exists(pid))
    assert sorted(map(int, Path(f"{once}.closed").read_text().split())) == sorted(pids)  # each closed its environment
    assert torch.isfinite(obs["state"]).all()  # what was given out stays valid


TRAINER = """
import sys, time, torch, robotrl
sim = robotrl.make_sim(
    "remote/remote_toys:with_child", num_envs=2, path=(sys.argv[1],), kwargs={"file": sys.argv[2]}
)
sim.reset()
print(*sim.pool.pids, *(p.pid for p in __import__("psutil").Process().children()), flush=True)
if sys.argv[3] == "step":
    while True:
        sim.step(torch.zeros(2, 1))
time.sleep(1000)
"""


@pytest.mark.parametrize("state", ["step", "idle", "worker stopped"])
def test_a_killed_trainer_leaves_no_process(state: str, tmp_path: Path) -> None:
    child = tmp_path / "child"
    command = [sys.executable, "-c", TRAINER, KITS, str(child), state]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert trainer.stdout
    pids = [int(word) for word in trainer.stdout.readline().split()]
    pids.append(int(child.read_text()))  # in a session of its own
    if state == "worker stopped":
        os.kill(pids[0], signal.SIGSTOP)
    trainer.kill()
    trainer.wait()
    assert all(gone(pid, 12) for pid in pids)


def test_a_killed_guard_takes_the_worker_with_it() -> None:
    sim = toy()
    sim.reset(seed=0)
    (pid,) = sim.pool.pids
    os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
    assert gone(pid)
    with pytest.warns(UserWarning, match="was ended by SIGKILL"):
        assert lost(sim.step(zeros(sim))).all()
    sim.close()


def test_shared_memory_has_no_name() -> None:
    before = set(os.listdir("/dev/shm"))
    sim = toy(64)
    sim.reset()
    assert set(os.listdir("/dev/shm")) - before == set()
    descriptors = len(os.listdir("/proc/self/fd"))
    sim.close()
    assert len(os.listdir("/proc/self/fd")) < descriptors


def test_a_worker_that_is_killed_while_it_starts_is_started_again(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="was ended by SIGKILL; another one is started"):
        sim = toy(factory="shot", options={"once": str(tmp_path / "shot")}, workers=2)
    sim.reset()
    assert not lost(sim.step(zeros(sim))).any()
    sim.close()
