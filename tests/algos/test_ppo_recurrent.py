"""PPO of policies with memory, by truncated backpropagation through time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robotrl.algos.ppo import PpoCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.errors import CapabilityError, ConfigError
from robotrl.learners.guidance.cfg import GuidanceCfg
from robotrl.learners.learner import Setup
from robotrl.learners.memory.contexts import JOINED, MEMORY
from robotrl.learners.on_policy import OBS, make_batch
from robotrl.policies.gaussian import GaussianCfg
from robotrl.policies.recurrent import RecurrentBetaCfg, RecurrentCfg
from robotrl.registry import ALGORITHMS
from robotrl.rollout.compatibility import check_memory
from robotrl.rollout.evaluate import evaluate
from robotrl.training import train
from robotrl.transforms import TransformGroup
from tests.kits.cue_sim import Cue
from tests.kits.learner_kit import ACTION, GAUSSIAN, PPO, SPECS, TRANSFORMS, same, setup, snapshot
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk

CFG = replace(PPO, critic_warmup_env_steps=0, bptt_steps=8)
SMALL = RecurrentCfg(memory=8, hidden=(16,))
LEARN = PpoCfg(
    env_steps=20 * 32 * 20,
    num_steps=20,
    epochs=4,
    minibatch=160,
    bptt_steps=10,
    critic_warmup_env_steps=0,
    lr=3e-3,
    critic_lr=3e-3,
    critic_hidden=(32,),
    engine="eager",
    target_kl=None,
)


def recurrent(cfg: Any = SMALL) -> Any:
    torch.manual_seed(0)
    return cfg.build(SPECS, ACTION, TRANSFORMS)


def error_of(learner: Any, rows: dict[str, torch.Tensor]) -> torch.Tensor:
    """(S, L) how far the ratios of an update's rows are from 1."""
    encoded = learner._contexts.encode_rows(rows)
    log_prob = learner.policy.density(encoded.ctx).log_prob(encoded.rows["raw"]).flatten(1).sum(1)
    return ((log_prob - encoded.rows["log_prob"]).exp() - 1).abs().view(rows[JOINED].shape)


@pytest.mark.parametrize("policy", [SMALL, RecurrentBetaCfg(memory=8, hidden=(16,))], ids=["gaussian", "beta"])
def test_the_ratio_is_one_at_the_start_of_every_iteration(policy):
    """Unrolled through a segment, a decision has the probability that it had when it was made."""
    learner = replace(CFG, lr=3e-3, minibatch=128).build(setup(None, policy))
    for _ in range(4):
        scalars = learner.iterate()
        assert scalars["ratio_error"] <= 1e-5
        assert scalars["actor_updates"] > 1


def test_an_engine_left_to_itself_does_not_compile_the_loop_over_a_segment():
    assert replace(CFG, engine="auto").build(setup(None, SMALL))._engine.mode == "eager"
    assert replace(CFG, engine="compiled").build(setup(None, SMALL))._engine.mode == "compiled"
    assert replace(CFG, engine="auto").build(setup(None, GAUSSIAN))._engine.mode == "auto"


def test_with_chunks_only_decisions_begun_before_an_update_have_another_ratio():
    learner = replace(CFG, num_steps=5).build(setup(recurrent(replace(SMALL, horizon=2))))
    for iteration in range(3):
        carried = learner._collector.state()["pending_envs"].tolist()
        assert bool(carried) == (iteration > 0)
        rollout = learner._contexts.remembered(learner._collector.rollout(5))
        batch = make_batch(rollout, learner._value, 0.99, 0.95)
        place = torch.nonzero(rollout.valid)
        old = torch.tensor([row == 0 and env in carried for row, env in place.tolist()])
        # each decision for itself, from the memory that was stored with it
        rows = {name: x[:, None] for name, x in batch.rows().items()}
        error = error_of(learner, rows | {JOINED: torch.zeros(len(old), 1, dtype=torch.bool)})[:, 0]
        assert error[~old].max() <= 1e-5
        learner.iterate()


def test_the_stored_memory_is_that_of_the_episode():
    """By hand, decision after decision: zeros where an episode begins, and nowhere else."""
    learner = CFG.build(setup(recurrent()))
    memory, started = learner.policy.initial_memory(32), torch.ones(32, dtype=torch.bool)
    for _ in range(2):
        rollout = learner._contexts.remembered(learner._collector.rollout(16))
        for t in range(16):
            memory = torch.where(started[:, None], 0.0, memory)
            assert torch.equal(rollout.obs[MEMORY][t], memory)
            obs = {"walk": rollout.obs["walk"][t]}
            memory = learner.policy.advance(obs, memory).memory.detach()
            # the value of a time-out is that of the final observation with this memory
            assert torch.equal(rollout.next_obs[MEMORY][t], memory)
            started = rollout.terminated[t] | rollout.truncated[t]
        assert (rollout.terminated | rollout.truncated).any()


