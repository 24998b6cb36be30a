"""The table of improvement: figures by hand, and one tiny cell for real."""

from __future__ import annotations

import importlib.util
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
    assert [one.key for one in bench.cells(True)] == ["pa-rl--mujoco-peg-insert--0"]


def test_cells_have_keys_of_their_own_and_modules() -> None:
    cells = bench.cells(False)
    assert len({one.key for one in cells}) == len(cells) == 6 + 27 + 9 + 3 + 4 + 42
    for one in cells:
        assert importlib.util.find_spec(one.command[2]) is not None
    # the committed cells are those of these commands
    assert cells[0].config_hash == "9da128f7f7a1b5cd" and cells[5].config_hash == "5aa3bfc04b1a8cee"


def rate(value: float) -> dict[str, float]:
    return {"value": value}


def of(method: str, task: str, seed: int, result: dict[str, Any]) -> dict[str, Any]:
    return {"method": method, "task": f"mujoco/{task}", "seed": seed, "result": result}


def went(before: float, candidate: float | None, accepted: bool, seconds: float) -> dict[str, Any]:
    stays = candidate if accepted and candidate is not None else before
    found = {"before": rate(before), "candidate": None if candidate is None else rate(candidate)}
    return {**found, "policy": rate(stays), "accepted": accepted, "seconds": seconds}


def texts(results: list[dict[str, Any]]) -> dict[str, str]:
    figures = bench.aggregate(results)
    document = {"figures": {name: figure.to_json() for name, figure in figures.items()}}
    return {name: table(document) for name, table in bench.PARTS.items()}


def test_rounds_by_hand() -> None:
    rounds = [went(0.4, 0.6, True, 60.0), went(0.6, 0.5, False, 120.0), went(0.6, None, False, 30.0)]
    result = {"base": rate(0.4), "success": rate(0.6), "rounds": rounds}
    other = {"base": rate(0.4), "success": rate(0.45), "rounds": [went(0.45, 0.45, False, 1.0)] * 3}
    results = [of("pa-rl-3", "peg-insert", 0, result), of("successes-3", "peg-insert", 0, other)]
    figures = bench.aggregate(results)
    # the round whose candidate was refused gains nothing, though that candidate would have cost ten points
    assert figures["pa-rl-3_peg-insert_least_gain"].value == 0.0
    assert figures["pa-rl-3_peg-insert_most_fall"].value == pytest.approx(0.1)
    assert figures["pa-rl-3_peg-insert_over_successes"].value == pytest.approx(0.15)
    row = next(line for line in texts(results)["rounds"].splitlines() if "PA-RL" in line)
    assert "| `mujoco/peg-insert` | 400 | 40.0 %" in row and "| 1 of 3 | 2.0 min | 1 |" in row


def test_the_condition_by_hand() -> None:
    arms = {"on": rate(0.8), "off": rate(0.6), "dropped": rate(0.7), "positives": rate(0.82)}
    result = {"base": rate(0.4), "success": rate(0.8), "rounds": [went(0.4, 0.8, True, 1.0)] * 3, "condition": arms}
    figures = bench.aggregate([of("recap-3", "peg-insert", 0, result)])
    assert figures["recap-3_peg-insert_over_off"].value == pytest.approx(0.2)
    assert figures["recap-3_peg-insert_over_positives"].value == pytest.approx(-0.02)
    assert "| 20.0 %" in texts([of("recap-3", "peg-insert", 0, result)])["condition"]
    # no round had a candidate
    blind = {**result, "condition": None}
    assert texts([of("recap-3", "peg-insert", 0, blind)])["condition"] == ""


def test_classes_filter_and_log_only_mode_by_hand() -> None:
    one_round = {arm: rate(value) for arm, value in zip(bench.ARMS, (0.3, 0.35, 0.5, 0.45), strict=True)}
    filtered = {
        "all": rate(0.5),
        "filtered": rate(0.6),
        "random": rate(0.49),
        "auc": 0.93,
        "dropped": 0.1,
        "found": 0.8,
    }
    alone = {"base": rate(0.4), "success": rate(0.7), "learn_s": 90.0}
    weak = {"base": rate(0.4), "success": rate(0.5), "learn_s": 60.0}
    results = [
        of("pa-rl-gaussian", "peg-insert", 0, one_round),
        of("filter", "peg-insert", 0, filtered),
        of("log-only-iql", "peg-insert", 0, weak),
        of("log-only-pa-rl", "peg-insert", 0, alone),
    ]
    figures, found = bench.aggregate(results), texts(results)
    assert figures["pa-rl-gaussian_gain"].value == pytest.approx(0.15)
    assert figures["filter_filtered_gain"].value == pytest.approx(0.1)
    assert figures["filter_random_gain"].value == pytest.approx(-0.01)
    assert "| Gaussian | 30.0 %" in found["classes"] and "| 0.93 |  | 10.0 %" in found["filter"]
    rows = found["log-only"].splitlines()
    # the best one first
    assert rows[2].startswith("| PA-RL | `robotrl improve` | 70.0 %") and rows[3].startswith("| IQL |")
    # one round of PA-RL has a table of its own, of which these cells are no part
    assert bench.table({"figures": {name: figure.to_json() for name, figure in figures.items()}}) == ""


def tried(side: str, kind: str, accepted: bool, at_gate: bool, gain: float | None) -> dict[str, Any]:
    return {"side": side, "kind": kind, "accepted": accepted, "at_gate": at_gate, "gain": gain}


def test_planted_updates_by_hand() -> None:
    one = [tried("bad", "rate", False, True, -0.4), tried("sham", "own samples", True, True, 0.01)]
    two = [tried("bad", "sign", False, False, None), tried("sham", "own samples", False, True, -0.03)]
    results = [of("planted", "peg-insert", seed, {"tries": tries}) for seed, tries in enumerate((one, two))]
    figures = bench.aggregate(results)
    assert (figures["planted_bad_accepted"].value, figures["planted_bad_accepted"].runs) == (0.0, 2)
    assert figures["planted_bad_at_gate"].value == 1.0 and figures["planted_bad_gain"].value == pytest.approx(-0.4)
    assert figures["planted_sham_gain"].value == pytest.approx(-0.01)
    text = texts(results)["planted"]
    assert "| **bad** | 0 of 2 | 1 of 2 | -40.0 %" in text and "| sham, own samples | 1 of 2 | 2 of 2 |" in text


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
