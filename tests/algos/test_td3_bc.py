"""TD3+BC: its losses by hand, delayed policy updates, what it learns, exact resume, what it refuses."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.algos.td3_bc import Td3BcCfg, actor_loss, critic_loss, smoothed
from robotrl.errors import CapabilityError, ConfigError
from robotrl.policies.gaussian import GaussianCfg

POLICIES = {"squashed": off.POLICY, "gaussian": GaussianCfg(horizon=1, hidden=(32, 32))}
CFG = off.TD3_BC


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return off.write_random_walks(tmp_path_factory.mktemp("td3_bc") / "data", episodes=150)


def step_at(policy: Any) -> float:
    """The step that a policy takes from the middle of the walk."""
    with torch.no_grad():
        return float(policy.act({"walk": torch.tensor([[0.0, 1.0]])}, None, None, "mean").chunk[0, 0, 0])


def test_noise_is_clipped_before_it_is_added():
    mean, noise = torch.tensor([[[0.5], [0.0], [-1.0]]]), torch.tensor([[[1.0], [-10.0], [10.0]]])
    assert smoothed(mean, noise, 0.2, 0.5).flatten().tolist() == pytest.approx([0.7, -0.5, -0.5])


def test_the_target_is_the_least_value_and_ends_with_the_task():
    batch = {"reward": torch.tensor([1.0, 2.0]), "discount": torch.tensor([0.9, 0.0])}
    next_values = torch.tensor([[10.0, 50.0], [20.0, 40.0]])
    loss, info = critic_loss(torch.zeros(2, 2), batch, next_values)
    # 1 + 0.9 * 10 at a time limit or on the way, 2 at a termination
    assert info["target"].item() == pytest.approx((10.0 + 2.0) / 2)
    assert loss.item() == pytest.approx((10.0**2 + 2.0**2) / 2)


def test_the_policy_loss_by_hand():
    mean = torch.tensor([[[1.0], [0.0]], [[0.0], [7.0]]])
    batch = {"chunk": torch.zeros(2, 2, 1), "valid": torch.tensor([[True, True], [True, False]])}
    loss, info = actor_loss(mean, torch.tensor([4.0, -2.0]), batch, alpha=2.5)
    assert info["clone_loss"].item() == pytest.approx(1 / 3)
    # the mean of |Q| is 3, that of Q is 1
    assert loss.item() == pytest.approx(1 / 3 - 2.5 / 3 * 1.0)


def test_the_weight_of_the_critic_does_not_depend_on_the_scale_of_rewards():
    mean = torch.zeros(2, 1, 1)
    batch = {"chunk": torch.zeros(2, 1, 1), "valid": torch.ones(2, 1, dtype=torch.bool)}
    value = torch.tensor([4.0, 1.0], requires_grad=True)
    (small,) = torch.autograd.grad(actor_loss(mean, value, batch, 2.5)[0], value)
    (large,) = torch.autograd.grad(actor_loss(mean, 1000 * value, batch, 2.5)[0], value)
    assert torch.allclose(small, large)


def test_policy_and_target_policy_move_in_every_second_update(data):
    learner = CFG.build(off.setup(off.POLICY, data))
    policy, critic = learner.policy.net.layers[0].weight, learner._loss.critic.layers[0].weight

    def now() -> tuple[torch.Tensor, ...]:
        return policy.clone(), learner._engine.averages("policy.")["net.layers.0.weight"].clone(), critic.clone()

    start = now()
    learner.learn(1)
    first = now()
    learner.learn(1)
    second = now()
    learner.learn(1)
    third = now()
    same = [
        [torch.equal(a, b) for a, b in zip(one, other, strict=True)]
        for one, other in ((start, first), (first, second), (second, third))
    ]
    assert same == [[True, True, False], [False, False, False], [True, True, False]]


@pytest.mark.parametrize("name", POLICIES)
def test_it_prefers_the_better_of_the_datas_actions(data, name):
    """The data's steps are even around 0, and what leads to the right is worth more."""
    cfg = replace(CFG, updates=300, updates_per_iteration=100, batch=64)
    found = []
    for alpha in (0.0, 2.5):
        learner = replace(cfg, alpha=alpha).build(off.setup(POLICIES[name], data))
        log = off.run(learner, learner.iterations)
        found.append(step_at(learner.policy))
        assert learner.env_steps == 0 and log[-1]["updates"] == 300
    assert abs(found[0]) < 0.3 and found[1] > found[0] + 0.3


@pytest.mark.parametrize("at", [1, 2])
def test_it_resumes_exactly(data, at):
    cfg = replace(CFG, updates=35)
    learner = cfg.build(off.setup(replace(off.POLICY, horizon=2), data))
    off.run(learner, at)
    state = kit.snapshot(learner.state())
    expected = off.run(learner, 2)
    resumed = cfg.build(off.setup(init_policy=copy.deepcopy(learner.policy), dataset=data)._replace(resumed=True))
    resumed.load(state)
    assert off.run(resumed, 2) == expected
    assert kit.same(kit.snapshot(resumed.state()), kit.snapshot(learner.state()))


def test_what_cannot_work_is_refused(data):
    with pytest.raises(ConfigError, match="dataset is not given"):
        CFG.build(off.setup(off.POLICY))
    with pytest.raises(ConfigError, match=r"algo\.updates is 40 and algo\.env_steps 0 without a dataset"):
        CFG.build(off.setup(init_policy=kit.gaussian()))
    with pytest.raises(CapabilityError, match="FlowPolicy is not deployed by a mean"):
        CFG.build(off.setup(kit.FLOW, data))
    for field, value, expected in (
        ("alpha", -1.0, "0 or more"),
        ("policy_delay", 0, "1 or more"),
        ("noise_clip", float("inf"), "0 or more"),
        ("updates", 0, "1 or more"),
    ):
        with pytest.raises(ConfigError, match=f"algo.{field} .*{expected}"):
            replace(CFG, **{field: value}).build(off.setup(off.POLICY, data))


def test_it_is_offline():
    assert Td3BcCfg.env_steps == 0
