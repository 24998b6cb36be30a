"""The weighted sum of reward sources: numbers by hand, state, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robotrl.config import WeightedReward
from robotrl.errors import ConfigError, DataError
from robotrl.rewards.function import FunctionReward
from robotrl.rewards.means import RewardMeans
from robotrl.rewards.relabel import with_rewards
from robotrl.rewards.rules import ActionRateCfg, StepPenaltyCfg
from robotrl.rewards.source import RewardSetup, Score, StatelessReward
from robotrl.rewards.task import TaskRewardCfg
from robotrl.rewards.weighted import weighted_sum
from tests.kits.stored_rewards import StatingWalk


def listed(*rows: tuple[str, float, Any]) -> list[WeightedReward]:
    return [WeightedReward(*row) for row in rows]


def test_the_sum_by_hand() -> None:
    parts = [torch.tensor([1.0, 2.0]), torch.tensor([-1.0, 4.0])]
    assert weighted_sum(parts, [2.0, 0.5]).tolist() == [1.5, 6.0]
    assert torch.equal(weighted_sum(parts[:1], [1.0]), parts[0])


def test_a_step_by_hand() -> None:
    sim = StatingWalk(2)
    sim.queue_states([3, 1])  # at 0.5 and -0.5
    means = RewardMeans()
    rows = listed(
        ("task", 2.0, TaskRewardCfg()), ("step-penalty", 0.1, StepPenaltyCfg()), ("rate", 1.0, ActionRateCfg())
    )
    made = with_rewards(sim, rows, means=means)
    made.reset()
    assert made.step(torch.tensor([[0.5], [0.5]])).reward.tolist() == pytest.approx([2.0 - 0.1, 0.0 - 0.1])
    step = made.step(torch.tensor([[-0.5], [0.5]]))  # to 0.5 and 0.5
    assert step.reward.tolist() == pytest.approx([1.0 - 0.1 - 1.0, 1.0 - 0.1])
    assert step.info["sim_reward"].tolist() == step.info["reward/task"].tolist() == [0.5, 0.5]
    assert step.info["reward/rate"].tolist() == [-1.0, 0.0]
    found = means.take()
    assert found["reward/task"] == pytest.approx((1.0 + 0.0 + 0.5 + 0.5) / 4)
    assert found["reward_valid/rate"] == 0.5 and found["reward_age/rate"] == 0.0
    assert means.take() == {}


def test_one_source_of_weight_one_is_the_sims_own_reward() -> None:
    made, plain = with_rewards(StatingWalk(4), listed(("task", 1.0, TaskRewardCfg()))), StatingWalk(4)
    made.reset(seed=2)
    plain.reset(seed=2)
    for i in range(20):
        action = torch.full((4, 1), (-1.0) ** i * 0.7)
        one, other = made.step(action), plain.step(action)
        assert torch.equal(one.reward, other.reward) and torch.equal(one.obs["walk"], other.obs["walk"])
        assert torch.equal(one.terminated, other.terminated) and torch.equal(one.truncated, other.truncated)


def test_a_state_of_other_sources_or_weights_is_refused() -> None:
    rows = listed(("action-rate", 0.5, ActionRateCfg()), ("task", 1.0, TaskRewardCfg()))
    made: Any = with_rewards(StatingWalk(2), rows)
    made.reset(seed=0)
    state = made.get_state()
    other: Any = with_rewards(StatingWalk(2), rows[:1])
    with pytest.raises(DataError, match="reward sources action-rate, task: expected action-rate"):
        other.set_state(state)
    other = with_rewards(StatingWalk(2), [rows[0], WeightedReward("task", 2.0, TaskRewardCfg())])
    with pytest.raises(DataError, match="made with another reward source 'task'"):
        other.set_state(state)


def test_a_state_of_version_0_1_is_read() -> None:
    """It had one source, of weight 1, and no name."""
    rows = listed(("action-rate", 1.0, ActionRateCfg()))
    made: Any = with_rewards(StatingWalk(2), rows)
    made.reset(seed=0)
    made.step(torch.full((2, 1), 0.3))
    state = made.get_state()
    old = {key.replace("reward/action-rate/", "reward/"): x for key, x in state.items() if not key.endswith("/weight")}
    again: Any = with_rewards(StatingWalk(2), rows)
    again.set_state(old)
    action = torch.full((2, 1), -0.3)
    assert torch.equal(made.step(action).reward, again.step(action).reward)
    old["reward/identity"] = np.zeros(32, np.uint8)
    with pytest.raises(DataError, match="made with another reward source 'action-rate'"):
        again.set_state(old)


class ColumnCfg:
    """A source that forgets to drop an axis."""

    def build(self, sim: Any, setup: RewardSetup) -> Any:
        class Column(StatelessReward):
            identity = "column"

            def score(self, transition: Any) -> Score:
                return Score.of_now(transition.action)

        return Column()


def test_a_score_of_another_shape_is_refused() -> None:
    made = with_rewards(StatingWalk(3), listed(("column", 1.0, ColumnCfg())))
    made.reset()
    with pytest.raises(ConfigError, match=r"reward 'column' gave a value of shape \(3, 1\): expected \(3,\)"):
        made.step(torch.zeros(3, 1))


def test_the_discount_is_the_algorithms() -> None:
    class Discounting:
        gamma = 0.9

    assert RewardSetup.of(Discounting()).gamma == 0.9
    assert RewardSetup.of(object()).gamma == 1.0
    assert FunctionReward(lambda *_: torch.zeros(1), "f", 1).end_at is None
