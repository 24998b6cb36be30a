"""The planner table: its cells, its figures by hand, and the rule-based driver for real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.driving.cell import world_of
from benchmarks.planner import bench, cell, perlad, perlad_cell, populations, rad2, rad2_cell, rift, rift_cell, settings
from benchmarks.planner.perlad import ARMS
from benchmarks.planner.populations import CLONES, FAULTS, NO_FAULT, PLANNERS, POPULATIONS, STUDY
from benchmarks.planner.settings import SEEDS
from robotrl.algos.perlad import PerladCfg
from robotrl.config import changed_options
from robotrl.errors import ConfigError
from robotrl.registry import TRAFFIC, make_sim
from tests.kits.refusals import raises_naming


def record(method: str, seed: int, scores: tuple[float, ...]) -> dict[str, Any]:
    """A finished cell."""
    driven = {name: {"driving": score} for name, score in zip(POPULATIONS, scores, strict=True)}
    return {"method": method, "task": settings.SIM, "seed": seed, "result": {"populations": driven}}


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
    whole = cell.cloned
    monkeypatch.setattr(cell, "cloned", lambda name, seed, out: whole(name, seed, out, demos=4))
    monkeypatch.setattr(cell, "POPULATIONS", ("moderate",))
    monkeypatch.setattr(cell, "FAULTS", {name: FAULTS[name] for name in (NO_FAULT, "actions 0.2 s late")})
    found = {}
    for name in ("flow", "reinflow"):
        out = tmp_path / f"attempt-{name}" / "out"
        out.mkdir(parents=True)
        cell.main(name, 0, out, episodes=12)
        found[name] = json.loads((out / "result.json").read_text())
        assert found[name]["populations"]["moderate"]["routes"] == 12
        assert [one["routes"] for one in found[name]["faults"].values()] == [12, 12]
    clones = sorted(path.name for path in (tmp_path / "clones").iterdir())
    assert [one.rsplit("-", 1)[0] for one in clones] == ["drives-4-0", "flow-4-0"]
    tuned = json.loads((tmp_path / "attempt-reinflow" / "out" / "run" / "config.json").read_text())["config"]
    assert tuned["init_from"].endswith(f"clones/{clones[1]}")


def test_clones_of_other_settings_or_revisions_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    how = {"noise": 0.2}
    found = cell.settings_hash({"updates": 4}, how)
    assert found == cell.settings_hash({"updates": 4}, how) and len(found) == 12
    assert found != cell.settings_hash({"updates": 5}, how)
    monkeypatch.setattr(cell, "REVISION", settings.REVISION + 1)
    assert found != cell.settings_hash({"updates": 4}, how)


def test_an_unknown_planner_is_refused(tmp_path: Path) -> None:
    with raises_naming(ConfigError, "planner", "drver", nearest="driver"):
        cell.main("drver", 0, tmp_path)


def test_figures_of_the_ablation_by_hand() -> None:
    scores = {"driving": 40.0, "completion": 0.5, "success": 0.25, "collisions": 30}
    results = [
        {"method": name, "task": settings.SIM, "seed": 0, "result": {**scores, "driving": 40.0 + 10 * k}}
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
        assert cfg.imitation_updates + cfg.updates == perlad.UPDATES


def test_a_cell_of_the_ablation_runs(tmp_path: Path) -> None:
    small = {"imitation_updates": 2, "updates": 2, "minibatch": 8, "forecaster_updates": 1, "forecaster_minibatch": 2}
    perlad_cell.main("perlad", 0, tmp_path, episodes=4, logged=2, every=20, **small)
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["routes"] == 4
    assert 0.0 <= found["driving"] <= 100.0


def test_an_unknown_arm_is_refused(tmp_path: Path) -> None:
    with raises_naming(ConfigError, "arm", "perled", nearest="perlad"):
        perlad_cell.main("perled", 0, tmp_path)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_options_of_the_sim(fault: str) -> None:
    sim = make_sim(settings.SIM, num_envs=1, seed=0, obs="none", **cell.fault_options(fault))
    assert sim.control_dt_s == pytest.approx(0.1) and world_of(sim).num_envs == 1
    sim.close()


def test_a_mixture_is_trained_with_and_others_are_not() -> None:
    found = {name: cell.preset_cfg(name, 0).sim.options["traffic"] for name in ("ppo-mixture", *CLONES)}
    assert list(found.values()) == [("moderate", "timid", "aggressive"), ("moderate",), ("moderate",)]


def test_figures_of_faults_and_gaps_by_hand() -> None:
    results = []
    for seed in SEEDS:
        clone = record("flow", seed, (76.0,) * 7)
        tuned = record("reinflow", seed, (88.0 + 3 * seed,) * 7)
        tuned["result"]["faults"] = {NO_FAULT: {"driving": 90.0}, "actions 0.2 s late": {"driving": 81.0}}
        results += [clone, tuned]
    found = bench.aggregate(results)
    assert found["reinflow_gap"].value == pytest.approx(15 / 24) and found["reinflow_gap"].low == pytest.approx(0.5)
    assert found["reinflow_fault_actions 0.2 s late_kept"].value == pytest.approx(0.9)
    assert "flow_gap" not in found and f"flow_fault_{NO_FAULT}" not in found
    text = bench.table({"figures": {name: figure.to_json() for name, figure in found.items()}})
    assert "| of the gap, % | seeds |" in text
    assert "| 90.0 (90.0 to 90.0) | - | - | 81.0 (81.0 to 81.0), 90 (90 to 90) % | - | - | 3 |" in text


def test_the_study_of_clones_has_the_tables_clone_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert STUDY["clone-8000"] == populations.Cloning(populations.DEMOS)
    assert [one.seed for one in bench.cells(False) if one.method in STUDY] == [0] * len(STUDY)
    found = bench.aggregate([{"method": "clone-2000", "seed": 0, "result": {"driving": 70.0}}])
    assert found["clone-2000_val"].value == 70.0
    text = bench.table({"figures": {name: figure.to_json() for name, figure in found.items()}})
    assert text.splitlines()[-1] == "| 2,000 demonstrations | the preset's | 70.0 | 1 |"
    seen: list[Any] = []
    monkeypatch.setattr(cell, "cloned", lambda *given: seen.append(given) or tmp_path)
    monkeypatch.setattr(cell, "driven", lambda *given, **options: {"driving": 1.0, **options})
    cell.main("clone-8000-half", 0, tmp_path, episodes=4)
    assert seen == [("flow", 0, tmp_path, 8_000, 4_000)]
    assert json.loads((tmp_path / "result.json").read_text())["split"] == "val"


def test_cells_of_rad2_share_log_and_planner(tmp_path: Path) -> None:
    clips = {"train": 6, "val": 1, "test": 4}
    clone = "--algo.updates 4 --algo.updates-per-iteration 2 --algo.batch 8 --sim.num-envs 2"
    tune = "--algo.iterations 1 --algo.updates 2 --algo.minibatch 4 --sim.num-envs 4 --policy.candidates 3"
    found = {}
    for name in ("rad2-il", "rad2-discriminator"):
        out = tmp_path / f"attempt-{name}" / "out"
        out.mkdir(parents=True)
        rad2_cell.main(name, 0, out, episodes=4, clips=clips, demos=3, clone=clone, tune=tune)
        found[name] = json.loads((out / "result.json").read_text())
        assert set(rad2.COUNTED) <= set(found[name]) and 1 <= found[name]["episodes"] <= 4
    shared = tmp_path / f"rad2-{rad2.REVISION}-0"
    assert sorted(path.name for path in shared.iterdir()) == ["log", "planner", "plans"]
    with raises_naming(ConfigError, "arm", "rad3", nearest="rad2"):
        rad2_cell.main("rad3", 0, tmp_path)


def test_figures_of_rad2_by_hand() -> None:
    row = {"collisions": 0.4, "at_fault": 0.2, "cut": 0.1, "progress": 0.9, "success": 0.5}
    results = [
        {"method": "rad2-il", "seed": 0, "result": row},
        {"method": "rad2", "seed": 0, "result": {**row, "collisions": 0.1}},
    ]
    found = bench.aggregate(results)
    assert found["rad2_share"].value == pytest.approx(0.25) and found["rad2-il_share"].value == 1.0
    text = bench.table({"figures": {name: figure.to_json() for name, figure in found.items()}})
    assert "| + both | 0.100 | 0.200 | 10.0 | 0.900 | 50.0 | 25 | 1 |" in text


def test_cells_of_rift_share_a_clone(tmp_path: Path) -> None:
    small = ("--decisions", "1000", "--updates", "20", "--num-envs", "8")
    for name in ("rift-rules", "rift-assertive"):
        out = tmp_path / f"attempt-{name}" / "out"
        out.mkdir(parents=True)
        rift_cell.main(
            name, 0, out, steps=80, num_envs=4, clone=small,
            tune=("--epochs", "1", "--buffer", "64", "--num-envs", "4"),
        )  # fmt: skip
        found = json.loads((out / "result.json").read_text())
        assert set(rift.MEASURED) <= set(found)
        assert (found["realism"] == 1.0) == (name == "rift-rules")
    assert (tmp_path / f"rift-{rift.REVISION}-0").is_dir()
    with raises_naming(ConfigError, "arm", "rift-asertive", nearest="rift-assertive"):
        rift_cell.main("rift-asertive", 0, tmp_path)


def test_figures_of_rift_by_hand() -> None:
    row = {"realism": 0.8, "pace": 0.5, "headway_s": 2.5, "hard_braking": 0.01, "overlaps_per_mille": 30.0}
    results = [
        {"method": "rift-cloned", "seed": 0, "result": row},
        {"method": "rift-cautious", "seed": 0, "result": {**row, "realism": 0.76, "pace": 0.4}},
    ]
    found = bench.aggregate(results)
    assert found["rift-cautious_realism_ratio"].value == pytest.approx(0.95)
    text = bench.table({"figures": {name: figure.to_json() for name, figure in found.items()}})
    assert "| fine-tuned, style `cautious` | 0.760 | 0.400 | 2.50 | 1.0 | 30.0 | 95.0 | 1 |" in text
