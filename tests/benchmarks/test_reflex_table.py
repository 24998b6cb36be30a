"""The table of reflexes: its figures by hand, its count of violations, and one tiny cell for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.reflex import bench, cell
from robotrl.algos.reflex import ReflexCfg
from robotrl.spec.actuation import ServoTick


def record(seed: int, violations: dict[str, float]) -> dict[str, Any]:
    numbers = {name: 0.5 for name in bench.NUMBERS}
    result = {arm: numbers | {"violations": violations.get(arm, 1.0)} for arm in bench.ARMS}
    return {"method": "reflex", "task": bench.TASK, "seed": seed, "result": result}


def test_figures_by_hand() -> None:
    results = [record(seed, {"servo": 0.1 * (1 + seed), "policy": 1.0, "none": 0.5}) for seed in bench.SEEDS]
    figures = bench.aggregate(results)
    assert figures["servo_violations"].value == pytest.approx(0.2)
    assert figures["servo_of_policy"].value == pytest.approx(0.2)
    assert figures["servo_of_none"].value == pytest.approx(0.4)
    text = bench.table({"figures": {name: figure.to_json() for name, figure in figures.items()}})
    assert "| critic at the servo's rate, 200 Hz | 0.20 (0.10 to 0.30) | 50.0 (50.0 to 50.0) |" in text
    assert bench.aggregate([]) == {} and bench.table({"figures": {}}) == ""


class Backs:
    """Asks for another action in env 1."""

    def act(self, tick: ServoTick) -> torch.Tensor:
        return tick.action + torch.tensor([[0.0], [1.0]])

    def felt(self, obs: torch.Tensor, hazard: torch.Tensor) -> None:
        pass


def test_a_violation_is_a_rise_above_the_limit_in_the_first_episode() -> None:
    log = cell.HazardLog(Backs(), 2, 10.0)
    none = torch.zeros(2, 3)
    # (starts of episodes, hazards): env 0 rises twice, and env 1 once before its second episode
    ticks = [
        ((True, True), (5.0, 11.0)),
        ((False, False), (12.0, 13.0)),
        ((False, True), (9.0, 99.0)),
        ((False, False), (10.5, 0.0)),
        ((False, False), (10.0, 20.0)),
    ]
    for starts, hazards in ticks:
        log.act(ServoTick(none, none, 0, torch.tensor(starts)))
        log.felt(none, torch.tensor(hazards))
    assert log.violations.tolist() == [2, 1] and log.peak.tolist() == [12.0, 13.0]
    assert log.fired.tolist() == [0, 2]


def test_the_threshold_of_fewest_violations_among_those_that_keep_success(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        0.1: (0.0, 0.1),
        0.2: (0.3, 0.89),
        0.3: (0.2, 0.9),
        0.4: (0.6, 0.95),
        0.5: (1.0, 1.0),
        0.7: (1, 1),
        0.9: (1, 1),
    }

    def driven(policy: Any, reflex: float, *rest: Any) -> dict[str, float]:
        return dict(zip(("violations", "success"), found[reflex], strict=True))

    monkeypatch.setattr(cell, "driven", driven)
    monkeypatch.setattr(cell, "RiskReflex", lambda policy, threshold, rate: threshold)
    assert cell.best_threshold(None, "servo", {"success": 0.91}, 8, 0) == 0.3  # type: ignore[arg-type]
    assert cell.best_threshold(None, "servo", {"success": 0.96}, 8, 0) == 0.4  # type: ignore[arg-type]
    assert cell.best_threshold(None, "servo", {"success": 1.5}, 8, 0) == 0.5  # type: ignore[arg-type]


def test_a_tiny_cell_drives_all_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell, "THRESHOLDS", (0.5, 0.9))
    algo = ReflexCfg(env_steps=64 * 10, num_steps=10, updates=2, batch=32, capacity=2000)
    found = cell.run_cell(0, tmp_path, demos=4, clone_updates=2, algo=algo, episodes=(4, 4))
    assert tuple(found) == tuple(bench.ARMS)
    assert all(tuple(sorted(one)) == tuple(sorted(bench.NUMBERS)) for one in found.values())
    assert found["none"]["fired"] == 0
