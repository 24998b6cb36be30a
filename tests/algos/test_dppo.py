"""DPPO on the walk."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch

from robotrl.algos.dppo import LOG_PROB_RANGE, DppoCfg, bounded_log_prob, clip_ranges, policy_loss, step_weights
from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.chain import chain_log_prob, ddim
from robotrl.learners.on_policy import make_batch
from robotrl.policies.staged import StagedPolicy
from robotrl.registry import PRESETS
from robotrl.rollout.evaluate import evaluate
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from tests.kits.learner_kit import (
    DIFFUSION,
    FLOW,
    SMALL,
    diffusion,
    flow,
    gaussian,
    of_the_acting_policy,
    same,
    setup,
    snapshot,
)
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk

DPPO = DppoCfg(**SMALL)
PART = replace(DPPO, tuned_steps=2)


def test_the_schedules_worked_by_hand():
    assert step_weights(0.5, 3) == [0.25, 0.5, 1.0]
    first, middle, last = clip_ranges(0.001, 0.01, 3)
    assert (first, last) == pytest.approx((0.001, 0.01))
    # (e^1.5 - 1) / (e^3 - 1) = 1 / (e^1.5 + 1)
    assert middle == pytest.approx(0.001 + 0.009 / (2.718281828**1.5 + 1))
    assert clip_ranges(0.001, 0.01, 1) == [0.01]


def test_log_densities_are_held_to_a_range_and_averaged():
    log_prob = torch.tensor([[[[-9.0], [1.0]], [[3.0], [0.0]]]])
    assert bounded_log_prob(log_prob).tolist() == [[-2.0, 1.0]]


def test_each_step_has_a_ratio_a_weight_and_a_clip_range_of_its_own():
    """Ratios 1.5 at both of two steps, advantage 1: clipped to 1.1 with weight 1/2, and to 1.2 with weight 1."""
    cfg = replace(DPPO, denoising_gamma=0.5, clip_first=0.1, clip_coef=0.2)
    rows = {"log_prob": torch.zeros(1, 2), "advantage": torch.ones(1)}
    out = policy_loss(torch.full((1, 2), 1.5).log(), rows, cfg)
    assert out.loss.item() == pytest.approx(-(0.5 * 1.1 + 1.2) / 2)
    assert out.clip_fraction == 1


@pytest.mark.parametrize("make", [diffusion, flow])
@pytest.mark.parametrize("cfg", [DPPO, PART, replace(DPPO, eta=0.0), replace(PART, likelihood_std=0.2)])
def test_the_ratio_is_one_before_the_first_update(make, cfg):
    learner = replace(cfg, critic_warmup_env_steps=0).build(setup(make()))
    assert learner.iterate()["ratio_error"] <= 1e-5


def test_noisy_steps_of_a_policy_that_is_deployed_without_noise_are_warned_of(recwarn):
    quiet = diffusion()
    quiet.deploy_noise = 0.0
    cfg = replace(DPPO, start_noise=0.0)
    with pytest.warns(UserWarning, match=r"algo.eta is 1.*deployed without noise \(policy.deploy_noise is 0\)"):
        cfg.build(setup(quiet))
    recwarn.clear()
    replace(cfg, eta=0.0).build(setup(quiet))
    DPPO.build(setup(diffusion()))
    assert not [one for one in recwarn if "algo.eta" in str(one.message)]


def test_the_preset_of_driving_learns_from_chains_as_they_are_deployed():
    """A floor of 0.1: the peak of the density, 1 / (0.1 sqrt(2 pi)), has the logarithm 1.38, below the largest, 2."""
    cfg = PRESETS.load("drive-dppo")()
    assert cfg.policy.deploy_noise == cfg.algo.start_noise == cfg.algo.eta == 0.0
    peak = -math.log(cfg.algo.likelihood_std * math.sqrt(2.0 * math.pi))
    assert peak == pytest.approx(1.3836, abs=1e-4) and peak < LOG_PROB_RANGE[1]


def test_the_first_gradient_is_the_policy_gradient_of_the_last_steps():
    learner = PART.build(setup(diffusion()))
    rollout = learner._collector.rollout(8)
    batch = of_the_acting_policy(make_batch(rollout, learner.loss.value, 0.99, 0.95))
    assert batch.record["chain"].shape[1:] == (3, 2, 1)
    ctx = learner.loss.policy.encode(batch.obs)
    weights = list(learner.loss.policy.parameters())
    found = torch.autograd.grad(learner.loss.terms(batch.rows(), batch.obs, ctx).surrogate.loss, weights)
    total = torch.zeros(())
    for k, weight in ((3, 0.99), (4, 1.0)):
        steps = range(k, k + 1)
        points = batch.record["chain"][:, k - 3 : k - 1]
        log_prob = chain_log_prob(learner.loss.policy, ctx, ddim(1.0, 0.1), points, steps)
        total = total - (weight * batch.advantage * log_prob.mean((1, 2, 3))).mean() / 2
    for a, b in zip(found, torch.autograd.grad(total, weights), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
        assert b.abs().max() > 0


def test_the_frozen_copy_stays_and_the_first_steps_are_its_own():
    start = diffusion()
    learner = replace(PART, critic_warmup_env_steps=0, lr=1e-2).build(setup(copy.deepcopy(start)))
    learner.iterate()
    assert same(learner.loss.frozen.state_dict(), start.state_dict())
    assert not same(learner.loss.policy.state_dict(), start.state_dict())
    # what is deployed: three steps of the clone, two of what learned
    obs, noise = {"walk": torch.randn(5, 2)}, torch.randn(5, 2, 1)
    with torch.no_grad():
        x = noise
        for k, policy in enumerate([start] * 3 + [learner.loss.policy] * 2):
            t, dt = start.times[k], start.times[k + 1] - start.times[k]
            x = x + dt * policy.velocity(policy.encode(obs), x, torch.full((5,), t), torch.full((5,), dt))
        assert torch.allclose(learner.policy.deploy(obs, noise).normalized_action, x, atol=1e-6)


def test_the_draws_are_bounded_and_at_least_as_wide_as_the_floor():
    learner = replace(DPPO, noise_bound=0.5, sample_std=0.3).build(setup(flow(), num_envs=200))
    rollout = learner._collector.rollout(4)
    batch = make_batch(rollout, learner.loss.value, 0.99, 0.95)
    chain, policy = batch.record["chain"], learner.loss.policy
    ctx = policy.encode(batch.obs)
    for k in range(3):
        t, dt = torch.full((len(chain),), k / 3), torch.full((len(chain),), 1 / 3)
        with torch.no_grad():
            mean, std = ddim(1.0, 0.3)(policy, ctx, chain[:, k], t, dt)
        z = (chain[:, k + 1] - mean) / std
        assert std.min() >= 0.3
        assert z.abs().max() <= 0.5 + 1e-5
        assert (z.abs() > 0.499).float().mean() > 0.5


def test_cloning_the_frozen_copy_pulls_back():
    """With no advantage and the cloning term alone, weights that were disturbed go towards the frozen copy's acts."""
    learner = replace(DPPO, critic_warmup_env_steps=0, bc_coef=1.0, lr=3e-3).build(setup(diffusion()))
    with torch.no_grad():
        for parameter in learner.loss.policy.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    first = learner.iterate()
    assert first["bc_loss"] > learner.iterate()["bc_loss"]


