"""The fine-tuning table: what its cells are made of, what is concluded from them, and one of them for real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.finetune import bench
from benchmarks.finetune import cell as finetune_cell
from benchmarks.finetune.bench import METHODS, TASKS
from benchmarks.kit.curves import legend_columns, mean_curve
from robotrl import config as configs
from robotrl.config import changed_options
from tests.kits.paths_kit import ROOT


def record(method: str, task: str, seed: int, success: float, steps: float) -> dict[str, Any]:
    """A finished cell whose curve rises to `success` in four equal parts of `steps`."""
    curve = [{"env_steps": steps * k / 4, "train_s": 10.0 * k, "success": success * k / 4} for k in range(1, 5)]
    interval = {"value": success, "low": 0.0, "high": 1.0, "episodes": 256}
    result = {
        "base": None if METHODS[method].base is None else {**interval, "value": 0.4},
        "success": interval,
        "curve": curve,
        "env_steps": steps,
        "train_s": 40.0,
        "sim_share": 0.5,
        "network_evaluations": None,
        "peak_memory_mib": 700.0,
    }
    return {"method": method, "task": TASKS[task].sim, "seed": seed, "result": result}


def test_every_method_is_tried_on_every_task_and_what_fails_on_one():
    cells = bench.cells(False)
    shown = sum(method.edge for method in METHODS.values())
    assert len(cells) == 3 * (3 * (len(METHODS) - shown) + shown)
    assert len({cell.key for cell in cells}) == len(cells)
    assert {cell.seed for cell in bench.cells(True)} == {0}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("task", TASKS)
def test_what_a_cell_runs_is_a_valid_config_of_its_own_task(name, task, tmp_path):
    method, setting = METHODS[name], TASKS[task]
    tune = finetune_cell.tune_cfg(method, setting, 2, tmp_path)
    configs.check(tune)
    budget = round(method.budget * setting.env_steps)
    assert (tune.sim.name, changed_options(tune.sim), tune.seed) == (setting.sim, dict(setting.options), 2)
    assert tune.algo.env_steps == budget
    assert tune.stop_at_success == 0.99
    assert (tune.init_from is None) == (method.base is None)
    assert (tune.dataset is None) == (not method.demos and (method.base is not None or method.edge))
    points = setting.env_steps / (tune.algo.num_steps * tune.sim.num_envs) / tune.evaluation.every
    assert 20 <= points <= 50
    if method.base is not None:
        base = finetune_cell.base_cfg(method, setting, 2, tmp_path / "demos")
        configs.check(base)
        assert base.sim.name == setting.sim
        assert base.policy.denoising_steps == (method.denoising_steps or base.policy.denoising_steps)
        assert base.algo.updates == 60 if method.edge else base.algo.updates >= 500


def test_levels_are_those_of_the_best_policy_gradient():
    results = [record("reinflow", "push", seed, 0.8, 1000.0) for seed in range(3)]
    results += [record("dppo", "push", seed, 0.6, 1000.0) for seed in range(3)]
    results += [record("dsrl_na", "push", seed, (0.8, 0.76, 0.5)[seed], 200.0) for seed in range(3)]
    results += [record("rlpd", "push", 0, 0.9, 200.0)]
    figures = bench.aggregate(results)
    assert figures["push_reinflow_gain"].value == pytest.approx(0.4)
    # 90 % of 0.8 is 0.72: the last of four points of 0.8 and of 0.76; 0.5 and 0.6 never get there, 0.9 does
    assert figures["push_reinflow_env_steps_to_level"].value == 1000
    assert "push_dppo_env_steps_to_level" not in figures
    steered = figures["push_dsrl_na_env_steps_to_level"]
    assert steered.value == 200
    assert steered.runs == 2
    assert "to 72 % success, 2 of 3 seeds reached it" in steered.note
    assert figures["push_rlpd_train_s_to_level"].value == 40
    assert "push_rlpd_base" not in figures
    assert "push_rlpd_network_evaluations" not in figures
    assert not any(key.startswith("peg-insert") for key in figures)


def test_the_table_shows_a_row_for_each_method_that_has_results():
    results = [record("reinflow", "peg-insert", seed, 0.95, 460_800.0) for seed in range(3)]
    results += [record("sac_no_demos", "peg-insert", 0, 0.0, 460_800.0)]
    figures = {key: figure.to_json() for key, figure in bench.aggregate(results).items()}
    text = bench.table({"figures": figures}).splitlines()
    assert text[0] == "`mujoco/peg-insert`"
    assert len(text) == 6
    cells = [cell.strip() for cell in text[4].strip("|").split("|")]
    assert cells[0] == "ReinFlow, flow, 4 steps"
    assert cells[1:4] == ["40.0 % (40.0 to 40.0)", "**95.0 % (95.0 to 95.0)**", "461 k"]
    assert cells[-3:] == ["50.0 %", "700 MiB", "3"]
    assert "not reached" in text[5]
    assert "**0.0 % (0.0 to 0.0)**" in text[5]


def test_the_picture_shows_every_method_that_has_results_and_is_the_same_every_time():
    results = [record("reinflow", "peg-insert", seed, 0.95, 460_800.0) for seed in range(3)]
    results += [record("rlpd", "pick-place", 0, 0.5, 768_000.0)]
    document = {"cells": {str(i): cell for i, cell in enumerate(results)}}
    pictures = bench.pictures(document)
    text = pictures["finetune.svg"].decode()
    for shown in ("mujoco/peg-insert", "mujoco/pick-place", "ReinFlow, flow, 4 steps", "RLPD, same demonstrations"):
        assert shown in text
    assert "mujoco/push" not in text and "DPPO" not in text
    assert pictures == bench.pictures(document)
    assert bench.pictures({"cells": {}}) == {}
    # each method's page has its own, the others beside it
    assert set(pictures) == {"finetune.svg", "finetune-reinflow.svg", "finetune-rlpd.svg"}
    apart = pictures["finetune-rlpd.svg"].decode()
    assert "RLPD, same demonstrations" in apart and "ReinFlow" not in apart and "mujoco/peg-insert" not in apart
    beside = {
        task: panel.beside
        for task in ("peg-insert", "pick-place")
        for panel in [bench._apart(bench._panels(results, task)[0], ("rlpd",))]
    }
    assert [len(beside[task]) for task in ("peg-insert", "pick-place")] == [1, 0]


def test_every_method_has_a_page_that_shows_its_curve():
    assert sorted(name for names in bench.PAGES.values() for name in names) == sorted(METHODS)
    for page in bench.PAGES:
        text = (ROOT / "docs" / "algorithms" / f"{page}.md").read_text()
        assert f"(../images/finetune-{page}.svg)" in text


def test_a_legend_has_as_many_columns_as_fit():
    assert legend_columns(["GRPO", "SRPO"], 9.2) == 3
    assert legend_columns(["GRPO", "a" * 63], 9.2) == 2
    assert legend_columns(["a" * 200], 9.2) == 1 and legend_columns([], 9.2) == 3


def test_the_mean_of_curves_lies_where_all_of_them_are_known():
    x, y = mean_curve([[(1.0, 0.0), (3.0, 1.0)], [(2.0, 0.5), (4.0, 0.1)]])
    assert x.tolist() == [2.0, 3.0]
    assert y.tolist() == pytest.approx([(0.5 + 0.5) / 2, (1.0 + 0.3) / 2])


def test_a_cell_from_demonstrations_to_judgement(tmp_path: Path):
    method = METHODS["dsrl_na_weak_base"]._replace(tune="peg-insert-reinflow")
    task = TASKS["peg-insert"]._replace(demos=4, env_steps=7_680)
    result = finetune_cell.run_cell(method, task, 0, tmp_path, episodes=32)
    json.dumps(result)
    assert result["base"]["episodes"] == result["success"]["episodes"] == 32
    (point,) = result["curve"]
    assert point["env_steps"] == result["env_steps"] == 7_680
    assert 0 < point["train_s"] == result["train_s"] < result["wall_s"]
    assert 0 < result["sim_share"] < 1
    # the first iteration trains the critic alone: what is counted is acting, 4 denoising steps a decision of 4 steps
    assert 7_680 * 0.8 < result["network_evaluations"] < 7_680 * 1.3
    assert result["peak_memory_mib"] > 100
