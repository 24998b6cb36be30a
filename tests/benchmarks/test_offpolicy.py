"""The off-policy bench: what is concluded from its cells, gaps, its table, what it refuses."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kit.figures import Paired
from benchmarks.offpolicy import bench, methods, speed
from benchmarks.offpolicy.learn import FQL, UPDATES, fql, main
from robotrl.datasets.reader import read_dataset
from robotrl.errors import ConfigError
from tests.kits.refusals import raises_naming

RATES = {
    "sac float32": (120.0, 110.0, 130.0),
    "rlpd float32": (150.0, 140.0, 160.0),
    "stable_baselines3 float32": (40.0, 44.0, 40.0),
    "stable_baselines3_fused float32": (50.0, 44.0, 50.0),
}
MEASURED = speed.Measured(Paired(RATES), {"sac float32": 30.0, "rlpd float32": 50.0})


def result(cell: Any) -> dict[str, Any]:
    if cell.method == bench.SPEED:
        return {key: figure.to_json() for key, figure in speed.figures_of(MEASURED).items()}
    if cell.method == FQL:
        return {"return": 3500.0 + 10 * cell.seed, "data_return": 3100.0, "train_s": 200.0}
    ours = cell.method == bench.OURS
    return {"return": 3000.0 + 10 * cell.seed if ours else 2900.0 + 20 * cell.seed, "train_s": 100.0 + cell.seed}


def records(keep: Any = lambda cell: True) -> list[dict[str, Any]]:
    table = [cell for cell in bench.cells(False) if keep(cell)]
    return [{"method": c.method, "task": c.task, "seed": c.seed, "result": result(c)} for c in table]


def test_the_better_of_the_peers_counts() -> None:
    figures = speed.figures_of(MEASURED)
    sac = figures["updates_per_s_sac_float32"]
    assert (sac.value, sac.peer, sac.peer_value) == (120.0, "stable_baselines3_fused float32", 50.0)
    assert sac.ratio == pytest.approx(2.5) and sac.ratio_low == pytest.approx(2.4)
    assert "Stable-Baselines3's SAC: 40" in sac.note and "one torch thread each" in sac.note
    assert figures["compile_s_rlpd_float32"].value == 50.0
    alone = speed.figures_of(speed.Measured(Paired({"sac float32": (120.0,)}), {}))
    assert alone["updates_per_s_sac_float32"].ratio is None and set(alone) == {"updates_per_s_sac_float32"}


def test_the_table_has_every_cell_and_is_filled_in_part() -> None:
    table = bench.cells(False)
    assert len({cell.key for cell in table}) == len(table) == 1 + 2 * 5 + 3
    assert len(bench.cells(True)) == 4
    figures = bench.aggregate(records())
    assert figures["return"].value == pytest.approx(3020.0) and figures["return"].runs == 5
    assert "is at least the lower end" in figures["return"].note and "30,000 updates" in figures["return"].note
    assert figures["return_sb3"].value == pytest.approx(2940.0)
    assert figures["train"].value == 102.0
    assert figures["return_fql"].value == pytest.approx(3510.0) and figures["return_fql"].runs == 3
    assert figures["return_fql_data"].value == 3100.0
    few = bench.aggregate(records(lambda cell: cell.method == bench.OURS and cell.seed < 2))
    assert few["return"].peer_value is None and "updates_per_s_sac_float32" not in few
    assert bench.aggregate([]) == {}


def test_the_table_for_the_readme() -> None:
    figures = {key: figure.to_json() for key, figure in bench.aggregate(records()).items()}
    lines = bench.table({"figures": figures}).splitlines()
    assert lines[2] == "| SAC, float32 | **120 updates/s** | 50 | 2.5 (2.4 to 2.6) | 30 s |"
    assert lines[3].startswith("| RLPD, float32 | **150 updates/s** |")
    assert lines[5].startswith("| 30,000 updates |") and UPDATES == 30_000
    assert lines[7].startswith("| mujoco/halfcheetah | 3,020 (") and lines[7].endswith("| 5 and 5 |")
    assert lines[-1].startswith("| mujoco/halfcheetah | 3,510 (") and lines[-1].endswith(
        "| 3,100 (3,100 to 3,100) | 3 |"
    )


def test_a_dataset_of_random_actions_is_whole(tmp_path: Path) -> None:
    path = methods.write_random(methods.TASK, tmp_path / "demos", episodes=2, length=20)
    dataset = read_dataset(path)
    assert dataset.num_episodes == 2 and dataset.num_frames == 40 and dataset.fps == 20


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with raises_naming(ConfigError, "method", "sax", nearest="sac"):
        methods.make("sax", "float32")
    with raises_naming(ConfigError, "setting", "float16"):
        methods.make("sac", "float16")
    with raises_naming(ConfigError, "method", "sb"):
        main("sb", methods.TASK, 0, tmp_path)


def test_the_speed_cell_makes_its_trainers_from_a_module_that_exists() -> None:
    assert importlib.import_module(speed.TRAINERS).make is methods.make


def test_fql_learns_from_recorded_episodes_of_sac(tmp_path: Path) -> None:
    result = fql(methods.TASK, 0, tmp_path, 8, episodes=2, length=20, engine="eager")
    assert result["env_steps"] == 0 and len(result["returns"]) > 0
    rewards = read_dataset(tmp_path / "episodes").frames("next.reward")
    assert result["data_return"] == pytest.approx(float(rewards.sum()) / 2)
