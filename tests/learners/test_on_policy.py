"""What PPO and ReinFlow share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.engine.engine import Updates
from robotrl.errors import ConfigError
from robotrl.learners.normalizers import RewardNormalizer
from robotrl.learners.on_policy import epoch_order, joined, make_batch, observations, update_scalars
from robotrl.rollout.storage import Rollout
from tests.kits.learner_kit import PPO, REINFLOW, flow, gaussian, setup


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
    return make_batch(rollout(terminated, truncated), lambda obs: obs["x"][:, 0] / 10, gamma=0.5, gae_lambda=1.0)


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
        batch = make_batch(out, lambda obs: obs["x"][:, 0] / 10, gamma=0.5, gae_lambda=1.0)
        assert batch.value_target[0].item() == 1 + 0.125 * 4


def test_a_batch_holds_the_valid_decisions_alone():
    batch = batch_of(True, False)
    assert batch.obs["x"].tolist() == [[10], [20]]
    assert batch.rows().keys() == {"obs/x", "log_prob", "advantage", "value_target"}
    assert observations(batch.rows()).keys() == {"x"}
    assert batch.record["log_prob"].tolist() == [1, 2]
    assert batch.advantage.tolist() == pytest.approx([1, -1]) or batch.advantage.tolist() == pytest.approx([-1, 1])


def test_values_are_those_of_the_whole_whatever_the_parts(monkeypatch):
    whole = batch_of(True, False)
    monkeypatch.setattr("robotrl.learners.on_policy.ROWS", 1)
    assert batch_of(True, False).value_target.tolist() == whole.value_target.tolist()


def test_the_critic_values_as_many_observations_at_once_as_it_may():
    sizes: list[int] = []

    def value(obs: dict[str, torch.Tensor]) -> torch.Tensor:
        sizes.append(len(obs["x"]))
        return obs["x"][:, 0] / 10

    found = make_batch(rollout(True, False), value, gamma=0.5, gae_lambda=1.0, critic_batch=1)
    assert sizes == [1, 1, 1, 1]
    assert found.value.tolist() == [1, 2]
    assert found.value_target.tolist() == batch_of(True, False).value_target.tolist()


def test_a_process_with_fewer_rows_makes_as_many_minibatches():
    own = epoch_order(5, 4, 2, torch.Generator().manual_seed(0), keep_all=True, most=11)
    other = epoch_order(11, 4, 2, torch.Generator().manual_seed(1), keep_all=True, most=11)
    assert len(own) == len(other) == 2 * 12
    for epoch in own.view(2, 12):
        assert torch.bincount(epoch, minlength=5).min() >= 2


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.integers(1, 300), st.integers(1, 3))
def test_every_epoch_covers_everything_in_whole_minibatches(size, minibatch, epochs):
    order = epoch_order(size, minibatch, epochs, torch.Generator().manual_seed(0), keep_all=True)
    assert len(order) % (epochs * minibatch) == 0
    for epoch in order.view(epochs, -1):
        assert sorted(epoch[:size].tolist()) == list(range(size))
        assert len(epoch) - size < minibatch
        assert torch.equal(epoch[size:], epoch.repeat(2)[: len(epoch) - size]) or minibatch > size


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.integers(1, 300), st.integers(1, 3))
def test_the_number_of_minibatches_may_be_rounded(size, minibatch, epochs):
    order = epoch_order(size, minibatch, epochs, torch.Generator().manual_seed(0), keep_all=False)
    assert len(order) == epochs * max(1, round(size / minibatch)) * minibatch
    for epoch in order.view(epochs, -1):
        counts = torch.bincount(epoch, minlength=size)
        left = int((counts == 0).sum())
        assert left == max(0, size - len(epoch))
        assert left <= minibatch / 2
        assert left == 0 or counts.max() == 1


def test_epochs_are_shuffled():
    first, second = epoch_order(50, 10, 2, torch.Generator().manual_seed(0), keep_all=True).view(2, -1).tolist()
    assert first != second != list(range(50))


def test_update_scalars():
    info = {
        "loss": [1.0, 1.0, 1.0],
        "actor_on": [1.0, 1.0, 0.0],
        "pg_loss": [2.0, 4.0, 9.0],
        "approx_kl": [0.0, 1.0, 9.0],
        "clip_fraction": [0.0, 0.5, 9.0],
        "ratio_error": [0.25, 9.0, 9.0],
        "value_loss": [1.0, 2.0, 6.0],
    }
    found = update_scalars(Updates({name: torch.tensor(values) for name, values in info.items()}))
    assert found == {
        "pg_loss": 3,
        "approx_kl": 0.5,
        "clip_fraction": 0.25,
        "ratio_error": 0.25,
        "value_loss": 3,
        "actor_updates": 2,
    }


def test_updates_of_two_phases_are_told_apart():
    first = Updates({"loss": torch.ones(2), "actor_on": torch.ones(2), "pg_loss": torch.tensor([1.0, 3.0])})
    second = Updates({"loss": torch.ones(2), "actor_on": torch.zeros(2)})
    whole = joined([first, second])
    assert whole.info["pg_loss"][:2].tolist() == [1, 3]
    assert whole.info["pg_loss"][2:].isnan().all()
    assert update_scalars(whole) == {"pg_loss": 2, "actor_updates": 2}


def test_a_chunks_reward_is_normalised_by_the_return_of_its_steps():
    """Returns 1, then 1 * 0.5^1 + 2 after a decision of 1 step; their population variance, by hand."""
    normalizer = RewardNormalizer(1, 0.5)
    out = normalizer.normalize(rollout(True, False))
    variance = (2.5 - 1.0) ** 2 / 4
    assert normalizer.scale == pytest.approx(variance**0.5, rel=1e-6)
    assert out.reward[:2, 0].tolist() == pytest.approx([1 / variance**0.5, 2 / variance**0.5])
    # the episode ended: nothing is carried on into the next rollout
    assert normalizer.state()["running"].tolist() == [0.0]
    normalizer.normalize(rollout(False, False))
    assert normalizer.state()["running"].tolist() == [2.5]


BAD = [
    ("env_steps", 0),
    ("epochs", 0),
    ("minibatch", 0),
    ("num_steps", 1),  # shorter than the chunk
    ("lr", 0.0),
    ("lr", float("inf")),
    ("critic_lr", -1.0),
    ("max_grad_norm", float("nan")),
    ("gamma", 1.01),
    ("gamma", 0.0),
    ("gae_lambda", -0.1),
    ("clip_coef", 1.0),
    ("target_kl", 0.0),
    ("engine", "fast"),
]


@pytest.mark.parametrize(("field", "value"), BAD)
@pytest.mark.parametrize(("cfg", "policy"), [(PPO, gaussian), (REINFLOW, flow)])
def test_settings_out_of_range_are_refused_by_name(cfg, policy, field, value):
    with pytest.raises(ConfigError, match=rf"algo\.{field} (is )?{value!r}(:| is)"):
        replace(cfg, **{field: value}).build(setup(policy()))
