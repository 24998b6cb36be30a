"""A run keeps its critic beside its checkpoints, a later run starts from it, and a policy acts by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tests.training.test_resume as test_resume
from robotrl.algos.pa_rl import PaRlCfg
from robotrl.config import TrainCfg
from robotrl.errors import ConfigError
from robotrl.learners.critics.stored import stored_critic, with_critic
from robotrl.policies.flow import FlowCfg
from robotrl.rollout.demos import collect_demos
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars
from robotrl.run.policy_checkpoint import load_policy
from robotrl.training import resume, train
from tests.training.test_resume import PEG, StopAt


def test_a_run_keeps_its_critic_and_another_starts_from_it(tmp_path: Path) -> None:
    test_resume.make_clone(tmp_path / "clone")
    options = {"limit_s": 1.0, "reward": "shaped"}
    collect_demos(PEG, tmp_path / "logs", episodes=6, num_envs=3, keep="all", sim_options=options)
    algo = PaRlCfg(
        critic_updates=4,
        updates=4,
        updates_per_iteration=2,
        batch=8,
        candidates=2,
        critic_hidden=(8,),
        held_out=0.5,
        engine="eager",
    )
    config = TrainCfg(
        sim=test_resume.peg(2),
        algo=algo,
        policy=FlowCfg(),
        init_from=str(tmp_path / "clone"),
        dataset=str(tmp_path / "logs"),
        evaluation=test_resume.EVALUATION,
        checkpoint_every=1,
        accept_data=True,
    )
    train(config, tmp_path / "whole")
    train(config, tmp_path / "cut", [StopAt(3)])
    resume(tmp_path / "cut")
    test_resume.assert_same_end(tmp_path / "whole", tmp_path / "cut")
    critic = stored_critic(tmp_path / "whole")
    again = stored_critic(tmp_path / "cut")
    assert all(torch.equal(x, again.weights[name]) for name, x in critic.weights.items())
    last = read_scalars(tmp_path / "whole" / "scalars.jsonl")[-1]
    assert last["critic/heldout_rank"] == critic.quality["critic/heldout_rank"]
    chooser = with_critic(load_policy(tmp_path / "clone"), tmp_path / "whole", candidates=3)
    assert chooser.noise_shape == (12, 4)
    # a second run takes the critic as it is, and names it among its inputs
    second = replace(algo, critic_updates=0, init_critic=str(tmp_path / "whole"))
    train(replace(config, algo=second), tmp_path / "second")
    kept = stored_critic(tmp_path / "second")
    assert all(torch.equal(x, critic.weights[name]) for name, x in kept.weights.items())
    assert any(one.input.field == "algo.init_critic" for one in Run.open(tmp_path / "second").inputs)
    wider = replace(second, critic_hidden=(16,))
    with pytest.raises(ConfigError, match=r"algo\.critic_hidden is \[16\]: expected \[8\], as the critic"):
        train(replace(config, algo=wider), tmp_path / "third")