def test_a_segment_has_the_memory_of_its_beginning_and_gradients_through_time():
    learner = CFG.build(setup(recurrent()))
    rollout = learner._contexts.remembered(learner._collector.rollout(16))
    batch = make_batch(rollout, learner._value, 0.99, 0.95)
    rows = learner._contexts.rows_of(batch, rollout)
    assert rows["raw"].shape[:2] == rows[JOINED].shape == (2 * 32, 8)
    assert rows[OBS + MEMORY].shape == (64, 8, 8)
    assert error_of(learner, rows).max() <= 1e-5


def test_a_minibatch_in_parts_learns_as_the_whole_does():
    whole, parts = (replace(CFG, microbatch=m).build(setup(recurrent())) for m in (None, 16))
    for _ in range(2):
        first, second = whole.iterate(), parts.iterate()
        for name in first:
            assert first[name] == pytest.approx(second[name], rel=1e-3, abs=1e-4), name
    assert torch.allclose(whole._engine.flat, parts._engine.flat, atol=1e-5)


def test_a_learner_that_resumes_goes_on_bit_for_bit():
    learner = CFG.build(setup(None, SMALL))
    learner.iterate()
    saved = snapshot(learner.state())
    fresh = CFG.build(setup(None, SMALL))
    fresh.load(saved)
    assert learner.iterate() == fresh.iterate()
    assert same(learner.state(), fresh.state())


def test_a_policy_without_memory_has_no_part_of_it():
    assert "memory" not in CFG.build(setup(None, GAUSSIAN)).state()


def test_a_cue_is_remembered_with_memory_alone():
    """The recurrent policy answers every test start; without memory, half of them is what can be had."""
    policies = {"memory": RecurrentCfg(memory=16, hidden=(32,)), "none": GaussianCfg(1, (32, 32), 0.6)}
    found = {}
    for name, policy in policies.items():
        learner = LEARN.build(Setup(lambda: Cue(32), policy, None, None, 0))
        for _ in range(learner.iterations):
            learner.iterate()
        found[name] = evaluate(learner.policy, Cue(32), episodes=100)
    assert found["memory"].rate.value >= 0.95 and found["memory"].returns.mean() > 0.8
    assert found["none"].rate.value == pytest.approx(0.5, abs=0.02) and found["none"].returns.mean() < 0.1


def test_an_evaluation_begins_each_episode_without_memory_whatever_the_number_of_envs():
    policy = SMALL.build(Cue(1).observation_spec, Cue(1).action_spec, TransformGroup(outputs=TRANSFORMS.outputs))
    results = [evaluate(policy, Cue(n), episodes=20, mode="sample") for n in (1, 3, 32)]
    for other in results[1:]:
        assert (other.returns == results[0].returns).all()


# refusals


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_every_other_algorithm_refuses_a_memory_by_name(name):
    algo = ALGORITHMS.load(name)
    if algo.recurrent:
        assert name == "ppo"
        return
    for policy in (SMALL, recurrent()):
        with raises_naming(CapabilityError, "recurrent", type(policy).__name__, "memory", nearest="ppo"):
            check_memory(algo(), policy)


def test_a_run_of_another_algorithm_is_refused_before_it_is_written(tmp_path: Path):
    cfg = TrainCfg(SimCfg("mujoco/reach", 2), ALGORITHMS.load("sac")(), SMALL, evaluation=EvalCfg(0, 2, 2, 0))
    with raises_naming(CapabilityError, "Sac", "RecurrentCfg", nearest="ppo"):
        train(cfg, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["minibatch", "microbatch"])
def test_minibatches_hold_whole_segments(name):
    with raises_naming(ConfigError, f"algo.{name}", 30, "algo.bptt_steps", 8):
        replace(CFG, **({"minibatch": 30} if name == "minibatch" else {"minibatch": 120, "microbatch": 30})).build(
            setup(recurrent())
        )
    with raises_naming(ConfigError, "algo.bptt_steps", 0, 1):
        replace(CFG, bptt_steps=0).build(setup(recurrent()))


def test_guidance_of_single_observations_is_refused():
    with raises_naming(CapabilityError, "RecurrentPolicy", "guidance"):
        replace(CFG, guidance=GuidanceCfg(by="expert")).build(setup(recurrent())._replace(make_sim=lambda: Walk(32)))
