"""The locomotion table: what is concluded from its cells, full or in part, and that two halves can be put together."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import runner
from benchmarks.kit.cells import Cell, finished
from benchmarks.locomotion import bench
from robotrl.errors import ConfigError
from robotrl.fn.stats import Interval, bootstrap, iqm
from tests.kits.refusals import raises_naming


def result_of(cell: Cell) -> dict[str, Any]:
    """What a cell's process would leave: ours reach 3000 + 10 seed, theirs 2000 + 100 seed."""
    if cell.task == bench.QUADRUPED:
        no_fall = {"value": 0.96 + 0.01 * cell.seed, "low": 0.9, "high": 1.0, "episodes": 256}
        return {
            "error_mps": 0.1 + 0.01 * cell.seed,
            "mean_error_mps": 0.05,
            "no_fall": no_fall,
            "env_steps": 1,
            "wall_s": 3000.0,
            "env_steps_per_s": 16000.0,
        }
    mine = cell.method == bench.OURS
    value = 3000.0 + 10 * cell.seed if mine else 2000.0 + 100 * cell.seed
    return {"return": value, "train_s": 50.0 if mine else 500.0} | ({"compile_s": 6.0} if mine else {})


def record(cell: Cell) -> dict[str, Any]:
    return {
        "method": cell.method,
        "task": cell.task,
        "seed": cell.seed,
        "config_hash": cell.config_hash,
        "result": result_of(cell),
    }


def results(keep: Any = lambda cell: True) -> dict[str, dict[str, Any]]:
    return {cell.key: record(cell) for cell in bench.cells(False) if keep(cell)}


def test_the_table_has_every_cell_and_the_published_baselines_keep_theirs() -> None:
    table = bench.cells(False)
    keys = [cell.key for cell in table]
    assert len(set(keys)) == len(keys) == 2 * 2 * 8 + len(bench.QUADRUPED_SEEDS)
    assert {cell.seed for cell in bench.cells(True)} == {0} and len(bench.cells(True)) == 5
    # hours of results hang on this hash; whoever changes these cells runs them again
    baseline = next(cell for cell in table if cell.key == "sb3--mujoco-hopper--3")
    command = ["python", "-m", "benchmarks.locomotion.sb3_zoo", "mujoco/hopper", "3", "{out}"]
    config = json.dumps(["sb3", "mujoco/hopper", 3, command, "result.json", 1]).encode()
    assert baseline.config_hash == hashlib.sha256(config).hexdigest()[:16]


def test_interquartile_means_are_compared_with_the_lower_bound() -> None:
    figures = bench.aggregate(list(results().values()))
    theirs = bootstrap(np.array([2000.0 + 100 * seed for seed in range(8)]))
    found = figures["hopper_return"]
    assert found.value == pytest.approx(iqm(np.array([3000.0 + 10 * seed for seed in range(8)]))) == 3035.0
    assert found.low is not None and found.high is not None and 3000 <= found.low < 3035 < found.high <= 3070
    assert found.peer_value == pytest.approx(theirs.low) and found.ratio == pytest.approx(3035 / theirs.low)
    assert found.runs == 8 and "is at least the lower end" in found.note
    assert "8 seeds of ours, 8 of Stable-Baselines3" in found.note
    other = figures["hopper_return_sb3"]
    assert (other.value, other.low, other.high) == pytest.approx(theirs[:3])
    assert figures["halfcheetah_train"].value == 50.0 and figures["halfcheetah_train_sb3"].value == 500.0
    assert figures["hopper_compile"].value == 6.0 and "hopper_compile_sb3" not in figures
    assert figures["quadruped_error_mps"].value == pytest.approx(0.11)
    assert figures["quadruped_no_fall"].low == pytest.approx(0.96)


def test_a_miss_is_called_one() -> None:
    low = bench.compare(Interval(1900.0, 1800.0, 2500.0, 8), Interval(2300.0, 2000.0, 2600.0, 8))
    assert "is below the lower end" in low.note and low.ratio == pytest.approx(0.95)
    # our mean counts, not our interval: it may lie within theirs
    assert "is at least" in bench.compare(Interval(2000.0, 1.0, 2.0, 3), Interval(2300.0, 2000.0, 2600.0, 3)).note


def test_returns_below_zero_are_compared_without_a_ratio() -> None:
    found = bench.compare(Interval(-10.0, -20.0, -5.0, 8), Interval(5.0, -40.0, 9.0, 8))
    assert found.ratio is None and found.peer_value == -40.0 and "is at least" in found.note


