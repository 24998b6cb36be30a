"""`robotrl.evaluate_reward`: rewards by name and settings, policies as actors, and which episodes are shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import robotrl
from robotrl.api.reward_evaluation import RewardEvalRequest, measure_rewards
from robotrl.api.reward_report import telling_episodes
from robotrl.cli.commands.train import config_of
from robotrl.config import WeightedReward
from robotrl.errors import CapabilityError, ConfigError
from robotrl.rewards.progress import ProgressRewardCfg
from robotrl.rewards.rules import StepPenaltyCfg
from robotrl.rewards.task import TaskRewardCfg
from robotrl.rewards.trust.metrics import JudgeCfg
from robotrl.rewards.trust.recording import SUM, TASK
from robotrl.training import train
from tests.kits.refusals import raises_naming
from tests.kits.small_clip import BAD, GOOD, stored_clip
from tests.rewards.trust.test_metrics import episode

SMALL: dict[str, Any] = {"episodes": 18, "num_envs": 6, "judge": JudgeCfg(least=2, samples=200, by="final")}


def test_a_reward_by_name() -> None:
    found = robotrl.evaluate_reward("mujoco/push", "progress", {"form": "raw"}, **SMALL)
    assert found.main == "progress" and found.verdict.standing == "tells"
    assert found.reached is not None and found.reached > 0.7
    assert set(found.metrics) == {"progress", TASK} and found.event == "failures"


def test_shaping_alone_is_no_success_and_with_the_task_it_is() -> None:
    # a potential pays out less where an episode ends in a success: over a whole episode minus the first potential
    progress, task = WeightedReward("progress", 1.0, ProgressRewardCfg()), WeightedReward("task", 1.0, TaskRewardCfg())
    alone = measure_rewards(RewardEvalRequest("mujoco/push", [progress], **SMALL))
    assert alone.verdict.standing == "opposed"
    both = measure_rewards(RewardEvalRequest("mujoco/push", [task, progress], **SMALL))
    assert both.main == SUM and both.verdict.standing == "tells"
    assert both.verdicts["progress"].standing == "opposed"


def test_telling_episodes_are_best_worst_and_most_disagreeing() -> None:
    rollouts = [episode([0.9], True), episode([0.8], False), episode([0.2], True), episode([0.1], False)]
    assert telling_episodes(rollouts, "it", 4) == {
        0: "highest mean score",
        3: "lowest mean score",
        1: "failed with a high score",
        2: "succeeded with a low score",
    }
    assert list(telling_episodes(rollouts, "it", 9)) == [0, 3, 1, 2]
    assert telling_episodes(rollouts, "it", 0) == {}
    silent = [episode([0.5], True, valid=[False])]
    assert telling_episodes(silent, "it", 3) == {}


def test_a_policy_acts_in_the_sim_that_it_was_trained_on(tmp_path: Path) -> None:
    cfg = config_of(
        "--sim mujoco/push --sim.limit-s 1.5 --algo ppo --policy gaussian --sim.num-envs 4 --algo.env-steps 64"
        " --algo.num-steps 16 --algo.minibatch 32 --evaluation.episodes 4 --evaluation.every-env-steps 0"
    )
    train(cfg, tmp_path / "run")
    request = RewardEvalRequest("mujoco/push", [WeightedReward("step-penalty", 1.0, StepPenaltyCfg())], **SMALL)
    found = measure_rewards(replace(request, policy=tmp_path / "run", random=True, episodes=6))
    assert [one.actor for one in found.episodes] == ["policy", "random"] * 3
    assert found.options["limit_s"] == 1.5 and max(one.length for one in found.episodes) == 30
    given = replace(request, policy=tmp_path / "run", episodes=2, options={"limit_s": 0.5})
    assert max(one.length for one in measure_rewards(given).episodes) == 10


def test_a_language_reward_with_fresh_weights_is_found_out(tmp_path: Path) -> None:
    settings = {"model": str(stored_clip(tmp_path / "clip")), "good": GOOD, "bad": BAD, "every": 5, "max_age": 0}
    settings |= {"calibration": 64}
    found = robotrl.evaluate_reward("bev/drive", "contrast", settings, episodes=18, num_envs=6, options={"threads": 1})
    assert found.verdict.standing == "fails" and found.event == "collisions"
    assert 0.1 < found.metrics["contrast"].valid < 0.2 and "valid on" in found.verdict.text
    assert found.scenarios["contrast"]


def test_faults() -> None:
    with raises_naming(ConfigError, "reward.progress", "forn", nearest="form"):
        robotrl.evaluate_reward("mujoco/push", "progress", {"forn": "raw"})
    with raises_naming(ConfigError, "settings", "{'form': 'raw'}"):
        robotrl.evaluate_reward("mujoco/push", [WeightedReward("step-penalty", 1.0, StepPenaltyCfg())], {"form": "raw"})
    with raises_naming(CapabilityError, "gym/CartPole-v1", "HasExpert", "--policy", "--random"):
        robotrl.evaluate_reward("gym/CartPole-v1", "alive", expert=True, episodes=2)


def test_a_sim_without_an_expert_is_measured_on_random_actions() -> None:
    with pytest.warns(UserWarning, match="HasExpert"):
        found = robotrl.evaluate_reward("gym/CartPole-v1", "alive", episodes=4, num_envs=2)
    assert {one.actor for one in found.episodes} == {"random"}
    actions = np.concatenate([one.actions for one in found.episodes])
    assert set(actions.ravel().tolist()) == {0.0, 1.0}
