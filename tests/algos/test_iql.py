"""IQL: it picks the better of the data's actions, for any policy that can be cloned; rewards, online, resume."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.algos.iql import IqlCfg, Relabeling, clone_loss
from robotrl.errors import CapabilityError, ConfigError, NumericsError
from robotrl.fn.bc_loss import clone_loss_of
from robotrl.fn.loss import masked_mse
from robotrl.policies.gaussian import GaussianCfg
from tests.kits.walk_sim import Walk

GAUSSIAN = GaussianCfg(horizon=1, hidden=(32, 32), initial_std=0.5)
POLICIES = {"gaussian": GAUSSIAN, "squashed": off.POLICY, "flow": replace(kit.FLOW, horizon=1)}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return off.write_random_walks(tmp_path_factory.mktemp("iql") / "data", episodes=150)


def trained(data: Path, policy, cfg: IqlCfg = off.IQL, iterations: int = 4):
    learner = cfg.build(off.setup(policy, data))
    log = off.run(learner, iterations)
    return learner, log


def mean_step(learner) -> float:
    """The step that the policy takes from the middle of the walk."""
    obs = {"walk": torch.tensor([[0.0, 1.0]]).expand(256, -1)}
    with torch.no_grad():
        chunk = learner.policy.act(obs, None, torch.Generator().manual_seed(0), learner.policy.deploy_mode).chunk
    return float(chunk[:, 0].mean())


@pytest.mark.parametrize("name", POLICIES)
def test_it_prefers_the_better_of_the_datas_actions(data, name):
    """The data's steps are even around 0, and what leads to the right is worth more."""
    cfg = replace(off.IQL, updates=200, updates_per_iteration=100, batch=64)
    clone, _ = trained(data, POLICIES[name], replace(cfg, beta=0.0), 2)
    better, log = trained(data, POLICIES[name], replace(cfg, beta=4.0), 2)
    assert abs(mean_step(clone)) < 0.25
    assert mean_step(better) > mean_step(clone) + 0.2
    assert 0 < log[-1]["weight"] < cfg.max_weight


def test_the_value_lies_between_the_mean_and_the_best(data):
    low, high = (trained(data, GAUSSIAN, replace(off.IQL, expectile=e), 4)[1][-1] for e in (0.5, 0.9))
    assert low["advantage"] > high["advantage"]


@pytest.mark.parametrize("name", ["flow", "gaussian"])
def test_weights_of_one_are_plain_cloning_and_weights_of_zero_leave_rows_out(data, name):
    learner, _ = trained(data, POLICIES[name], iterations=1)
    rows, policy = learner._draw(1), learner.model
    ctx = policy.encode({"walk": rows["obs/walk"]})
    ones = torch.ones(32)

    def loss(weight, batch):
        return clone_loss(policy, learner._clone, batch, policy.encode({"walk": batch["obs/walk"]}), weight)

    if learner._clone is None:
        plain = -policy.log_prob({"walk": rows["obs/walk"]}, rows["chunk"]).sum((1, 2)).mean()
    else:
        drawn = {name.removeprefix("drawn/"): x for name, x in rows.items() if name.startswith("drawn/")}
        plain = clone_loss_of(policy).loss(policy, ctx, rows["chunk"], rows["valid"], **drawn)
    assert loss(ones, rows).item() == pytest.approx(plain.item(), rel=1e-6)
    half = {name: x[:16] for name, x in rows.items()}
    weight = torch.cat([torch.ones(16), torch.zeros(16)])
    # a mean over all rows for a density, over those that count for a cloning loss
    factor = 0.5 if learner._clone is None else 1.0
    assert loss(weight, rows).item() == pytest.approx(factor * loss(ones[:16], half).item(), rel=1e-5)


def test_a_weight_stands_for_validity_in_a_masked_mean():
    prediction, target = torch.zeros(2, 1, 1), torch.tensor([[[1.0]], [[2.0]]])
    assert masked_mse(prediction, target, torch.tensor([[3.0], [1.0]])).item() == (3 * 1 + 1 * 4) / 4


def test_rewards_of_a_chunk_are_relabelled_step_by_step(data):
    learner, _ = trained(data, replace(GAUSSIAN, horizon=2), iterations=1)
    replay = learner._data
    index = replay.indices(2)
    drawn = replay.view(index, 2, 0.9)
    every = replay.indices(1)
    single = dict(zip(every.tolist(), replay.view(every, 1, 0.9).reward.tolist(), strict=True))
    found = Relabeling(2.0, -1.0)(drawn, 0.9)
    assert (drawn.steps == 1).any() and (drawn.steps == 2).any()
    for row, (i, steps) in enumerate(zip(index.tolist(), drawn.steps.tolist(), strict=True)):
        expected = sum(0.9**k * (2 * single[i + k] - 1) for k in range(steps))
        assert found[row].item() == pytest.approx(expected, abs=1e-5)
    assert torch.allclose(Relabeling(1.0, -1.0)(drawn, 1.0), drawn.reward - drawn.steps)