@pytest.mark.parametrize(("ours", "theirs", "compared"), [(8, 2, False), (2, 8, False), (3, 3, True), (8, 0, False)])
def test_a_table_filled_in_part_says_how_much_and_compares_only_enough(ours: int, theirs: int, compared: bool) -> None:
    wanted = {bench.OURS: ours, bench.PEER: theirs}
    found = results(lambda cell: cell.task == "mujoco/hopper" and cell.seed < wanted[cell.method])
    figures = bench.aggregate(list(found.values()))
    figure = figures["hopper_return"]
    assert figure.runs == ours and f"{ours} seeds of ours, {theirs} of Stable-Baselines3" in figure.note
    assert (figure.peer_value is not None) == compared
    assert ("nothing is compared" in figure.note) == (not compared)
    assert ("hopper_return_sb3" in figures) == (theirs > 0)
    assert "halfcheetah_return" not in figures and "quadruped_error_mps" not in figures


def test_an_empty_table_gives_nothing() -> None:
    assert bench.aggregate([]) == {}


def markdown(found: dict[str, dict[str, Any]]) -> list[str]:
    figures = bench.aggregate(list(found.values()))
    return bench.table(runner.document("locomotion", {}, "c", False, figures, found)).splitlines()


def test_the_table_for_the_readme() -> None:
    lines = markdown(results())
    assert lines[0].startswith("| 1,000,000 steps | robotrl | Stable-Baselines3 |")
    assert lines[2].startswith("| mujoco/halfcheetah | **3,035 (") and "| yes (3,035 against 2," in lines[2]
    assert lines[2].endswith("| 8 and 8 | 50 s and 500 s |")
    assert {line.count("|") for line in lines[:4]} == {7} and lines[4] == ""
    assert "**0.11 m/s** (0.1 to 0.12)" in lines[7] and "**97.0 %** (96.0 to 98.0)" in lines[7] and "50 min" in lines[7]


def test_the_table_with_gaps() -> None:
    lines = markdown(results(lambda cell: cell.method == bench.PEER and cell.seed < 2))
    assert len(lines) == 4 and lines[3].startswith("| mujoco/hopper |  | 2,050 (")
    assert lines[3].endswith("|  | 0 and 2 | - and 500 s |")


def test_two_work_folders_filled_apart_are_put_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    halves = {"hopper": "mujoco/hopper", "cheetah": "mujoco/halfcheetah"}
    for name, task in halves.items():
        (tmp_path / name).mkdir()
        for cell in bench.cells(False):
            if cell.task == task:
                path = tmp_path / name / f"{cell.key}.json"
                path.write_text(json.dumps({"schema_version": 1, **record(cell)}))
    both = tmp_path / "both"
    both.mkdir()
    for name in halves:
        for path in (tmp_path / name).glob("*.json"):
            shutil.copy(path, both)
    json_path = tmp_path / "locomotion.json"
    assert runner.main("locomotion", json_path, cells="none", work=both) == 0
    assert "32 of 35 cells done" in capsys.readouterr().out
    written = json.loads(json_path.read_text())
    assert written["figures"]["hopper_return"]["runs"] == written["figures"]["halfcheetah_return"]["runs"] == 8
    # what the file holds counts later, without the work folders
    assert len(finished(bench.cells(False), tmp_path / "nowhere", written["cells"])) == 32


def test_a_task_without_a_preset_is_refused(tmp_path: Path) -> None:
    with raises_naming(ConfigError, "task", "mujoco/hoper", nearest="mujoco/hopper"):
        bench.main("mujoco/hoper", 0, tmp_path)


def test_a_cell_of_ours_is_trained_and_judged(tmp_path: Path) -> None:
    from dataclasses import replace

    from benchmarks.locomotion.referee import returns
    from robotrl.registry import PRESETS
    from robotrl.run.policy_checkpoint import load_policy

    assert set(bench.PRESETS) == set(bench.TASKS)
    presets = {task: PRESETS.load(name)() for task, name in bench.PRESETS.items()}
    assert all(cfg.sim.name == task and cfg.algo.env_steps == bench.STEPS for task, cfg in presets.items())
    cfg = presets["mujoco/hopper"]
    iteration = cfg.sim.num_envs * cfg.algo.num_steps
    algo = replace(cfg.algo, env_steps=iteration, epochs=1, engine="eager")
    evaluation = replace(cfg.evaluation, every_env_steps=iteration, episodes=2, num_envs=2, animation=0)
    result = bench.train_and_judge(replace(cfg, algo=algo, evaluation=evaluation), tmp_path / "run", episodes=3)
    assert result["env_steps"] == iteration and len(result["returns"]) == 3
    assert result["return"] == pytest.approx(np.mean(result["returns"])) and result["compile_s"] == 0.0
    assert set(result) >= {"return", "returns", "training_return", "env_steps", "train_s", "env_steps_per_s"}
    # the actions that were judged are the mean ones of the weights that the run ended with
    policy = load_policy(tmp_path / "run", "latest")
    (key,) = policy.observation_spec

    def act(obs: np.ndarray) -> np.ndarray:
        return policy.act({key: torch.from_numpy(obs.astype(np.float32))}, mode="mean").chunk[:, 0].detach().numpy()

    assert returns("mujoco/hopper", act, 3).tolist() == result["returns"]
