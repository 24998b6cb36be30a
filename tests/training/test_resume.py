"""A run that was killed, interrupted or stopped, and then resumed, ends as one that never was, to the last bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tests.kits.learner_kit as kit
from robotrl.algos.bc import BcCfg
from robotrl.algos.ppo import PpoCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg, WeightedReward
from robotrl.policies.flow import FlowCfg
from robotrl.policies.gaussian import GaussianCfg
from robotrl.registry import SIMS, make_sim
from robotrl.rewards.rules import ActionRateCfg, StepPenaltyCfg
from robotrl.rewards.task import TaskRewardCfg
from robotrl.run.callbacks import Callback
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars
from robotrl.run.policy_checkpoint import policy_tree
from robotrl.training import resume, train
from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse
from tests.kits.paths_kit import ROOT

PEG = "mujoco/peg-insert"
EVALUATION = EvalCfg(every=7, episodes=6, num_envs=4, animation=1)
"""Six starts on four envs: idle envs run training starts, whose order a resumed run must find again."""
PROGRAM = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
from tests.training.test_resume import *
run = Path(sys.argv[3])
exec(sys.argv[2])
"""


def peg(num_envs: int) -> SimCfg:
    return SimCfg(PEG, num_envs, ("limit_s=1.0",))


def reinflow_config(clone: Path) -> TrainCfg[Any, Any]:
    algo = ReinFlowCfg(
        env_steps=4 * 10 * 20,
        num_steps=10,
        epochs=2,
        minibatch=6,
        critic_warmup_env_steps=1,
        ema=0.9,
        entropy_coef=0.01,
        engine="eager",
    )
    return TrainCfg(peg(4), algo, FlowCfg(), init_from=str(clone), evaluation=EVALUATION, checkpoint_every=2)


def ppo_config() -> TrainCfg[Any, Any]:
    algo = PpoCfg(env_steps=4 * 10 * 60, num_steps=10, epochs=2, minibatch=6, critic_warmup_env_steps=0, engine="eager")
    policy = GaussianCfg(hidden=(16,))
    return TrainCfg(peg(4), algo, policy, evaluation=EvalCfg(25, 6, 4, 0), checkpoint_every=50)


def make_clone(path: Path, horizon: int = 4) -> Path:
    """A flow policy with random weights, as a run."""
    sim = make_sim(PEG, num_envs=2, seed=0)
    obs, action = sim.observation_spec, sim.action_spec
    outputs = (inverse(bounds_to_unit("action", action.low, action.high)), Clip("action", action.low, action.high))
    cfg = FlowCfg(horizon=horizon, hidden=(16,), denoising_steps=2)
    policy = cfg.build(obs, action, TransformGroup((), outputs))
    run = Run.create(path, {}, seed=0, command=[])
    run.save({"policy": policy_tree(policy)}, step=0)
    run.close()
    return path


def start(work: str, run: Path) -> subprocess.Popen[str]:
    """Do some work on `run` in a process of its own, with what this module has."""
    command = [sys.executable, "-c", PROGRAM, str(ROOT), work, str(run)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.002)


CLOCK = ("wall_s", "env_steps_per_s", "learn_s", "sim_share", "eval_s", "eval_share")


def scalars(path: Path) -> list[dict[str, Any]]:
    """What was logged, but for the clock."""
    return [
        {name: value for name, value in line.items() if name not in CLOCK}
        for line in read_scalars(path / "scalars.jsonl")
    ]


def assert_same_end(a: Path, b: Path) -> None:
    """Weights, optimizers, random streams, the sim, scores: everything in the last and the best checkpoint."""
    for which in ("latest", "best"):
        one, other = (getattr(Run.open(path), which)() for path in (a, b))
        assert one is not None
        assert other is not None
        assert one.step == other.step
        assert one.score == other.score
        for part in one.tree:
            assert kit.same(one.tree[part], other.tree[part]), part
    assert scalars(a) == scalars(b)
    names = [sorted(p.name for p in (path / "rollouts").glob("*")) for path in (a, b)]
    assert names[0] == names[1]


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_start(self, run):
        self.run = run

    def on_iteration(self, step, scalars):
        if step == self.step:
            self.run.request_stop("test")


class KillAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_iteration(self, step, scalars):
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(autouse=True)
def walk_is_known(monkeypatch):
    monkeypatch.setitem(SIMS._rows, "test/walk", "tests.kits.walk_sim:make")


