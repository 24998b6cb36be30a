"""Off-policy building blocks: targets, ensembles, the tanh-Gaussian policy, and who acts into which replay."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.algos.iql import IqlCfg
from robotrl.algos.rlpd import RlpdCfg
from robotrl.errors import ConfigError, DataError
from robotrl.fn.chain import normal_log_prob
from robotrl.fn.q_targets import (
    advantage_weight,
    bootstrap,
    ensemble_mse,
    expectile_loss,
    soft_actor,
    soft_value,
    temperature_loss,
)
from robotrl.learners.off_policy import (
    ActionNormalizer,
    PolicyBuilder,
    UpdateToDataRatio,
    batch_rows,
    check_settings,
    updates_per_call,
)
from robotrl.learners.replay_collector import Acting, ReplayBuffers, ReplayCollector, open_replay
from robotrl.policies.q import QEnsemble, average, draw_members, smallest, smallest_of
from robotrl.policies.squashed import SquashedPolicy
from robotrl.replay.buffer import Replay, Uniform
from robotrl.spec import Spec
from robotrl.transforms import Affine, TransformGroup
from tests.kits.policy_kit import make_policy, observations
from tests.kits.walk_sim import Walk

# targets and losses, by hand


def test_a_time_limit_is_bootstrapped_and_an_end_is_not():
    # rows: going on after 2 steps, cut by a limit after 1, over
    target = bootstrap(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.81, 0.9, 0.0]), torch.tensor([10.0, 10.0, 10.0]))
    assert torch.allclose(target, torch.tensor([9.1, 11.0, 3.0]))


def test_entropy_raises_the_value_that_follows():
    assert torch.equal(soft_value(torch.tensor([5.0]), torch.tensor([-2.0]), torch.tensor(0.5)), torch.tensor([6.0]))


def test_members_learn_as_if_alone():
    values, target = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1.0, 0.0])
    # halves of the means of (0, 4) and of (4, 16)
    assert ensemble_mse(values, target).item() == 0.5 * 2 + 0.5 * 10


def test_the_policy_climbs_the_value_and_keeps_its_entropy():
    log_prob, value = torch.tensor([-1.0, 1.0], requires_grad=True), torch.tensor([2.0, 4.0], requires_grad=True)
    alpha = torch.tensor(0.5, requires_grad=True)
    out = soft_actor(value, log_prob, alpha)
    assert out.loss.item() == ((-0.5 - 2) + (0.5 - 4)) / 2
    assert out.entropy.item() == 0.0
    out.loss.backward()
    assert torch.equal(value.grad, torch.tensor([-0.5, -0.5]))
    assert torch.equal(log_prob.grad, torch.tensor([0.25, 0.25]))
    assert alpha.grad is None


@pytest.mark.parametrize(("entropy", "sign"), [(-3.0, 1), (-1.0, -1)])
def test_the_temperature_follows_the_entropy(entropy, sign):
    log_alpha = torch.zeros((), requires_grad=True)
    temperature_loss(log_alpha, torch.tensor([-entropy]), -2.0).backward()
    # descending raises the temperature where the entropy is below its target of -2
    assert -log_alpha.grad.item() * sign == 1.0


def test_the_expectile_weighs_what_is_above():
    value, target = torch.tensor([0.0, 0.0]), torch.tensor([2.0, -1.0])
    assert expectile_loss(value, target, 0.9).item() == pytest.approx((0.9 * 4 + 0.1 * 1) / 2)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.05, 0.95))
def test_the_best_constant_is_the_expectile(expectile):
    targets = torch.tensor([0.0, 1.0])
    # of a fair coin, the expectile is itself
    constants = torch.linspace(0, 1, 401)
    losses = torch.stack([expectile_loss(c.expand(2), targets, expectile) for c in constants])
    assert constants[losses.argmin()].item() == pytest.approx(expectile, abs=0.003)


def test_weights_are_bounded_before_they_overflow():
    weight = advantage_weight(torch.tensor([0.0, 1.0, 1e6]), 3.0, 100.0)
    assert torch.allclose(weight, torch.tensor([1.0, math.exp(3.0), 100.0]))
    advantage = torch.tensor([1e6], requires_grad=True)
    advantage_weight(advantage, 3.0, 100.0).sum().backward()
    assert torch.isfinite(advantage.grad).all()


# ensembles


@pytest.mark.parametrize("layer_norm", [False, True])
def test_each_member_is_a_network_of_its_own(layer_norm):
    torch.manual_seed(0)
    critic = QEnsemble(5, 2, 3, members=3, hidden=(16, 8), layer_norm=layer_norm)
    ctx, chunk = torch.randn(7, 5), torch.randn(7, 2, 3)
    found = critic(ctx, chunk)
    assert found.shape == (3, 7)
    for member in range(3):
        x = torch.cat([ctx, chunk.reshape(7, 6)], 1)
        for layer in critic.layers:
            if isinstance(layer, nn.ReLU):
                x = x.relu()
            elif hasattr(layer, "weight"):
                x = x @ layer.weight[member] + layer.bias[member]
            else:
                x = nn.functional.layer_norm(x, x.shape[1:], layer.scale[member, 0], layer.offset[member, 0])
        assert torch.allclose(found[member], x[:, 0], atol=1e-6)
    assert not torch.allclose(found[0], found[1])


def test_a_members_gradient_stays_with_it():
    critic = QEnsemble(5, 1, 2, members=2, hidden=(8, 8))
    critic(torch.randn(4, 5), torch.randn(4, 1, 2))[0].sum().backward()
    for name, parameter in critic.named_parameters():
        assert parameter.grad[0].abs().sum() > 0, name
        assert parameter.grad[1].abs().sum() == 0, name


def test_reductions():
    values = torch.tensor([[1.0, 5.0], [2.0, 4.0], [3.0, 9.0]])
    assert smallest(values).tolist() == [1.0, 4.0]
    assert average(values).tolist() == [2.0, 6.0]
    assert smallest_of(values, torch.tensor([[1, 2], [0, 2]])).tolist() == [2.0, 5.0]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.integers(1, 3))
def test_subsets_are_distinct_members_drawn_for_each_update(members, count, updates, batch):
    count = min(count, members)
    drawn = draw_members(members, count, updates, batch, torch.Generator().manual_seed(0)).view(updates, batch, count)
    assert (drawn == drawn[:, :1]).all()
    assert all(len(set(row)) == count and set(row) <= set(range(members)) for row in drawn[:, 0].tolist())


def test_all_subsets_come_up_alike():
    drawn = draw_members(4, 2, 6000, 1, torch.Generator().manual_seed(0))
    share = torch.bincount(drawn.flatten(), minlength=4) / 6000
    assert (share - 0.5).abs().max() < 0.03


# the tanh-Gaussian policy


def test_its_density_integrates_to_one():
    policy: SquashedPolicy = make_policy("squashed-one-action").double()
    obs = {key: value.double() for key, value in observations(1).items()}
    # the density is over the second element of the action, integrated over a fine grid
    grid = torch.linspace(-1, 1, 20_001, dtype=torch.float64)[1:-1]
    chunk = torch.zeros(len(grid), 1, 2, dtype=torch.float64)
    chunk[:, 0, 1] = grid
    rows = {key: value.expand(len(grid), -1) for key, value in obs.items()}
    density = policy.log_prob(rows, chunk)[:, 0, 1].exp()
    assert torch.trapezoid(density, grid).item() == pytest.approx(1.0, abs=1e-3)


def test_what_it_draws_has_the_density_that_it_claims():
    policy: SquashedPolicy = make_policy("squashed").double()
    obs = {key: value.double() for key, value in observations(64).items()}
    drawn = policy.draw(obs, torch.Generator().manual_seed(0))
    assert drawn.normalized_action.abs().max() < 1
    assert torch.allclose(policy.log_prob(obs, drawn.normalized_action), drawn.log_prob, atol=1e-6)
    mean, log_std = policy.moments(policy.encode(obs))
    before = drawn.normalized_action.atanh()
    by_hand = normal_log_prob(before, mean, log_std.exp()) - (1 - drawn.normalized_action**2).log()
    assert torch.allclose(drawn.log_prob, by_hand, atol=1e-6)


def test_densities_and_gradients_are_finite_at_the_bounds():
    policy: SquashedPolicy = make_policy("squashed")
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter *= 30
    obs = observations(16)
    ctx = policy.encode(obs)
    drawn = policy.draw_with(ctx, torch.randn(16, 3, 2))
    assert (drawn.normalized_action.abs() == 1).any(), "nothing was driven to the bounds"
    edge = policy.log_prob(obs, torch.ones(16, 3, 2))
    (drawn.log_prob.sum() + edge.sum()).backward()
    assert torch.isfinite(drawn.log_prob).all() and torch.isfinite(edge).all()
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters() if p.grad is not None)


# acting


def experience(path: Path | None = None, random: bool = True, warmup: int = 8, horizon: int = 1) -> ReplayCollector:
    made = PolicyBuilder(off.setup(replace(off.POLICY, horizon=horizon)), Walk(off.ENVS), True)
    sim = Walk(off.ENVS)
    memory = ReplayBuffers(sim, 400, None if path is None else str(path))
    acting = Acting(seed=0, gamma=0.9, random=random, warmup=warmup)
    return ReplayCollector(sim, made, memory, acting, torch.Generator().manual_seed(0))


def test_a_fresh_policy_acts_at_random_until_it_is_warm():
    one = experience()
    assert not one.warm
    one.collect(2)
    assert one.env_steps == 8 and one.warm
    first = one.memory.replay.view(one.memory.replay.indices(), 1, 0.9).chunk
    assert first.abs().max() <= 1 and first.std() > 0.4
    other = experience(random=False)
    other.collect(2)
    assert not torch.equal(first, other.memory.replay.view(other.memory.replay.indices(), 1, 0.9).chunk)


def test_the_normalisation_is_that_of_what_was_seen():
    one = experience()
    one.collect(20)
    seen = one.memory.replay.view(one.memory.replay.indices(), 1, 0.9).obs["walk"]
    # the newest step of each env has no successor yet, so the replay does not show it
    found = one._made.normalizer.transforms()[0]
    assert torch.allclose(-torch.tensor(found.offset) / torch.tensor(found.scale), seen.mean(0), atol=0.3)
    policy = one._made.policy
    assert policy.transforms.inputs == one._made.normalizer.transforms()


def test_rows_are_normalised_and_named():
    one = experience(horizon=2)
    one.collect(20)
    drawn = Uniform(one.memory.replay).sample(16, 2, 0.9, torch.Generator().manual_seed(0))
    rows = batch_rows(drawn, one._made.policy.observation_spec, ActionNormalizer(kit.ACTION))
    assert set(rows) == {"obs/walk", "next_obs/walk", "chunk", "reward", "discount"}
    assert rows["chunk"].shape == (16, 2, 1) and rows["chunk"].abs().max() <= 1
    over = drawn.terminated
    assert over.any() and (rows["discount"][over] == 0).all() and (rows["discount"][~over] > 0).all()


@pytest.mark.parametrize("cfg", [off.IQL, off.SAC, off.RLPD], ids=lambda cfg: type(cfg).__name__)
def test_chunks_are_in_the_units_of_a_policy_that_was_cloned_with_quantiles(tmp_path: Path, cfg: Any):
    """Its own units back to actions give what was done; they are not those of the bounds."""
    data = off.write_random_walks(tmp_path / "data")
    other = TransformGroup(kit.TRANSFORMS.inputs, (Affine("action", (1.2,), (0.1,)), kit.TRANSFORMS.outputs[1]))
    policy = (kit.GAUSSIAN if isinstance(cfg, IqlCfg) else off.POLICY).build(kit.SPECS, kit.ACTION, other)
    learner = cfg.build(off.setup(init_policy=policy, dataset=data))
    replay = learner._data if isinstance(cfg, IqlCfg) else learner.experience.memory.replay
    while len(replay) < 64:
        learner.iterate()
    if not isinstance(cfg, IqlCfg):
        learner.iterate()  # the last step of the replay may still be open
    state = learner._generator.get_state()
    rows = learner._draw(2)
    learner._generator.set_state(state)
    sampler = learner._sampler() if isinstance(cfg, RlpdCfg) else Uniform(replay)
    drawn = sampler.sample(cfg.batch, policy.horizon, cfg.gamma, learner._generator, 2)
    assert torch.allclose(policy.to_actions(rows["chunk"]), drawn.chunk, atol=1e-6)


def test_updates_are_owed_for_env_steps():
    debt = UpdateToDataRatio(0.3)
    assert [debt.take(1) for _ in range(10)] == [0, 0, 0, 1, 0, 0, 1, 0, 0, 1]


def test_rows_are_drawn_in_portions_that_fit():
    picture = Spec((100, 100, 3), ("r", "g", "b"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8")
    specs = {"image": picture, **kit.SPECS}
    assert updates_per_call(1000, 256, specs) == (64 << 20) // (256 * 2 * 30_008)
    assert updates_per_call(3, 256, specs) == 3


def test_a_replay_on_disk_goes_on_where_it_was(tmp_path: Path):
    one = experience(tmp_path / "replay")
    one.collect(10)
    state = kit.snapshot(one.state())
    expected = one.memory.replay.view(one.memory.replay.indices(), 1, 0.9).obs["walk"].clone()
    one.collect(5)
    generator_after = one._generator.get_state()
    one.memory.replay.close()
    other = experience(tmp_path / "replay")
    other.load(state)
    assert other.env_steps == 40
    # the generator is the learner's to restore: here it takes the place that ten steps at random left it in
    other._generator.set_state(generator_after)
    replay = other.memory.replay
    assert len(expected) >= 36, "each stream has ten steps, the newest of which may lack its successor"
    assert torch.equal(replay.view(replay.indices(), 1, 0.9).obs["walk"], expected)


def test_a_replay_that_is_gone_or_another_is_refused(tmp_path: Path):
    one = experience(tmp_path / "replay")
    one.collect(4)
    state, layout = one.state(), one.memory.layout
    one.memory.replay.close()
    with pytest.raises(ConfigError, match=r"replay .* exists"):
        experience(tmp_path / "replay").collect(1)
    shutil.rmtree(tmp_path / "replay")
    with pytest.raises(DataError):
        experience(tmp_path / "replay").load(state)
    specs = {"walk": kit.SPECS["walk"], "more": kit.SPECS["walk"]}
    Replay.create(tmp_path / "wide", specs, kit.ACTION, streams=off.ENVS, capacity=400, control_dt_s=0.1).close()
    with pytest.raises(ConfigError, match=r"has observation_spec .*'more': \(2,\).*: expected \{'walk': \(2,\)\}"):
        open_replay(tmp_path / "wide", layout)
    Replay.create(tmp_path / "many", kit.SPECS, kit.ACTION, streams=7, capacity=400, control_dt_s=0.1).close()
    with pytest.raises(ConfigError, match="has streams 7: expected 4"):
        open_replay(tmp_path / "many", layout)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("batch", 0, "1 or more"),
        ("warmup", -1, "0 or more"),
        ("gamma", 1.5, "above 0, at most 1"),
        ("tau", 0.0, "above 0, at most 1"),
        ("lr", 0.0, "above 0"),
        ("critic_lr", math.nan, "above 0"),
        ("max_grad_norm", 0.0, "above 0, or none"),
        ("utd_ratio", -1.0, "above 0"),
        ("engine", "fast", "known: auto, compiled, eager"),
    ],
)
def test_settings_out_of_range_are_refused(field, value, expected):
    with pytest.raises(ConfigError, match=f"algo.{field} .*{expected}"):
        check_settings(replace(off.SAC, **{field: value}))