def test_scaled_rewards_span_a_thousand(data):
    learner, _ = trained(data, GAUSSIAN, replace(off.IQL, rewards="scaled"), 1)
    dataset_returns = []
    replay = learner._data
    rewards = replay.view(replay.indices(), 1, 1.0)
    total = 0.0
    for reward, over in zip(rewards.reward.tolist(), (rewards.terminated | rewards.truncated).tolist(), strict=True):
        total += reward
        if over:
            dataset_returns.append(total)
            total = 0.0
    span = max(dataset_returns) - min(dataset_returns)
    assert learner._relabeling.scale == pytest.approx(1000 / span, rel=1e-5) and learner._relabeling.shift == 0


def test_a_function_may_relabel_the_dataset(data):
    learner = off.IQL.build(off.setup(GAUSSIAN, data))
    learner.relabel(lambda steps: (steps.next_obs["walk"][:, 0] > 1).float())
    rows = learner._draw(4)
    assert set(rows["reward"].tolist()) == {0.0, 1.0}
    with pytest.raises(ConfigError, match="is nan: expected finite"):
        learner.relabel(lambda steps: steps.reward * float("nan"))


def test_it_goes_on_online_with_the_same_networks(data):
    cfg = replace(off.IQL, env_steps=64, ema=0.9)
    learner = cfg.build(off.setup(GAUSSIAN, data))
    assert learner.iterations == 4 + 4
    off.run(learner, 4)
    assert learner.env_steps == 0 and learner.updates == 40
    before = learner._loss.critic.layers[0].weight.detach().clone()
    log = off.run(learner, 4)
    assert learner.env_steps == 64 and learner.updates == 40 + 64
    assert not torch.equal(before, learner._loss.critic.layers[0].weight)
    assert "rollout_return" in log[-1]
    # what acts and is evaluated is the average
    name, value = next(iter(learner.policy.named_parameters()))
    assert torch.equal(value, learner._engine.averages("policy.")[name])


@pytest.mark.parametrize("at", [2, 6])
def test_it_resumes_exactly(data, at):
    cfg = replace(off.IQL, env_steps=64, ema=0.9)
    learner = cfg.build(off.setup(POLICIES["flow"], data))
    off.run(learner, at)
    state = kit.snapshot(learner.state())
    expected = off.run(learner, 2)
    resumed = cfg.build(off.setup(init_policy=copy.deepcopy(learner.policy), dataset=data))
    resumed.load(state)
    assert off.run(resumed, 2) == expected
    for name in ("networks", "policy", "engine", "generator"):
        assert kit.same(kit.snapshot(resumed.state())[name], kit.snapshot(learner.state())[name]), name


def test_a_diverging_loss_is_named(data):
    learner, _ = trained(data, GAUSSIAN, iterations=2)
    with torch.no_grad():
        learner._loss.value.net.layers[0].weight[0, 0] = float("nan")
    with pytest.raises(NumericsError, match="iteration 3, minibatch 0: loss is nan"):
        learner.iterate()


class Fast(Walk):
    control_dt_s = 0.05


def test_what_cannot_work_is_refused(data):
    with pytest.raises(ConfigError, match="dataset is not given: IQL learns from recorded episodes"):
        off.IQL.build(off.setup(GAUSSIAN))
    with pytest.raises(ConfigError, match="recorded at 10 Hz: expected 20 Hz"):
        off.IQL.build(off.setup(GAUSSIAN, data)._replace(make_sim=lambda: Fast(4)))
    for field, value, expected in (
        ("expectile", 1.0, "above 0 and below 1"),
        ("beta", -1.0, "0 or more"),
        ("max_weight", 0.5, "1 or more"),
        ("rewards", "scale", "did you mean 'scaled'"),
        ("ema", 1.0, "0 or more and below 1"),
    ):
        with pytest.raises(ConfigError, match=f"algo.{field} .*{expected}"):
            replace(off.IQL, **{field: value}).build(off.setup(GAUSSIAN, data))

    class Mute(torch.nn.Module):
        observation_spec, action_spec, horizon, control_dt_s = kit.SPECS, kit.ACTION, 1, 0.1

    with pytest.raises(CapabilityError, match="Mute has neither HasTokens, HasChain nor HasMean"):
        off.IQL.build(off.setup(dataset=data, init_policy=Mute()))


def test_returns_that_are_all_the_same_cannot_be_scaled(tmp_path: Path):
    with pytest.raises(ConfigError, match="every episode of the dataset returns 0"):
        cfg = replace(off.IQL, rewards="scaled")
        cfg.build(off.setup(GAUSSIAN, kit.write_walks(tmp_path / "same")))
