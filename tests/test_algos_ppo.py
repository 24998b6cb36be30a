"""PPO on the walk."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from learner_kit import GAUSSIAN, PPO, flow, gaussian, same, setup, snapshot
from walk_sim import Walk

from robotrl.algos.on_policy import Batch, make_batch
from robotrl.algos.ppo import measure_transforms, policy_loss
from robotrl.collect import Collector
from robotrl.errors import CapabilityError, ConfigError
from robotrl.loop import evaluate


def test_the_ratio_is_one_before_the_first_update():
    """Through the whole learner: what the decider stored is what the loss computes; half the actions are clipped."""
    policy = gaussian()
    with torch.no_grad():
        policy.log_std.fill_(0.5)
    learner = replace(PPO, critic_warmup=0).build(setup(policy))
    assert learner.iterate()["ratio_error"] <= 1e-5


def test_only_decisions_begun_before_an_update_have_another_ratio():
    """Later iterations: the ratio is 1 but for decisions carried over from the previous rollout."""
    learner = replace(PPO, critic_warmup=0, steps_per_env=5).build(setup(gaussian()))
    for iteration in range(3):
        carried = learner._collector.state()["pending_envs"].tolist()
        rollout = learner._collector.collect(learner._decide, 5)
        assert bool(carried) == (iteration > 0)
        batch = make_batch(rollout, learner.policy.encode, learner.critic, 0.99, 0.95)
        place = torch.nonzero(rollout.valid)
        old = torch.tensor([row == 0 and env in carried for row, env in place.tolist()])
        log_prob = (
            learner.policy.log_prob({"walk": rollout.obs["walk"][rollout.valid]}, batch.record["raw"]).flatten(1).sum(1)
        )
        error = ((log_prob - batch.record["log_prob"]).exp() - 1).abs()
        assert error[~old].max() <= 1e-5
        learner.iterate()


def test_zero_advantage_gives_exactly_zero_gradient():
    policy = gaussian()
    obs = {"walk": torch.randn(10, 2)}
    raw = policy.draw(obs, None).detach()
    log_prob = policy.log_prob(obs, raw).flatten(1).sum(1).detach()
    batch = Batch(policy.encode(obs), {"raw": raw, "log_prob": log_prob}, torch.zeros(10), torch.zeros(10), 0.0)
    policy_loss(policy, batch, torch.arange(10), 0.2).loss.backward()
    assert all((parameter.grad == 0).all() for parameter in policy.parameters())


def test_one_ratio_stands_for_a_whole_chunk():
    """The ratio is the product over the chunk: two elements of ratio 1.1 make 1.21."""
    policy = gaussian()
    obs = {"walk": torch.zeros(1, 2)}
    raw = policy.mean(policy.encode(obs)).detach()
    density = policy.log_prob(obs, raw).detach()
    old = density.sum() - 2 * torch.tensor(1.1).log()
    batch = Batch(policy.encode(obs), {"raw": raw, "log_prob": old[None]}, torch.ones(1), torch.zeros(1), 0.0)
    assert policy_loss(policy, batch, torch.arange(1), 0.5).loss.item() == pytest.approx(-1.21, rel=1e-5)


def test_critic_warm_up_leaves_the_policy_alone():
    learner = replace(PPO, critic_warmup=2).build(setup(gaussian()))
    before = snapshot(learner.policy.state_dict())
    critic = snapshot(learner.critic.state_dict())
    scalars = [learner.iterate(), learner.iterate()]
    assert same(before, learner.policy.state_dict())
    assert not same(critic, learner.critic.state_dict())
    assert all("pg_loss" not in s and "value_loss" in s for s in scalars)
    assert "pg_loss" in learner.iterate()
    assert not same(before, learner.policy.state_dict())


def test_the_kl_limit_ends_the_actors_epochs():
    learner = replace(PPO, critic_warmup=0, target_kl=1e-12, epochs=4).build(setup(gaussian()))
    learner.iterate()
    # the first step sees KL 0 (or a rounding error), the next one at most sees that it moved
    steps = {int(s["step"]) for s in learner._actor_optimizer.state_dict()["state"].values()}
    assert steps <= {1, 2}
    critic_steps = {int(s["step"]) for s in learner._critic_optimizer.state_dict()["state"].values()}
    assert min(critic_steps) > 10


def test_env_steps_are_counted_once():
    learner = PPO.build(setup(None, GAUSSIAN))
    assert learner.env_steps == 0  # measuring the normalisation does not count
    assert learner.iterations == 4
    learner.iterate()
    assert learner.env_steps == 32 * 16


def test_the_normalisation_is_that_of_random_actions():
    sim = Walk(16)
    transforms = measure_transforms(sim, 50, seed=3)
    seen = torch.stack([record.obs for record in sim.tape]).reshape(-1, 2).double()
    scale, offset = transforms.inputs[0].constants
    z = seen * torch.tensor(scale) + torch.tensor(offset)
    assert torch.allclose(z.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-5)
    assert torch.allclose(z.std(0, unbiased=False), torch.ones(2, dtype=torch.float64), atol=1e-5)
    actions = torch.stack([record.action for record in sim.tape])
    assert actions.min() < -0.9
    assert actions.max() > 0.9
    assert measure_transforms(Walk(16), 50, seed=3) == transforms


def test_it_goes_on_identically_from_a_saved_state():
    learner = PPO.build(setup(None, GAUSSIAN))
    learner.iterate()
    learner.iterate()
    saved = snapshot(learner.state())
    fresh = PPO.build(setup(None, GAUSSIAN))
    fresh.load(saved)
    for _ in range(2):
        assert learner.iterate() == fresh.iterate()
    assert same(snapshot(learner.state()), snapshot(fresh.state()))
    assert not same(saved, snapshot(fresh.state()))


def test_it_learns():
    learner = replace(PPO, lr=3e-3, critic_lr=3e-3, epochs=5, critic_warmup=1).build(setup(None, GAUSSIAN))
    before = evaluate(learner.policy, Walk(16), episodes=60).returns.mean()
    for _ in range(12):
        learner.iterate()
    after = evaluate(learner.policy, Walk(16), episodes=60).returns.mean()
    assert after > before + 2


def test_a_policy_without_density_is_refused():
    with pytest.raises(CapabilityError, match="FlowPolicy lacks HasLogProb: PPO needs a Gaussian policy"):
        PPO.build(setup(flow()))


@pytest.mark.parametrize(("field", "value"), [("target_kl", 0.0), ("normalise_steps", 0)])
def test_its_own_settings_out_of_range_are_refused(field, value):
    with pytest.raises(ConfigError, match=rf"algo\.{field} is {value}"):
        replace(PPO, **{field: value}).build(setup(None, GAUSSIAN))


def test_the_collector_sees_what_the_policy_means():
    """The sim gets the clipped actions, the record the raw ones."""
    policy = gaussian()
    with torch.no_grad():
        policy.log_std.fill_(1.0)
    learner = PPO.build(setup(policy))
    rollout = learner._collector.collect(learner._decide, 8)
    raw = rollout.record["raw"][rollout.valid]
    assert raw.abs().max() > 2
    executed = torch.stack([record.action for record in learner.sim.tape])
    assert executed.abs().max() == 1
    assert isinstance(learner._collector, Collector)
