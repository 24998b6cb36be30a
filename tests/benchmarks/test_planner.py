"""The planner table: its cells, its figures by hand, and the rule-based driver for real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.planner import bench, cell, perlad_cell
from benchmarks.planner.bench import ARMS, CLONES, PLANNERS, POPULATIONS, SEEDS
from robotrl.algos.perlad import PerladCfg
from robotrl.config import changed_options
from robotrl.errors import ConfigError
from robotrl.registry import TRAFFIC
from tests.kits.refusals import raises_naming


def record(method: str, seed: int, scores: tuple[float, ...]) -> dict[str, Any]:
    """A finished cell."""
    populations = {name: {"driving": score} for name, score in zip(POPULATIONS, scores, strict=True)}
    return {"method": method, "task": bench.SIM, "seed": seed, "result": {"populations": populations}}


def test_trained_planners_have_three_seeds_and_all_populations_exist() -> None:
    cells = bench.cells(False)
    assert [one.seed for one in cells if one.method == "driver"] == [0]
    assert all(
        [one.seed for one in cells if one.method == name] == list(SEEDS) for name in PLANNERS if name != "driver"
    )
    assert [one.method for one in bench.cells(True)] == ["driver"]
    assert set(POPULATIONS) <= set(TRAFFIC.names())


def test_figures_by_hand() -> None:
    results = [record("ppo", seed, (80.0 + seed, 70.0, 81.0, 60.0, 80.0, 79.0, 70.0 + seed)) for seed in SEEDS]
    figures = bench.aggregate(results)
    assert figures["ppo_moderate"].value == pytest.approx(81.0)
    assert figures["ppo_timid_lost"].value == pytest.approx(11.0)
    assert figures["ppo_aggressive_lost"].value == pytest.approx(0.0)
    assert (figures["ppo_erratic_lost"].low, figures["ppo_erratic_lost"].high) == (20.0, 22.0)
    assert figures["ppo_self-play_lost"].value == pytest.approx(10.0)
    assert "ppo_moderate_lost" not in figures
    document = {"figures": {name: figure.to_json() for name, figure in figures.items()}}
    assert "| PPO, Beta policy, CaRL's reward, vectors | 81.0 (80.0 to 82.0) |" in bench.table(document)
    before = {name: figure for name, figure in document["figures"].items() if "self-play" not in name}
    assert (
        bench.table({"figures": before}).splitlines()[0].count("|")
        == bench.table(document).splitlines()[0].count("|") - 1
    )


def test_cells_from_before_a_population_was_there_are_shown_without_it() -> None:
    """Three seeds of which one is older: the later population has two, the lost points are those of the two."""
    results = [record("ppo", seed, (80.0 + seed, 70.0, 81.0, 60.0, 80.0, 79.0, 70.0)) for seed in SEEDS]
    del results[0]["result"]["populations"]["self-play"]
    old = record("driver", 0, (88.0, 78.0, 81.0, 80.0, 1.0, 1.0, 1.0))
    for name in POPULATIONS[4:]:
        del old["result"]["populations"][name]
    figures = bench.aggregate([*results, old])
    assert figures["ppo_moderate"].runs == 3 and figures["ppo_self-play_lost"].runs == 2
    lost = [80.0 + seed - results[seed]["result"]["populations"]["self-play"]["driving"] for seed in (1, 2)]
    assert figures["ppo_self-play_lost"].value == pytest.approx(sum(lost) / 2)
    assert f"driver_{POPULATIONS[4]}" not in figures
    document = {"figures": {name: figure.to_json() for name, figure in figures.items()}}
    row = next(line for line in bench.table(document).splitlines() if "rule-based" in line)
    assert row == "| rule-based: IDM on the route | 88.0 | 78.0 | 81.0 | 80.0 | - | - | - | 1 |"


def test_the_rule_based_driver_drives_in_each(tmp_path: Path) -> None:
    cell.main("driver", 0, tmp_path, episodes=12)
    found = json.loads((tmp_path / "result.json").read_text())["populations"]
    assert list(found) == list(POPULATIONS)
    assert all(one["routes"] == 12 and 30.0 < one["driving"] <= 100.0 for one in found.values())
    assert len({one["driving"] for one in found.values()}) > 1


def test_fine_tuned_planners_start_from_a_clone_of_their_kind() -> None:
    for name, planner in PLANNERS.items():
        if planner.base is not None:
            assert planner.base in CLONES
            ours, theirs = (cell.preset_cfg(one, 0) for one in (name, planner.base))
            assert changed_options(ours.sim) == changed_options(theirs.sim), name
            # a steered policy has the clone inside
            assert name == "dsrl" or ours.policy == theirs.policy, name


def test_cells_share_a_clone_and_drive_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = cell.preset_cfg

    def short(name: str, seed: int) -> Any:
        cfg = full(name, seed)
        cuts = {"updates": 4, "updates_per_iteration": 2, "batch": 16} if name in CLONES else {}
        cuts |= {"env_steps": 128, "num_steps": 4, "minibatch": 32, "epochs": 1} if name == "reinflow" else {}
        cfg = replace(cfg, algo=replace(cfg.algo, **cuts), sim=replace(cfg.sim, num_envs=16))
        return replace(cfg, evaluation=replace(cfg.evaluation, num_envs=8, episodes=8))

    monkeypatch.setattr(cell, "preset_cfg", short)
    monkeypatch.setattr(cell, "DEMOS", 4)
    monkeypatch.setattr(cell, "POPULATIONS", ("moderate",))
    found = {}
    for name in ("flow", "reinflow"):
        out = tmp_path / f"attempt-{name}" / "out"
        out.mkdir(parents=True)
        cell.main(name, 0, out, episodes=12)
        found[name] = json.loads((out / "result.json").read_text())
        assert found[name]["populations"]["moderate"]["routes"] == 12
    clones = sorted(path.name for path in (tmp_path / "clones").iterdir())
    assert [one.rsplit("-", 1)[0] for one in clones] == ["drives-4-0", "flow-4-0"]
    tuned = json.loads((tmp_path / "attempt-reinflow" / "out" / "run" / "config.json").read_text())["config"]
    assert tuned["init_from"].endswith(f"clones/{clones[1]}")


def test_clones_of_other_settings_or_revisions_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    how = {"noise": 0.2}
    found = cell.settings_hash({"updates": 4}, how)
    assert found == cell.settings_hash({"updates": 4}, how) and len(found) == 12
    assert found != cell.settings_hash({"updates": 5}, how)
    monkeypatch.setattr(cell, "REVISION", bench.REVISION + 1)
    assert found != cell.settings_hash({"updates": 4}, how)


def test_an_unknown_planner_is_refused(tmp_path: Path) -> None:
    with raises_naming(ConfigError, "planner", "drver", nearest="driver"):
        cell.main("drver", 0, tmp_path)


def test_figures_of_the_ablation_by_hand() -> None:
    scores = {"driving": 40.0, "completion": 0.5, "success": 0.25, "collisions": 30}
    results = [
        {"method": name, "task": bench.SIM, "seed": 0, "result": {**scores, "driving": 40.0 + 10 * k}}
        for k, name in enumerate(ARMS)
    ]
    figures = bench.aggregate(results)
    assert [figures[f"{name}_driving"].value for name in ARMS] == [40.0, 50.0, 60.0, 70.0]
    document = {"figures": {name: figure.to_json() for name, figure in figures.items()}}
    assert "| paths and speeds by imitation | 40.0 | 50.0 | 25.0 | 30.0 | 1 |" in bench.table(document)
    # each arm is the one before and one thing more
    assert [dict(arm.policy) for arm in ARMS.values()] == [{}, {"aligned": False}, {}, {}]
    cells = [one for one in bench.cells(False) if one.method in ARMS]
    assert len(cells) == len(ARMS) * len(SEEDS)


def test_arms_have_as_many_updates_as_each_other() -> None:
    for arm in ARMS.values():
        cfg = PerladCfg(**arm.algo)
        assert cfg.imitation_updates + cfg.updates == bench.UPDATES


def test_a_cell_of_the_ablation_runs(tmp_path: Path) -> None:
    small = {"imitation_updates": 2, "updates": 2, "minibatch": 8, "forecaster_updates": 1, "forecaster_minibatch": 2}
    perlad_cell.main("perlad", 0, tmp_path, episodes=4, logged=2, every=20, **small)
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["routes"] == 4
    assert 0.0 <= found["driving"] <= 100.0


def test_an_unknown_arm_is_refused(tmp_path: Path) -> None:
    with raises_naming(ConfigError, "arm", "perled", nearest="perlad"):
        perlad_cell.main("perled", 0, tmp_path)
