"""The worker's side alone: one file of Python 3.8 and numpy, which needs no robotrl; and training on it."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import robotrl
from robotrl.errors import CapabilityError, ConfigError
from robotrl.sims.remote.process import WORKER_FILE
from robotrl.spec import HasFinalObs, HasRestart, HasState, HasStateIds, lost
from robotrl.testing.sims import random_actions
from tests.kits.paths_kit import ROOT

KITS = ROOT / "tests" / "kits"
STARTED_S = 1.5
TOYS = KITS / "remote_toys.py"


def bare_python(tmp_path: Path) -> dict[str, Any]:
    """Settings of a Python that finds numpy and, since no .pth file is read, no robotrl."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    script.chmod(0o755)
    return {"python": str(script), "environment": {"PYTHONPATH": sysconfig.get_paths()["purelib"]}}


@pytest.mark.parametrize("file", [WORKER_FILE, TOYS], ids=lambda file: file.name)
def test_the_syntax_is_that_of_python_3_8(file: Path) -> None:
    ast.parse(file.read_text(), feature_version=(3, 8))


def test_the_file_imports_the_standard_library_and_numpy_alone() -> None:
    tree = ast.parse(WORKER_FILE.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names < set(sys.stdlib_module_names)
    assert 'import_module("numpy")' in WORKER_FILE.read_text()


def some_steps(**settings: Any) -> list[torch.Tensor]:
    sim = robotrl.make_sim(
        "remote/remote_toys:alone", num_envs=4, path=(str(KITS),), kwargs={"limit_steps": 9}, workers=2, **settings
    )
    found = [sim.reset(seed=0)["state"].clone()]
    for action in random_actions(sim, 25):
        out = sim.step(action)
        found += [out.obs["state"].clone(), out.final_obs["state"].clone(), out.info["height"].clone()]
    sim.close()
    return found


def test_it_serves_where_robotrl_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the checkout holds a folder robotrl
    assert len(some_steps(**bare_python(tmp_path))) == 76


def test_it_serves_under_python_3_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = os.environ.get("ROBOTRL_PYTHON_38")
    if python is None:
        pytest.skip("ROBOTRL_PYTHON_38 names no Python 3.8 with numpy")
    monkeypatch.chdir(tmp_path)
    assert subprocess.check_output([python, "-V"], text=True).startswith("Python 3.8.")
    here = some_steps(**bare_python(tmp_path))
    for a, b in zip(here, some_steps(python=python), strict=True):
        assert torch.equal(a, b)


def test_a_python_without_numpy_is_refused_with_the_fix(tmp_path: Path) -> None:
    settings = bare_python(tmp_path) | {"environment": {}}
    with pytest.raises(ConfigError, match=r"numpy does not import there.*install numpy for"):
        some_steps(**settings)


def test_a_sim_of_robotrl_under_a_python_without_it_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the checkout holds a folder robotrl
    with pytest.raises(ConfigError, match=r"has no robotrl.*gym_rows\.py for any environment of Gymnasium"):
        robotrl.make_sim("remote/gym/CartPole-v1", 2, **bare_python(tmp_path))


# environments that restart by themselves


def own_starts(workers: int) -> Any:
    return robotrl.make_sim(
        "remote/remote_toys:own_starts",
        num_envs=4,
        path=(str(KITS),),
        kwargs={"limit_steps": 9, "goal": 0},
        workers=workers,
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_an_environment_that_restarts_by_itself(workers: int) -> None:
    sim = own_starts(workers)
    assert isinstance(sim, HasFinalObs)
    assert not isinstance(sim, HasStateIds | HasRestart | HasState)
    first = sim.reset(seed=5)["state"].clone()
    assert len({float(x) for x in first[:, 0]}) == 4
    out: Any = None
    for _ in range(9):
        out = sim.step(torch.zeros(4, 1))
    assert out.truncated.all()
    assert torch.equal(out.final_obs["state"][:, 0], first[:, 0])
    assert not torch.equal(out.obs["state"], first)
    assert out.info["state_id"].tolist() == [-1] * 4
    assert torch.equal(sim.reset(seed=5)["state"], first)
    with pytest.raises(CapabilityError, match="HasStateIds"):
        sim.reset(options={"state_ids": [1, 2, 3, 4]})
    sim.step(torch.zeros(4, 1))
    os.kill(sim.pool.pids[0], signal.SIGKILL)
    with pytest.warns(UserWarning, match="SIGKILL"):
        out = sim.step(torch.zeros(4, 1))
    assert lost(out).sum() == 4 // workers
    assert not torch.equal(out.obs["state"], first)  # another episode, not the same again
    sim.close()


# training


def served_by(pid: int) -> list[psutil.Process]:
    """Served processes of a run that have started; those between them and the run are their guards."""
    below = psutil.Process(pid).children(recursive=True)
    served = [found for found in below if str(WORKER_FILE) in " ".join(found.cmdline()) and found.ppid() != pid]
    return [found for found in served if time.time() - found.create_time() > STARTED_S]


def test_a_training_run_outlives_workers_that_are_killed_and_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "robotrl.cli", "train", "--sim", "remote/remote_toys:point", "--algo", "ppo"]
    options = "--sim.num-envs 8 --sim.workers 2 --sim.step-timeout-s 1 --sim.restarts 50 --algo.env-steps 30000"
    options += " --algo.num-steps 64 --evaluation.every-env-steps 15000 --evaluation.episodes 8"
    options += f' --sim.start-timeout-s 20 --sim.path {KITS} --sim.kwargs {{"step_s":0.001}}'
    options += f" --run-dir {tmp_path / 'run'}"
    log = tmp_path / "log"
    with log.open("w") as out:
        run = subprocess.Popen(
            [*command, *options.split()],
            stdout=out,
            stderr=out,
        )
        hit = 0
        while run.poll() is None:
            time.sleep(0.7)
            with suppress(psutil.Error):  # they come and go
                served = served_by(run.pid)
                if served and hit < 8:
                    served[hit % len(served)].send_signal(signal.SIGSTOP if hit % 3 == 1 else signal.SIGKILL)
                    hit += 1
    assert run.returncode == 0, log.read_text()
    assert hit >= 2
    assert "its episodes are lost" in log.read_text()
