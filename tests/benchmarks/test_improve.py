"""The table of improvement: figures by hand, and one tiny cell for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.improve import bench, cell
from robotrl.algos.pa_rl import PaRlCfg


def record(task: str, seed: int, arms: tuple[float, float, float, float], outcome: str = "better") -> dict[str, Any]:
    result: dict[str, Any] = {arm: {"value": value} for arm, value in zip(bench.ARMS, arms, strict=True)}
    result |= {"verdict": {"outcome": outcome}, "heldout_rank": 0.6, "heldout_auc": 0.8, "improve_s": 200.0}
    return {"method": "pa-rl", "task": f"mujoco/{task}", "seed": seed, "result": result}


def test_figures_by_hand() -> None:
    results = [
        record("peg-insert", 0, (0.4, 0.6, 0.85, 0.9)),
        record("peg-insert", 1, (0.5, 0.7, 0.85, 0.9), "open"),
        record("pick-place", 0, (0.4, 0.4, 0.7, 0.7)),
    ]
    figures = bench.aggregate(results)
    assert figures["peg-insert_pa_rl"].value == pytest.approx(0.9)
    assert figures["peg-insert_over_successes"].value == pytest.approx(0.25)
    assert figures["peg-insert_over_best_of"].value == pytest.approx(0.05)
    assert (figures["peg-insert_better"].value, figures["peg-insert_better"].runs) == (1.0, 2)
    text = bench.table({"figures": {name: figure.to_json() for name, figure in figures.items()}})
    assert (
        "| `mujoco/peg-insert` | 45.0 %" in text and "| 88 % |" in text and "| 1 of 2 | 0.60 | 0.80 | 200 s |" in text
    )
    assert bench.aggregate([]) == {} and bench.table({"figures": {}}) == ""
    assert [one.key for one in bench.cells(True)] == ["pa-rl--mujoco-peg-insert--0"] and len(bench.cells(False)) == 6


def test_a_verdict_is_of_the_same_starts() -> None:
    worse, better = np.arange(256) % 2 == 0, np.arange(256) % 8 != 1
    found = cell.verdict(better, worse)
    assert found["outcome"] == "better" and found["difference"] == pytest.approx(0.375)
    assert found["low"] > 0 and cell.verdict(worse, worse)["outcome"] != "better"


def test_a_tiny_cell(tmp_path: Path) -> None:
    small = cell.TASKS["peg-insert"]._replace(demos=4, updates={"flow": 20})
    algo = PaRlCfg(critic_updates=4, updates=4, updates_per_iteration=4, batch=16, candidates=2, engine="eager")
    found = cell.run_cell(small, 0, tmp_path, cell.Sizes(rollouts=8, starts=8, algo=algo))
    assert {0.0 <= found[arm]["value"] <= 1.0 for arm in bench.ARMS} == {True}
    assert found["logged_frames"] > 100 and found["logged_successes"] <= 8
    row = {"method": "pa-rl", "task": "mujoco/peg-insert", "seed": 0, "result": found}
    assert "peg-insert_pa_rl" in bench.aggregate([row])
