"""The table of verdicts: pairs planted in outcomes that are known, figures by hand, and one tiny cell for real."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.verdicts import bench, cell


def outcomes(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A clone that succeeds on half of the starts, on nine tenths of them whatever its noise, and a perfect expert."""
    clone = (rng.random(2048) < 0.5).astype(float)
    again = np.where(rng.random(2048) < 0.8, clone, (rng.random(2048) < 0.5).astype(float))
    return clone, again, np.ones(2048)


def test_planted_pairs_have_the_difference_that_is_planted() -> None:
    rng = np.random.default_rng(0)
    rows = outcomes(rng)
    same, better, worse = (cell.verdicts_on(kind, rows, 100, rng) for kind in bench.KINDS)
    # a tenth of the starts differs: 0.2 of them are drawn anew, half of these with the same outcome
    assert same["differing"] == pytest.approx(0.1, abs=0.02)
    # a fifth of the starts is the expert's, of which half differ
    assert better["differing"] == pytest.approx(0.8 * 0.1 + 0.2 * 0.5, abs=0.03)
    assert same["shares"]["better"] <= 0.1 and better["shares"]["better"] >= 0.75 and worse["shares"]["better"] == 0.0
    assert same["naive"] > same["shares"]["better"]
    for found in (same, better, worse):
        assert sum(found["shares"].values()) == pytest.approx(1.0)
        assert found["starts"] == pytest.approx(found["of_plan_before"] * 353)


def test_an_expert_that_is_hardly_better_plants_nothing() -> None:
    ones = np.ones(64)
    with pytest.raises(ValueError, match="the expert is better by 0 points"):
        cell.verdicts_on("better", (ones, ones, ones), 1, np.random.default_rng(0))


def record(task: str, seed: int, false: float) -> dict:
    shares = {"better": false, "worse": 0.0, "not better": 1.0 - false, "open": 0.0}
    kind = {"shares": shares, "naive": 0.3, "of_plan": 0.6, "of_plan_before": 0.4, "differing": 0.25}
    result = {"clone": 0.5, "pairs": 200, "kinds": dict.fromkeys(bench.KINDS, kind)}
    return {"method": "verdicts", "task": f"mujoco/{task}", "seed": seed, "result": result}


def test_figures_by_hand() -> None:
    results = [record("push", 0, 0.02), record("push", 1, 0.04), record("peg-insert", 0, 0.03)]
    figures = bench.aggregate(results)
    assert figures["push_same_better"].value == pytest.approx(0.03)
    assert figures["all_same_better"].value == pytest.approx(0.03)
    assert figures["all_pairs"].value == 600
    assert figures["all_of_plan"].value == pytest.approx(0.6)
    text = bench.table({"figures": {name: figure.to_json() for name, figure in figures.items()}})
    assert "| `mujoco/push` | 50.0 (50.0 to 50.0) | 25.0 (25.0 to 25.0) | 3.0 (2.0 to 4.0) |" in text
    assert "| `mujoco/pick-place` |" not in text
    assert bench.aggregate([]) == {} and bench.table({"figures": {}}) == ""


def test_a_tiny_cell(tmp_path, monkeypatch) -> None:
    task = cell.TASKS["peg-insert"]
    small = task._replace(demos=4, updates={"flow": 20})
    monkeypatch.setitem(cell.TASKS, "peg-insert", small)
    found = cell.run_cell("peg-insert", 0, tmp_path, starts=16, pairs=5)
    assert set(found["kinds"]) == set(bench.KINDS) and found["expert"] > 0.5
    assert bench.aggregate([{"method": "verdicts", "task": "mujoco/peg-insert", "seed": 0, "result": found}])
