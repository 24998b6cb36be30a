"""Off-policy runs killed after every iteration and resumed each time end as those that never were, to the last bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.algos.dsrl import DsrlCfg
from robotrl.algos.dsrl_na import DsrlNaCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.policies.steered import SteeredCfg
from robotrl.registry import SIMS
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import policy_tree
from robotrl.training import resume, train
from tests.kits.paths_kit import ROOT
from tests.training.test_resume import KillAt, scalars

EVERY = 3
"""Iterations between two checkpoints: kills come right after one, in between, and before the first."""
SMALL: dict[str, Any] = {"num_steps": 5, "batch": 8, "critic_hidden": (8,), "engine": "eager"}
STEERED = SMALL | {"env_steps": 4 * 5 * 7, "warmup": 30, "updates": 1, "capacity": 60}
# an eighth of the capacity is slack, enough for the steps between two checkpoints
ONLINE = SMALL | {"capacity": 4 * 5 * EVERY * 8, "replay": "replay"}
ALGOS: dict[str, Any] = {
    "sac": replace(off.SAC, **ONLINE, env_steps=4 * 5 * 8, warmup=20, utd_ratio=0.2),
    "rlpd": replace(off.RLPD, **ONLINE, env_steps=4 * 5 * 8, warmup=20, utd_ratio=1),
    "iql": replace(off.IQL, **ONLINE, env_steps=4 * 5 * 6, updates=20, updates_per_iteration=10),
    "fql": replace(
        off.FQL, **ONLINE, env_steps=4 * 5 * 6, updates=20, updates_per_iteration=10, warmup=20, utd_ratio=0.2
    ),
    "dsrl": DsrlCfg(**STEERED),
    "dsrl_na": DsrlNaCfg(**STEERED, distill_updates=1, decoded=16, pairs=40, group=2),
}


def config(name: str, folder: Path, run: Path) -> TrainCfg[Any, Any]:
    algo, steered = ALGOS[name], name.startswith("dsrl")
    if not steered:
        algo = replace(algo, replay=str(run.with_name(f"{run.name}-replay")))
    plain = kit.FLOW if name == "fql" else off.POLICY
    policy: Any = SteeredCfg(hidden=(8,)) if steered else replace(plain, horizon=1, hidden=(8,))
    return TrainCfg(
        SimCfg("test/walk", 4),
        algo,
        policy,
        dataset=None if steered or name == "sac" else str(folder / "walks"),
        init_from=str(folder / "base") if steered else None,
        evaluation=EvalCfg(0, 4, 4, 0),
        checkpoint_every=EVERY,
    )


def killed(work: Any) -> None:
    """Do some work in a process that ends by SIGKILL."""
    pid = os.fork()
    if not pid:
        try:
            work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, "it ended by itself"


def chain(folder: Path) -> None:
    """All runs: whole, and killed after each iteration. A process of its own, so that it may fork."""
    SIMS._rows["test/walk"] = "tests.kits.walk_sim:make"
    for name in ALGOS:
        whole, cut = folder / f"{name}-whole", folder / f"{name}-cut"
        train(config(name, folder, whole), whole)
        last = Run.open(whole).latest()
        assert last is not None
        killed(lambda name=name, cut=cut: train(config(name, folder, cut), cut, [KillAt(1)]))
        for step in range(2, last.step):
            killed(lambda cut=cut, step=step: resume(cut, [KillAt(step)]))
        resume(cut)
        print(json.dumps([name, last.step]), flush=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    off.write_random_walks(folder / "walks", episodes=8)
    base = Run.create(folder / "base", {}, seed=0, command=[])
    base.save({"policy": policy_tree(kit.flow())}, step=0)
    base.close()
    program = """import sys; sys.path.append(sys.argv[1])
from tests.training.test_resume_replay import *
chain(Path(sys.argv[2]))"""
    command = [sys.executable, "-W", "error:the replay ran", "-c", program, str(ROOT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "not exactly" not in done.stderr
    assert [json.loads(line)[0] for line in done.stdout.splitlines() if line.startswith("[")] == list(ALGOS)
    return folder


@pytest.mark.parametrize("name", ALGOS)
def test_killed_after_every_iteration_it_ends_the_same(runs: Path, name: str) -> None:
    whole, cut = (Run.open(runs / f"{name}-{which}").latest() for which in ("whole", "cut"))
    assert whole is not None and cut is not None and whole.step == cut.step
    for tree in (whole.tree, cut.tree):
        # of two directories; what is in them has a digest
        tree["learner"].get("experience", {}).get("replay", {}).pop("identity", None)
    for part in whole.tree:
        assert kit.same(whole.tree[part], cut.tree[part]), part
    assert scalars(runs / f"{name}-whole") == scalars(runs / f"{name}-cut")
