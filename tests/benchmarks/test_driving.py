"""The driving table: what its cells are made of, what is concluded from them, and some of them for real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.driving import bench
from benchmarks.driving import cell as driving_cell
from benchmarks.driving.bench import MINIBATCHES, PLANNERS, REWARDS, study_name
from robotrl import config as configs
from robotrl.errors import ConfigError
from robotrl.sims.bev.traffic.scenarios import SCENARIOS
from robotrl.sims.driving.scores import Route
from tests.kits.refusals import raises_naming


def record(method: str, seed: int, score: float) -> dict[str, Any]:
    """A finished cell."""
    result = {
        "completion": score / 100,
        "driving": score,
        "driving_2_1": score + 1,
        "success": 0.5,
        "strict_success": 0.25,
        "train_s": 600.0,
        "env_steps_per_s": None,
    }
    return {"method": method, "task": bench.SIM, "seed": seed, "result": result}


def test_what_is_trained_has_three_seeds_and_the_rule_based_driver_one():
    cells = bench.cells(False)
    trained = len(PLANNERS) - 1 + len(MINIBATCHES) * len(REWARDS)
    assert len({cell.key for cell in cells}) == len(cells) == 3 * trained + 1
    assert [cell.seed for cell in cells if cell.method == "driver"] == [0]
    assert {cell.seed for cell in bench.cells(True)} == {0}


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("minibatch", MINIBATCHES)
def test_the_study_differs_in_the_reward_as_published_and_in_the_minibatch_alone(reward: str, minibatch: int):
    cfg, planner = driving_cell.study_cfg(reward, minibatch), driving_cell.planner_cfg("planner", 0, Path("x"))
    configs.check(cfg)
    assert planner is not None
    expected = {**configs.changed_options(planner.sim), "reward": reward}
    del expected["end_penalty"]
    assert configs.changed_options(cfg.sim) == {k: v for k, v in expected.items() if (k, v) != ("reward", "carl")}
    assert cfg.algo == replace(planner.algo, env_steps=5_000_000, minibatch=minibatch)
    assert cfg.policy == planner.policy


def test_what_is_unknown_is_refused(tmp_path: Path):
    with raises_naming(ConfigError, "method", "planer", nearest="planner"):
        driving_cell.main("planer", 0, tmp_path)


def test_scores_are_over_all_routes_and_by_scenario_by_hand():
    whole = Route(completion=1.0)
    crashed = Route(completion=0.5, vehicles=1, at_fault=1)
    found = driving_cell.scenario_scores({"curve": [whole, whole], "merge": [whole, crashed], "signal": []})
    assert found["completion"] == pytest.approx(0.875)
    # a collision with a vehicle takes 0.6
    assert found["driving"] == pytest.approx((3 * 100 + 0.5 * 100 * 0.6) / 4)
    assert (found["success"], found["collisions"], found["at_fault"], found["routes"]) == (0.75, 1, 1, 4)
    assert found["scenarios"]["merge"] == {"routes": 2, "completion": 0.75, "driving": 65.0, "success": 0.5}
    assert set(found["scenarios"]) == {"curve", "merge"}


def test_figures_and_table():
    results = [record("planner", seed, 80.0 + seed) for seed in range(3)]
    results += [record("driver", 0, 90.0)]
    results += [record(study_name("carl", 256), 0, 40.0), record(study_name("carl", 16384), 0, 60.0)]
    figures = bench.aggregate(results)
    assert figures["planner_driving"].value == pytest.approx(81.0)
    assert figures["planner_driving"].runs == 3
    assert "planner_env_steps_per_s" not in figures
    assert bench.trend(results, "carl", "driving") == pytest.approx(20.0)
    assert bench.trend(results, "roach", "driving") is None
    shown = {key: figure.to_json() for key, figure in figures.items()}
    text = bench.table({"figures": shown, "cells": dict(enumerate(results))}).splitlines()
    assert text[2].startswith(
        "| PPO, Beta policy, CaRL's reward, vectors | 81.0 (80.0 to 82.0) % | 81.0 (80.0 to 82.0) |"
    )
    assert text[2].endswith("| 10 min | 3 |")
    assert text[3].startswith(f"| {PLANNERS['driver'].label} | 90.0 % | 90.0 | 91.0 |")
    assert text[-2] == "| carl, driving score (2.0) | 40.0 | - | 60.0 | +20.0 |"
    assert text[-1] == "| carl, completion, % | 40.0 | - | 60.0 | +20.0 |"


def test_the_rule_based_driver_is_judged_on_each_start_once(tmp_path: Path):
    episodes = 2 * len(SCENARIOS)
    found = driving_cell.run_cell(None, 0, tmp_path, episodes)
    assert found["routes"] == episodes
    assert {name: row["routes"] for name, row in found["scenarios"].items()} == dict.fromkeys(
        (scenario.name for scenario in SCENARIOS), 2
    )
    assert found["completion"] > 0.8
    json.dumps(found)


@pytest.mark.parametrize("method", ["planner", "planner_raster", "clone"])
def test_a_planner_is_trained_and_judged_at_tiny_size(method: str, tmp_path: Path):
    cfg = driving_cell.planner_cfg(method, 1, tmp_path, episodes=6)
    assert cfg is not None
    configs.check(cfg)
    if method == "clone":
        cfg = replace(cfg, algo=replace(cfg.algo, updates=4))
    else:
        algo = replace(cfg.algo, env_steps=64, num_steps=4, minibatch=32, epochs=1, engine="eager")
        cfg = replace(cfg, sim=replace(cfg.sim, num_envs=8), algo=algo)
    found = driving_cell.run_cell(cfg, 1, tmp_path, episodes=len(SCENARIOS))
    assert found["routes"] == len(SCENARIOS)
    assert 0.0 <= found["completion"] <= 1.0
    assert found["env_steps"] == (None if method == "clone" else 64)
    json.dumps(found)
