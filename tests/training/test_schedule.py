"""Evaluations of whole runs: in env steps, bounded, and repeated exactly by a run that was cut off."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from robotrl import config as configs
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.registry import SIMS
from robotrl.run.callbacks import Callback
from robotrl.run.logs import read_scalars
from robotrl.training import resume, train
from tests.kits import learner_kit as kit

SIX = 16 * 16 * 6
"""Env steps of six iterations of 16 envs."""


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(SIMS._rows, "test/walk", "tests.kits.walk_sim:make")


def walk(evaluation: EvalCfg, num_envs: int = 16, **changes: Any) -> TrainCfg[Any, Any]:
    algo = replace(kit.PPO, env_steps=SIX, num_steps=16)
    base: TrainCfg[Any, Any] = TrainCfg(SimCfg("test/walk", num_envs), algo, kit.GAUSSIAN, evaluation=evaluation)
    return replace(base, checkpoint_every=1, **changes)


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_start(self, run):
        self.run = run

    def on_iteration(self, step, scalars):
        if step == self.step:
            self.run.request_stop("enough")


def evaluated(path) -> list[dict[str, float]]:
    return [row for row in read_scalars(path / "scalars.jsonl") if "eval_success" in row]


@pytest.mark.parametrize("num_envs", [4, 8, 16])
def test_evaluations_follow_env_steps_whatever_the_number_of_envs(tmp_path, num_envs):
    cfg = walk(EvalCfg(episodes=4, num_envs=4, every_env_steps=512), num_envs)
    train(replace(cfg, checkpoint_every=None, checkpoint_every_env_steps=512), tmp_path / "r")
    assert [row["env_steps"] for row in evaluated(tmp_path / "r")] == [512, 1024, 1536]
    kept = {int(path.name.split("_")[1]) for path in (tmp_path / "r" / "checkpoints").glob("step_*")}
    assert kept == {512 // (16 * num_envs) * k for k in (1, 2, 3)}


def test_evaluations_beyond_their_share_are_left_out_and_a_resumed_run_leaves_out_the_same(tmp_path, capsys):
    cfg = walk(EvalCfg(every=1, episodes=16, num_envs=4, max_share=0.1))
    with pytest.warns(UserWarning, match=r"evaluation\.max_share is 0\.1, so some are left out"):
        train(cfg, tmp_path / "whole")
    rows = evaluated(tmp_path / "whole")
    lengths = {int(row["step"]): round(16 * row["eval_length"]) for row in rows}
    expected, spent = [], 0
    for step in range(1, 7):
        if step == 6 or spent <= 0.1 * (spent + 256 * step):
            expected.append(step)
            spent += lengths[step]
    assert sorted(lengths) == expected
    assert 1 < len(expected) < 6, "or this test shows nothing"
    assert all(0 < row["eval_share"] < 1 for row in rows)
    assert all(a["eval_s"] < b["eval_s"] for a, b in itertools.pairwise(rows))
    assert "evaluations took " in capsys.readouterr().err
    with pytest.warns(UserWarning, match="some are left out"):
        train(cfg, tmp_path / "cut", [StopAt(3)])
    with pytest.warns(UserWarning, match="some are left out"):
        resume(tmp_path / "cut")
    wanted = [(row["step"], row["eval_success"], row["env_steps"]) for row in rows]
    assert [(row["step"], row["eval_success"], row["env_steps"]) for row in evaluated(tmp_path / "cut")] == wanted


def test_a_stored_config_of_before_has_no_bound():
    cfg = walk(EvalCfg(every=1))
    data = configs.to_json(cfg)
    types = {"algo": type(cfg.algo), "policy": type(cfg.policy)}
    assert configs.from_json(data, types) == configs.resolved(cfg)
    before = {key: value for key, value in data["evaluation"].items() if key not in ("max_share", "every_env_steps")}
    found = configs.from_json({**data, "evaluation": before}, types)
    assert (found.evaluation.max_share, found.evaluation.every_env_steps) == (1.0, None)


def test_a_recipe_for_other_rewards_says_so_once(tmp_path):
    """The walk pays where it stands, not 0 or 1."""
    cfg = walk(EvalCfg(every=0, episodes=4, num_envs=4), tuned_on="success")
    with pytest.warns(UserWarning, match=r"tuned on rewards of 1 at a success .* sim 'test/walk' gave") as caught:
        train(cfg, tmp_path / "r")
    assert len([warning for warning in caught if "tuned on" in str(warning.message)]) == 1
