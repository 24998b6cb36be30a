"""A recipe that was tuned on 0/1 rewards meets others: by hand, and in runs on Gymnasium environments."""

import warnings
from dataclasses import replace

import pytest

from robotrl.config import SimCfg, WeightedReward
from robotrl.registry import PRESETS
from robotrl.rewards.function import FunctionRewardCfg
from robotrl.rewards.kind import RewardKindCheck

SPARSE = PRESETS.load("peg-insert-reinflow")()


def told(cfg, *rows: dict[str, float]) -> list[str]:
    check = RewardKindCheck(cfg)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for row in rows:
            check.look(row)
    return [str(warning.message) for warning in caught]


def test_the_kind_that_it_was_tuned_on_says_nothing():
    assert told(SPARSE, {}, {"rollout_return": 0.25, "rollout_success": 0.25}) == []
    assert told(SPARSE, {"rollout_return": 0.0, "rollout_success": 0.0}) == []


@pytest.mark.parametrize(
    "row",
    [
        {"rollout_return": -50.0, "rollout_success": 0.0},  # -1 a step
        {"rollout_return": 7.0, "rollout_success": 0.5},  # 1 at each step at the goal, which ends nothing
    ],
)
def test_another_kind_is_said_once_with_what_helps(row):
    texts = told(SPARSE, {"loss": 1.0}, row, row)
    assert len(texts) == 1
    assert f"gave a mean return of {row['rollout_return']:g}" in texts[0]
    assert "--sim.reward sparse, or algo.gamma, which is 0.99" in texts[0]
    foreign = replace(SPARSE, sim=SimCfg("gym/Reach-v0"))
    assert "--sim.reward success --sim.success info:KEY --sim.end-at-success" in told(foreign, row)[0]


def test_recipes_of_any_reward_and_learned_rewards_are_not_asked():
    row = {"rollout_return": -50.0, "rollout_success": 0.0}
    assert told(PRESETS.load("gym-ppo")(), row) == []
    assert told(replace(SPARSE, tuned_on="any"), row) == []
    assert told(replace(SPARSE, rewards=(WeightedReward("function", 1.0, FunctionRewardCfg("own:reward")),)), row) == []
