"""Reward hacking on a real sim: a reward that pays for the opposite of the task is told, and an honest one is not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from robotrl.api.comparing import compare_runs
from robotrl.cli.commands.train import config_of
from robotrl.config import TrainCfg
from robotrl.run.logs import read_scalars
from robotrl.training import train

SMALL = (
    "gym-ppo --sim gym/CartPole-v1 --algo.num-steps 32 --algo.critic-warmup-env-steps 0 --algo.lr 1e-3"
    " --evaluation.every-env-steps 0 --evaluation.score return --evaluation.episodes 4"
)


def config(reward: str, env_steps: int) -> TrainCfg[Any, Any]:
    return config_of(f"{SMALL} --reward {reward} --algo.env-steps {env_steps}")


def trained(cfg: TrainCfg[Any, Any], path: Path) -> list[str]:
    """Train; returns the warnings about the reward."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(cfg, path)
    return [str(one.message) for one in caught if "exploit the reward" in str(one.message)]


def test_a_reward_that_pays_for_falling_is_told_once(tmp_path: Path) -> None:
    said = trained(config("step-penalty", 16_384), tmp_path / "hack")
    assert len(said) == 1 and "the sim's own return fell from" in said[0]
    found = read_scalars(tmp_path / "hack" / "scalars.jsonl")
    told = [row["reward_diverges"] for row in found if "reward_diverges" in row]
    assert 1.0 in told and told[-1] == 0.0, "the fall is over at the end"
    for row in found:
        if "rollout_return" in row:
            # the sim pays 1 for each step, and the source takes it
            assert row["sim_return"] == pytest.approx(-row["rollout_return"], rel=1e-4)
    page = compare_runs([tmp_path / "hack"]).page()
    assert "Reward and truth" in page and "diverges</b>" in page


def test_an_honest_reward_raises_no_alarm(tmp_path: Path) -> None:
    assert trained(config("alive", 24_576), tmp_path / "honest") == []
    found = read_scalars(tmp_path / "honest" / "scalars.jsonl")
    assert {row["reward_diverges"] for row in found if "reward_diverges" in row} <= {0.0}
    returns = [row["sim_return"] for row in found if "sim_return" in row]
    assert returns[-1] > 3 * returns[0], "it has learned"
    page = compare_runs([tmp_path / "honest"]).page()
    assert "Reward and truth" in page and "diverges</b>" not in page