@pytest.mark.parametrize("cfg", [DPPO, replace(PART, ema=0.9, bc_coef=0.1)])
def test_it_goes_on_identically_from_a_saved_state(cfg):
    learner = cfg.build(setup(diffusion()))
    learner.iterate()
    learner.iterate()
    saved = snapshot(learner.state())
    stored = policy_tree(learner.policy)
    # a run that resumes builds its learner from the checkpoint's own policy
    fresh = cfg.build(setup(policy_from_tree(stored, "here")))
    fresh.load(saved)
    for _ in range(2):
        assert learner.iterate() == fresh.iterate()
    assert same(snapshot(learner.state()), snapshot(fresh.state()))
    assert same(learner.policy.state_dict(), fresh.policy.state_dict())


def test_a_staged_policy_is_tuned_on_where_it_was_tuned():
    learner = PART.build(setup(diffusion()))
    assert isinstance(learner.policy, StagedPolicy)
    again = PART.build(setup(learner.policy))
    assert again.loss.frozen is not learner.loss.frozen
    assert again.policy.switch == 3
    with raises_naming(ConfigError, "algo.tuned_steps", 5, 2):
        DPPO.build(setup(learner.policy))


def test_it_learns():
    cfg = replace(DPPO, lr=3e-3, critic_lr=3e-3, epochs=4, clip_coef=0.2, clip_first=0.1, sample_std=0.3)
    learner = replace(cfg, likelihood_std=0.3, eta=0.0).build(setup(flow()))
    before = evaluate(learner.policy, Walk(16), episodes=60).returns.mean()
    for _ in range(12):
        learner.iterate()
    assert evaluate(learner.policy, Walk(16), episodes=60).returns.mean() > before + 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("eta", 1.5),
        ("sample_std", 0.0),
        ("likelihood_std", -1.0),
        ("noise_bound", 0.0),
        ("clip_first", 0.5),
        ("denoising_gamma", 0.0),
        ("bc_coef", -1.0),
        ("tuned_steps", 0),
        ("tuned_steps", 6),
    ],
)
def test_settings_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=rf"algo\.{field} is {value}: expected"):
        replace(DPPO, **{field: value}).build(setup(diffusion()))


def test_a_policy_without_a_chain_is_refused():
    with pytest.raises(CapabilityError, match="GaussianPolicy lacks HasChain: DPPO needs a flow or diffusion policy"):
        DPPO.build(setup(gaussian()))
    assert (DIFFUSION.denoising_steps, FLOW.denoising_steps) == (5, 3)
