"""What PPO and ReinFlow share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_kit import PPO, REINFLOW, flow, gaussian, setup
from torch import nn

from robotrl.algos.learner import average_into, descend
from robotrl.algos.on_policy import make_batch, minibatches, summary
from robotrl.data.rollout import Rollout
from robotrl.errors import ConfigError, NumericsError


def rollout(terminated: bool, truncated: bool) -> Rollout:
    """One env, two decisions and a padding row: 3 steps, then 1 that ends the episode in the way given."""
    obs = torch.tensor([[[10.0]], [[20.0]], [[float("nan")]]])
    following = torch.tensor([[[20.0]], [[30.0]], [[float("nan")]]])
    return Rollout(
        obs={"x": obs},
        record={"log_prob": torch.tensor([[1.0], [2.0], [3.0]])},
        reward=torch.tensor([[1.0], [2.0], [float("nan")]]),
        length=torch.tensor([[3], [1], [0]]),
        terminated=torch.tensor([[False], [terminated], [False]]),
        truncated=torch.tensor([[False], [truncated], [False]]),
        valid=torch.tensor([[True], [True], [False]]),
        next_obs={"x": following},
        env_steps=4,
        episodes=torch.tensor([True]),
        returns=torch.tensor([3.0]),
    )


def batch_of(terminated: bool, truncated: bool) -> Any:
    return make_batch(
        rollout(terminated, truncated), lambda obs: obs["x"], lambda ctx: ctx[:, 0] / 10, gamma=0.5, lam=1.0
    )


def test_targets_worked_by_hand():
    # values 1, 2 and 3 after a time-out; the first decision took 3 steps: discount 0.5^3
    timed_out = batch_of(False, True)
    last = 2 + 0.5 * 3
    assert timed_out.value_target.tolist() == [1 + 0.125 * last, last]
    failed = batch_of(True, False)
    assert failed.value_target.tolist() == [1 + 0.125 * 2, 2]
    # a time-out and a failure differ, and both flags at once mean failure
    both = batch_of(True, True)
    assert both.value_target.tolist() == failed.value_target.tolist() != timed_out.value_target.tolist()


def test_a_time_out_is_valued_but_nothing_of_the_next_episode_leaks_back():
    out = rollout(False, False)
    out = out._replace(truncated=torch.tensor([[True], [False], [False]]))
    out.next_obs["x"][0] = 40.0
    for reward_after in (2.0, 1000.0):
        out.reward[1] = reward_after
        batch = make_batch(out, lambda obs: obs["x"], lambda ctx: ctx[:, 0] / 10, gamma=0.5, lam=1.0)
        assert batch.value_target[0].item() == 1 + 0.125 * 4


def test_a_batch_holds_the_valid_decisions_alone():
    batch = batch_of(True, False)
    assert batch.ctx.tolist() == [[10], [20]]
    assert batch.record["log_prob"].tolist() == [1, 2]
    assert batch.advantage.tolist() == pytest.approx([1, -1]) or batch.advantage.tolist() == pytest.approx([-1, 1])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.integers(1, 300))
def test_minibatches_cover_everything_once(size, minibatch):
    parts = list(minibatches(size, minibatch, torch.Generator().manual_seed(0)))
    assert sorted(torch.cat(parts).tolist()) == list(range(size))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert max(map(len, parts)) < 2 * minibatch


def test_minibatches_are_shuffled():
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.cat(list(minibatches(50, 10, generator))).tolist() for _ in range(2))
    assert first != second != list(range(50))


def test_summary():
    found = summary([{"a": 1.0, "ratio_error": 0.0}, {"a": 3.0, "b": 5.0, "ratio_error": 9.0}])
    assert found == {"a": 2.0, "ratio_error": 0.0, "b": 5.0}


def test_descend_clips_and_refuses_what_is_not_finite():
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    descend(optimizer, (100 * weight).sum(), [weight], 0.5, "loss")
    assert weight.item() == pytest.approx(0.5)
    with pytest.raises(NumericsError, match="iteration 3: loss is nan: expected finite; the last checkpoint is intact"):
        descend(optimizer, (weight * float("nan")).sum(), [weight], 0.5, "iteration 3: loss")
    with pytest.raises(NumericsError, match="the gradient of loss is"):
        descend(optimizer, (weight - 0.5).clamp(min=0).sqrt().sum(), [weight], 0.5, "loss")
    assert weight.item() == pytest.approx(0.5)


def test_average_into():
    average, model = nn.Linear(1, 1), nn.Linear(1, 1)
    with torch.no_grad():
        for parameter in average.parameters():
            parameter.fill_(1.0)
        for parameter in model.parameters():
            parameter.fill_(3.0)
    average_into(average, model, 0.75)
    assert average.weight.item() == average.bias.item() == 1.5
    assert model.weight.item() == 3


BAD = [
    ("env_steps", 0),
    ("epochs", 0),
    ("minibatch", 0),
    ("steps_per_env", 1),  # shorter than the chunk
    ("lr", 0.0),
    ("lr", float("inf")),
    ("critic_lr", -1.0),
    ("grad_norm", float("nan")),
    ("gamma", 1.01),
    ("gamma", 0.0),
    ("lam", -0.1),
    ("clip_coef", 1.0),
]


@pytest.mark.parametrize(("field", "value"), BAD)
@pytest.mark.parametrize(("cfg", "policy"), [(PPO, gaussian), (REINFLOW, flow)])
def test_settings_out_of_range_are_refused_by_name(cfg, policy, field, value):
    with pytest.raises(ConfigError, match=rf"algo\.{field} is {value!r}: expected"):
        replace(cfg, **{field: value}).build(setup(policy()))
