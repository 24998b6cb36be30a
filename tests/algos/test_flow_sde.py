"""Flow-SDE and Flow-Noise on the walk: what is theirs alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from robotrl.algos.flow_noise import FlowNoiseCfg, chunk_log_prob
from robotrl.algos.flow_sde import FlowSdeCfg
from robotrl.algos.reinflow import joint_log_prob
from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.chain import chain_log_prob, flow_sde, noise_net
from robotrl.learners.denoising_sampling import step_log_prob
from robotrl.learners.on_policy import make_batch
from robotrl.rollout.evaluate import evaluate
from tests.kits.learner_kit import SMALL, flow, gaussian, of_the_acting_policy, same, setup, snapshot
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk

SDE, NOISE = FlowSdeCfg(**SMALL), FlowNoiseCfg(**SMALL)


def batch_of(learner):
    rollout = learner._collector.rollout(8)
    return of_the_acting_policy(make_batch(rollout, learner.loss.value, 0.99, 0.95))


def test_densities_reduced_by_hand():
    # K = 2, H = 1, A = 3
    log_prob = torch.arange(1.0, 7.0).reshape(1, 2, 1, 3)
    assert step_log_prob(log_prob).tolist() == [[2, 5]]
    assert chunk_log_prob(log_prob).item() == 21 / 3
    assert joint_log_prob(log_prob).item() == pytest.approx(chunk_log_prob(log_prob).item() / 3)


def test_the_first_gradient_is_the_policy_gradient_of_every_step():
    learner = SDE.build(setup(flow()))
    batch = batch_of(learner)
    ctx, weights = learner.policy.encode(batch.obs), list(learner.policy.parameters())
    found = torch.autograd.grad(learner.loss.terms(batch.rows(), batch.obs, ctx).surrogate.loss, weights)
    log_prob = chain_log_prob(learner.policy, ctx, flow_sde(SDE.scale), batch.record["chain"])
    plain = torch.autograd.grad(-(batch.advantage * log_prob.mean((1, 2, 3))).mean(), weights)
    for a, b in zip(found, plain, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
        assert b.abs().max() > 0


def test_the_first_gradient_of_flow_noise_is_that_of_whole_chunks():
    learner = replace(NOISE, entropy_coef=0.0).build(setup(flow()))
    batch = batch_of(learner)
    ctx, weights = learner.policy.encode(batch.obs), list(learner.loss.actor.parameters())
    found = torch.autograd.grad(learner.loss.terms(batch.rows(), batch.obs, ctx).surrogate.loss, weights)
    log_prob = chain_log_prob(learner.policy, ctx, noise_net(learner.loss.std), batch.record["chain"])
    plain = torch.autograd.grad(-(batch.advantage * log_prob.sum((2, 3)).sum(1) / 4).mean(), weights)
    for a, b in zip(found, plain, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("cfg", [SDE, NOISE])
def test_zero_advantage_gives_exactly_zero_gradient(cfg):
    learner = replace(cfg, **({"entropy_coef": 0.0} if cfg is NOISE else {})).build(setup(flow()))
    batch = batch_of(learner)
    rows = batch._replace(advantage=torch.zeros(len(batch.advantage))).rows()
    learner.loss.terms(rows, batch.obs, learner.policy.encode(batch.obs)).surrogate.loss.backward()
    assert all((p.grad == 0).all() for p in learner.loss.actor.parameters())


@pytest.mark.parametrize("cfg", [SDE, replace(NOISE, ema=0.9)])
def test_it_goes_on_identically_from_a_saved_state(cfg):
    learner = cfg.build(setup(flow()))
    learner.iterate()
    learner.iterate()
    saved = snapshot(learner.state())
    fresh = cfg.build(setup(flow(seed=5)))
    fresh.load(saved)
    for _ in range(2):
        assert learner.iterate() == fresh.iterate()
    assert same(snapshot(learner.state()), snapshot(fresh.state()))
    assert same(learner.policy.state_dict(), fresh.policy.state_dict())


# as for ReinFlow: the powers of the densities are other ones here than where the default clip ranges belong
@pytest.mark.parametrize("cfg", [replace(SDE, clip_coef=0.2), replace(NOISE, noise_low=0.2, noise_high=0.5)])
def test_it_learns(cfg):
    learner = replace(cfg, lr=3e-3, critic_lr=3e-3, epochs=4).build(setup(flow()))
    before = evaluate(learner.policy, Walk(16), episodes=60).returns.mean()
    for _ in range(12):
        learner.iterate()
    assert evaluate(learner.policy, Walk(16), episodes=60).returns.mean() > before + 2


def test_what_they_cannot_do_is_refused():
    with raises_naming(ConfigError, "algo.scale", 0.0, 0):
        replace(SDE, scale=0.0).build(setup(flow()))
    for cfg, name in ((SDE, "Flow-SDE"), (NOISE, "Flow-Noise")):
        with pytest.raises(CapabilityError, match=f"GaussianPolicy lacks HasChain: {name} needs"):
            cfg.build(setup(gaussian()))
        with pytest.raises(ConfigError, match=f"init_from is not given: {name} fine-tunes"):
            cfg.build(setup(None))
