"""ReinFlow on the walk."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from learner_kit import REINFLOW, flow, gaussian, same, setup, snapshot
from walk_sim import Walk

from robotrl.algos.on_policy import Batch, make_batch
from robotrl.algos.reinflow import entropy_rate, joint_log_prob, policy_loss
from robotrl.errors import CapabilityError, ConfigError, NumericsError
from robotrl.fn.chain import chain_log_prob, noise_net
from robotrl.load import policy_tree
from robotrl.loop import evaluate
from robotrl.policies.noise import NoiseNet


def batch_of(learner, steps: int = 8) -> Batch:
    rollout = learner._collector.collect(learner._decide, steps)
    return make_batch(rollout, learner.model.encode, learner.critic, 0.99, 0.95)


def test_the_ratio_is_one_before_the_first_update():
    """Per decision through the learner, and per element of the chain."""
    learner = replace(REINFLOW, critic_warmup=0).build(setup(flow()))
    batch = batch_of(learner)
    found = chain_log_prob(learner.model, batch.ctx, noise_net(learner.noise), batch.record["chain"])
    assert (joint_log_prob(found) - batch.record["log_prob"]).abs().max() * found[0].numel() < 1e-4
    assert learner.iterate()["ratio_error"] <= 1e-5


def test_only_decisions_begun_before_an_update_have_another_ratio():
    learner = replace(REINFLOW, critic_warmup=0, steps_per_env=5).build(setup(flow()))
    for iteration in range(3):
        carried = learner._collector.state()["pending_envs"].tolist()
        rollout = learner._collector.collect(learner._decide, 5)
        assert bool(carried) == (iteration > 0)
        old = torch.tensor([row == 0 and env in carried for row, env in torch.nonzero(rollout.valid).tolist()])
        batch = make_batch(rollout, learner.model.encode, learner.critic, 0.99, 0.95)
        rows = torch.nonzero(~old).squeeze(1)
        assert policy_loss(learner.model, learner.noise, batch, rows, 0.01).ratio_error <= 1e-5
        learner.iterate()


def test_the_joint_density_worked_by_hand():
    # K = 2, H = 1, A = 3: the sum 21 over (K + 1) H A = 9
    log_prob = torch.arange(1.0, 7.0).reshape(1, 2, 1, 3)
    assert joint_log_prob(log_prob).item() == pytest.approx(21 / 9)


def test_the_entropy_rate_is_that_of_the_steps():
    noise = NoiseNet(2, 2, 1, 0.05, 0.3)
    ctx = torch.randn(5, 2)
    expected = torch.stack(
        [torch.distributions.Normal(0.0, noise(ctx, torch.full((5,), k / 4))).entropy().mean() for k in range(4)]
    ).mean()
    assert torch.allclose(entropy_rate(noise, ctx, 4), expected)


def test_zero_advantage_gives_exactly_zero_gradient():
    learner = REINFLOW.build(setup(flow()))
    batch = batch_of(learner)
    batch = batch._replace(advantage=torch.zeros(len(batch.ctx)))
    policy_loss(learner.model, learner.noise, batch, torch.arange(len(batch.ctx)), 0.01).loss.backward()
    assert all((p.grad == 0).all() for p in [*learner.model.parameters(), *learner.noise.parameters()])


def test_the_first_gradient_is_the_policy_gradient():
    """At ratio 1: minus the mean of advantage times the gradient of the joint log-density."""
    learner = REINFLOW.build(setup(flow()))
    batch = batch_of(learner)
    rows = torch.arange(len(batch.ctx))
    weights = [*learner.model.parameters(), *learner.noise.parameters()]
    clipped = torch.autograd.grad(policy_loss(learner.model, learner.noise, batch, rows, 0.01).loss, weights)
    log_prob = chain_log_prob(learner.model, batch.ctx, noise_net(learner.noise), batch.record["chain"])
    plain = torch.autograd.grad(-(batch.advantage * joint_log_prob(log_prob)).mean(), weights)
    for a, b in zip(clipped, plain, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
        assert b.abs().max() > 0


def test_the_actions_executed_are_the_ends_of_the_recorded_chains():
    learner = REINFLOW.build(setup(flow()))
    rollout = learner._collector.collect(learner._decide, 2)
    chain = rollout.record["chain"][0]
    executed = torch.stack([record.action for record in learner.sim.tape[:2]], 1)
    length = rollout.length[0]
    wanted = learner.model.to_actions(chain[:, -1])
    assert torch.equal(executed[:, 0], wanted[:, 0])
    assert torch.equal(executed[length == 2, 1], wanted[length == 2, 1])
    assert chain.shape == (32, 4, 2, 1)


def test_exploration_noise_is_what_the_network_says():
    learner = REINFLOW.build(setup(flow(), num_envs=400))
    rollout = learner._collector.collect(learner._decide, 4)
    batch = make_batch(rollout, learner.model.encode, learner.critic, 0.99, 0.95)
    chain = batch.record["chain"]
    for k in range(3):
        t, dt = torch.full((len(chain),), k / 3), torch.full((len(chain),), 1 / 3)
        with torch.no_grad():
            mean, std = noise_net(learner.noise)(learner.model, batch.ctx, chain[:, k], t, dt)
        z = (chain[:, k + 1] - mean) / std
        assert abs(z.std().item() - 1) < 0.06
        assert (std > 0.08 - 1e-6).all()
        assert (std < 0.2 + 1e-6).all()


def test_noise_is_off_at_deployment():
    learner = REINFLOW.build(setup(flow()))
    learner.iterate()
    assert not [name for name in policy_tree(learner.policy)["weights"] if "noise" in name]
    obs, noise = {"walk": torch.randn(5, 2)}, torch.randn(5, 2, 1)
    with torch.no_grad():
        assert torch.equal(learner.policy.deploy(obs, noise).actions, learner.policy.deploy(obs, noise).actions)


def test_critic_warm_up_leaves_policy_and_noise_alone():
    learner = replace(REINFLOW, critic_warmup=2).build(setup(flow()))
    before = snapshot([learner.model.state_dict(), learner.noise.state_dict()])
    learner.iterate()
    learner.iterate()
    assert same(before, [learner.model.state_dict(), learner.noise.state_dict()])
    learner.iterate()
    assert not same(before[0], learner.model.state_dict())
    assert not same(before[1], learner.noise.state_dict())


def test_ema_weights_lag_behind_and_are_what_is_evaluated():
    learner = replace(REINFLOW, critic_warmup=0, ema=0.9).build(setup(flow()))
    start = snapshot(learner.policy.state_dict())
    learner.iterate()
    model, policy = learner.model.state_dict(), learner.policy.state_dict()
    moved = {k: (model[k] - start[k]).norm() for k in start}
    lagged = {k: (policy[k] - start[k]).norm() for k in start}
    assert all(0 < lagged[k] < moved[k] for k in start)
    plain = REINFLOW.build(setup(flow()))
    assert plain.policy is plain.model


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_it_goes_on_identically_from_a_saved_state(ema):
    cfg = replace(REINFLOW, ema=ema, entropy_coef=0.01)
    learner = cfg.build(setup(flow()))
    learner.iterate()
    learner.iterate()
    saved = snapshot(learner.state())
    fresh = cfg.build(setup(flow(seed=5)))
    fresh.load(saved)
    for _ in range(2):
        assert learner.iterate() == fresh.iterate()
    assert same(snapshot(learner.state()), snapshot(fresh.state()))


def test_env_steps_are_counted_once():
    learner = REINFLOW.build(setup(flow()))
    assert (learner.iterations, learner.env_steps) == (4, 0)
    learner.iterate()
    assert learner.env_steps == 32 * 16


def test_it_learns():
    # the ratio is to the power 1 / 8 here, and 1 / 80 where the default clip range belongs
    cfg = replace(REINFLOW, lr=3e-3, critic_lr=3e-3, epochs=4, clip_coef=0.1, noise_low=0.2, noise_high=0.5)
    learner = cfg.build(setup(flow()))
    before = evaluate(learner.policy, Walk(16), episodes=60).returns.mean()
    for _ in range(12):
        learner.iterate()
    after = evaluate(learner.policy, Walk(16), episodes=60).returns.mean()
    assert after > before + 2


def test_nan_in_the_weights_stops_with_the_iteration_and_the_field():
    learner = replace(REINFLOW, critic_warmup=0).build(setup(flow()))
    learner.iterate()
    with torch.no_grad():
        learner.critic.net.layers[0].weight[0, 0] = math.nan
    before = snapshot(learner.model.state_dict())
    with pytest.raises(NumericsError, match="iteration 2: value_loss is nan: expected finite"):
        learner.iterate()
    assert same(before, learner.model.state_dict())


def test_what_it_cannot_start_from_is_refused():
    with pytest.raises(ConfigError, match="init_from is not given"):
        REINFLOW.build(setup(None))
    with pytest.raises(CapabilityError, match="GaussianPolicy lacks HasChain"):
        REINFLOW.build(setup(gaussian()))
    with pytest.raises(ConfigError, match=r"noise_low, algo.noise_high is \(0.2, 0.1\): expected 0 < noise_low"):
        replace(REINFLOW, noise_low=0.2, noise_high=0.1).build(setup(flow()))
    with pytest.raises(ConfigError, match=r"algo\.ema is 1.0"):
        replace(REINFLOW, ema=1.0).build(setup(flow()))
