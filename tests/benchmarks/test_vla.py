"""The table of vision-language-action policies: its cells, what is concluded from them, and one of them for real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.vla import bench, decode, stages
from benchmarks.vla import cell as vla_cell
from benchmarks.vla.bench import DECODE, METHODS, SIM, Clone
from benchmarks.vla.decode import Size
from robotrl import config as configs
from robotrl.cli.commands.train import config_of
from robotrl.config import EvalCfg, changed_options
from robotrl.engine import autocast
from robotrl.policies.vla.networks.openvla import TextCfg


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": 0.0, "high": 1.0, "episodes": 256}


def record(method: str, seed: int, before: float, after: float, held_out: float, steps: float) -> dict[str, Any]:
    """A finished cell whose curve rises to `after` in four equal parts of `steps`."""
    curve = [{"env_steps": steps * k / 4, "train_s": 10.0 * k, "success": after * k / 4} for k in range(1, 5)]
    result = {
        "base": interval(before),
        "success": interval(after),
        "held_out_base": interval(before / 2),
        "held_out_success": interval(held_out),
        "teacher": interval(0.9) if METHODS[method].teacher else None,
        "curve": curve,
        "env_steps": steps,
        "train_s": 40.0,
        "clone_s": 20.0,
        "ratio_error": 1e-6,
        "peak_memory_mib": 700.0,
    }
    return {"method": method, "task": SIM, "seed": seed, "result": result}


def test_every_method_on_every_seed_and_the_decoding():
    cells = bench.cells(False)
    assert len({cell.key for cell in cells}) == len(cells) == 3 * len(METHODS) + 1
    assert {cell.seed for cell in bench.cells(True)} == {0}


@pytest.mark.parametrize("slowdown", [0.5, 60.0])
@pytest.mark.parametrize("name", METHODS)
def test_what_a_cell_runs_is_a_valid_config(name, slowdown, tmp_path, monkeypatch):
    monkeypatch.setattr(autocast, "slowdown_in_bf16", lambda: slowdown)
    method = METHODS[name]
    look, read, clone = stages.configs(method.stages, method.clone, 2, tmp_path)
    tune = vla_cell.tune_cfg(method, 2, tmp_path / "clone", tmp_path if method.teacher else None)
    for cfg in (look, read, clone, tune):
        configs.check(cfg)
        assert cfg.seed == 2 and cfg.sim.name == SIM
        assert cfg.algo.bf16 == (method.stages.bf16 and cfg is not tune and slowdown < 1)
    # cloned on what it is fine-tuned on: three families, instructions that training says
    assert look.sim.options == read.sim.options == clone.sim.options
    assert replace(tune.sim.options, reward="sparse") == look.sim.options
    assert type(look.policy) is type(clone.policy) and look.policy == read.policy == clone.policy
    # one from the other
    assert read.init_from == str(tmp_path / "look") and clone.init_from == str(tmp_path / "read")
    assert clone.dataset == str(tmp_path / f"demos-{method.clone.demos}") and look.dataset == read.dataset
    assert look.dataset == str(tmp_path / "demos-1000") and clone.algo.updates == method.clone.updates
    assert tune.init_from == str(tmp_path / "clone") and not look.algo.grounding_coef and read.algo.grounding_coef
    options = changed_options(tune.sim)
    assert len(options["families"]) >= 3 and "compositions" not in options
    assert bool(getattr(tune.algo, "teacher", "")) == bool(method.teacher)
    assert tune.algo.lr_end == method.lr_end


def test_what_starts_from_the_same_clone_is_told_by_its_way_to_the_success_of_binary_rewards():
    results = [record("grpo", seed, 0.4, 0.8, 0.5, 1000.0) for seed in range(3)]
    results += [record("srpo", seed, 0.4, (0.9, 0.75, 0.6)[seed], 0.6, 400.0) for seed in range(3)]
    results += [record("opd", 0, 0.4, 0.8, 0.6, 200.0), record("reinflow", 0, 0.4, 0.8, 0.5, 1000.0)]
    figures = bench.aggregate(results)
    assert figures["grpo_gain"].value == pytest.approx(0.4)
    assert figures["grpo_held_out_gain"].value == pytest.approx(0.3)
    assert "reinflow_env_steps_to_level" not in figures
    # 90 % of 0.8 is 0.72: the last of four points of 0.9 and of 0.75; 0.6 never gets there
    srpo = figures["srpo_env_steps_to_level"]
    assert (srpo.value, srpo.runs) == (400, 2) and "to 72 % success, 2 of 3 seeds reached it" in srpo.note
    assert figures["opd_env_steps_to_level"].value == 200
    assert figures["opd_teacher"].value == 0.9 and "grpo_teacher" not in figures
    document = {"figures": {key: figure.to_json() for key, figure in figures.items()}, "cells": {}}
    told = {row.split("|")[1].strip(): row.split("|")[-3].strip() for row in bench.table(document).splitlines()[2:]}
    assert told["token VLA, SRPO by its own sight"] == "0 k (2 of 3 seeds)"
    assert told["token VLA, taught by a better clone"] == "0 k" and told["flow VLA, ReinFlow"] == ""


def test_what_starts_from_a_rarely_successful_clone_is_raced_by_itself():
    results = [record("grpo", 0, 0.4, 0.8, 0.5, 1000.0), record("grpo-rare", 0, 0.1, 0.2, 0.5, 1000.0)]
    figures = bench.aggregate([*results, record("srpo-rare", 0, 0.1, 0.3, 0.5, 400.0)])
    # 90 % of 0.2 is 0.18: the third of four points of 0.3
    assert figures["srpo-rare_env_steps_to_level"].value == 300
    assert figures["grpo-rare_env_steps_to_level"].value == 1000


def test_the_table_and_its_picture():
    results = [record("grpo", seed, 0.4, 0.8, 0.5, 200_000.0) for seed in range(3)]
    speed = {"value": 900.0, "unit": "tokens/s", "peer": "x", "peer_value": 600.0, "ratio": 1.5, "note": "4.5 million"}
    results.append({"method": DECODE, "task": SIM, "seed": 0, "result": {"decode_5m": speed}})
    figures = {key: figure.to_json() for key, figure in bench.aggregate(results).items()}
    document = {"figures": figures, "cells": {str(i): cell for i, cell in enumerate(results)}}
    lines = bench.table(document).splitlines()
    assert [cell.strip() for cell in lines[2].strip("|").split("|")] == [
        "token VLA, GRPO",
        "40.0 % (40.0 to 40.0)",
        "**80.0 % (80.0 to 80.0)**",
        "20.0 % (20.0 to 20.0)",
        "**50.0 % (50.0 to 50.0)**",
        "200 k",
        "40 s",
        "200 k",
        "3",
    ]
    assert lines[-1].startswith("| 4.5 million | 900 a second | 600 | 1.5 (")
    (_, _, *rows) = bench.seeds(document).splitlines()
    assert [cell.strip() for cell in rows[1].strip("|").split("|")] == [
        "token VLA, GRPO",
        "1",
        "40 (0 to 100) %",
        "**80 (0 to 100) %**",
        "20 to 50 (0 to 100) %",
        "200 k",
        "1 min",
        "20, 40, 60, 80 %",
    ]
    assert len(rows) == 3, "how fast tokens are said is no row"
    text = bench.pictures(document)["vla.svg"].decode()
    assert "token VLA, GRPO" in text and "SRPO" not in text


def test_decoding_is_measured_beside_the_peer():
    figure = decode.measure(Size(TextCfg(32, 2, 2, 2, 64, 320, 16), 2), rounds=1, tokens=3)
    assert figure.value and figure.peer_value and figure.ratio == pytest.approx(figure.value / figure.peer_value)
    assert "2 rows, 3 tokens" in figure.note


TINY = {"vision_width": 16, "vision_depth": 2, "vision_heads": 2, "width": 32, "heads": 2, "mlp": 64, "depth": 2}


def small(name: str, bf16: bool = False) -> Any:
    """A preset that is done in a moment."""
    cfg = config_of(stages.RECIPES[name])
    cfg = replace(cfg, policy=replace(cfg.policy, **TINY), evaluation=EvalCfg(0, 4, 4, 0))
    algo = replace(
        cfg.algo, bf16=bf16, **({"batch": 8, "scenes": 16} if hasattr(cfg.algo, "scenes") else {"iterations": 1})
    )
    if name in ("look", "read"):
        algo = replace(algo, updates=3)
    return replace(cfg, sim=replace(cfg.sim, num_envs=16, options=replace(cfg.sim.options, limit_s=1.0)), algo=algo)


def test_a_cell_from_demonstrations_to_judgement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for module in (vla_cell, stages):
        monkeypatch.setattr(module, "preset", small)
    monkeypatch.setattr(vla_cell, "VAL", 8)
    method = METHODS["opd"]._replace(clone=Clone(4, 3), teacher=Clone(6, 4))
    result = vla_cell.run_cell(method, 0, tmp_path / "out", tmp_path / "stages", frames=6, episodes=8)
    json.dumps(result)
    assert result["base"]["episodes"] == result["held_out_success"]["episodes"] == result["teacher"]["episodes"] == 8
    (point,) = result["curve"]
    assert point["env_steps"] == result["env_steps"] > 0 and 0 < result["train_s"] < result["wall_s"]
    assert result["peak_memory_mib"] > 100 and 0 < result["clone_s"] < result["wall_s"]


def test_stages_are_made_once_and_again_when_something_before_them_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stages, "preset", small)

    def made(updates: int) -> dict[str, str]:
        """The mark of each folder after a clone of so many updates was asked for."""
        clone = stages.prepare(bench.TOKEN, Clone(3, updates), 0, tmp_path, frames=4)
        assert clone.path == tmp_path / f"clone-3-{updates}" and stages.spent_s(clone.path) > 0
        assert all(path.with_suffix("").is_dir() for path in tmp_path.glob("*.json"))
        marks = {path.stem: json.loads(path.read_text())["mark"] for path in tmp_path.glob("*.json")}
        assert marks[clone.path.name] == clone.mark
        return marks

    first = made(2)
    assert made(2) == first
    second = made(3)
    assert second.keys() - first.keys() == {"clone-3-3"} and second.items() >= first.items()
    # the first clone is as it was
    assert made(2) == second
    # what stands there without a note is nobody's
    (tmp_path / "read.json").unlink()
    third = made(2)
    assert {name for name, mark in third.items() if mark != second[name]} == {"read", "clone-3-2"}
    # what it had read from is gone
    assert {name for name, mark in made(3).items() if mark != third[name]} == {"clone-3-3"}
    monkeypatch.setattr(stages, "NOISE", 0.1)
    fourth = made(2)
    assert {name for name, mark in fourth.items() if mark != third[name]} == {
        "demos-3",
        "demos-4",
        "look",
        "read",
        "clone-3-2",
        "clone-3-3",
    }