def test_reinflow_killed_again_and_again_ends_the_same(tmp_path):
    """SIGKILL before the first checkpoint, then, after a resume, somewhere later; then a last resume."""
    clone = make_clone(tmp_path / "clone")
    train(reinflow_config(clone), tmp_path / "whole")
    killed = tmp_path / "killed"
    process = start("train(reinflow_config(run.parent / 'clone'), run, [KillAt(1)])", killed)
    _, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, err
    assert Run.open(killed).latest() is None
    process = start("resume(run)", killed)
    wait_for(killed / "checkpoints" / "step_000000002" / "manifest.json", process)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    latest = Run.open(killed).latest()
    assert latest is not None
    assert 2 <= latest.step < 20
    # the clone is not needed any more: the run's own checkpoint has the policy, normalisation included
    clone.rename(tmp_path / "moved")
    resume(killed)
    assert_same_end(tmp_path / "whole", killed)


def test_ppo_interrupted_saves_exits_130_and_ends_the_same(tmp_path):
    train(ppo_config(), tmp_path / "whole")
    process = start("train(ppo_config(), run)", tmp_path / "cut")
    wait_for(tmp_path / "cut" / "scalars.jsonl", process)
    while not (tmp_path / "cut" / "scalars.jsonl").read_bytes():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "go on with: robotrl train --resume" in err
    assert "Traceback" not in err
    latest = Run.open(tmp_path / "cut").latest()
    assert latest is not None
    assert latest.step < 60
    assert latest.step % 25  # saved because it was stopped, not because it was due
    resume(tmp_path / "cut")
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("policy", [kit.FLOW, kit.GAUSSIAN])
def test_behaviour_cloning_stopped_ends_the_same(tmp_path, policy):
    walks = kit.write_walks(tmp_path / "walks")
    algo = BcCfg(updates=45, updates_per_iteration=10, batch=16)
    cfg = TrainCfg(SimCfg("test/walk", 2), algo, policy, dataset=str(walks), evaluation=EvalCfg(2, 6, 4, 0))
    train(cfg, tmp_path / "whole")
    train(cfg, tmp_path / "cut", [StopAt(3)])
    assert len(scalars(tmp_path / "cut")) == 3
    resume(tmp_path / "cut")
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


def test_ppo_stopped_at_every_iteration_ends_the_same(tmp_path):
    """From scratch, where the normalisation was measured; with a streak of good evaluations under way."""
    algo = replace(kit.PPO, env_steps=16 * 16 * 5, critic_warmup_env_steps=1)
    cfg = TrainCfg(SimCfg("test/walk", 16), algo, kit.GAUSSIAN, evaluation=EvalCfg(1, 6, 4, 0), stop_at_success=0.999)
    train(cfg, tmp_path / "whole")
    train(cfg, tmp_path / "cut", [StopAt(1)])
    for step in range(2, 6):
        resume(tmp_path / "cut", [StopAt(step)])
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


def test_a_run_with_several_rewards_stopped_ends_the_same(tmp_path):
    """Episodes are longer than a rollout: what a source knows of the running ones is in the checkpoint."""
    sources = (
        ("task", 1.0, TaskRewardCfg()),
        ("action-rate", 0.5, ActionRateCfg()),
        ("step-penalty", 0.1, StepPenaltyCfg()),
    )
    rewards = tuple(WeightedReward(*source) for source in sources)
    algo = replace(kit.PPO, env_steps=16 * kit.PPO.num_steps * 4)
    sim = SimCfg("test/walk", 16, (f"limit={kit.PPO.num_steps + 3}",))
    cfg = TrainCfg(sim, algo, kit.GAUSSIAN, rewards=rewards, evaluation=EvalCfg(2, 6, 4, 0))
    train(cfg, tmp_path / "whole")
    train(cfg, tmp_path / "cut", [StopAt(1)])
    resume(tmp_path / "cut")
    assert_same_end(tmp_path / "whole", tmp_path / "cut")
    assert any("sim_return" in line for line in scalars(tmp_path / "whole")), "whose running sums are there, too"
    for line in scalars(tmp_path / "whole"):
        assert line["reward/step-penalty"] == -1.0 and line["reward/action-rate"] < 0.0
        assert 0.0 < line["reward_valid/action-rate"] < 1.0, "an episode's first action has none before it"
