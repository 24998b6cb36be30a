"""Cells of random kills: moments repeat, kills are counted, and a run that lost a worker and its head ends the same."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import bench, kills
from benchmarks.kit.figures import Figure
from robotrl.errors import DataError

TINY = (
    "--algo ppo --algo.num-steps 32 --algo.minibatch 128 --algo.engine eager --algo.critic-warmup-env-steps 0"
    f" --algo.env-steps {12 * 16 * 32}"
)


def test_moments_are_drawn_from_the_seed_and_every_kill_meets_a_run():
    first, again, other = (kills.drawn(random.Random(seed), 60, kills.EACH) for seed in (0, 0, 1))
    assert first == again != other
    for drawn in (first, other):
        at = [kill.iteration for kill in drawn]
        assert at == sorted(set(at)) and at[0] >= 1 and at[-1] < 58
        assert sorted(kill.what for kill in drawn) == ["head", *["worker"] * 6]
        assert all(0 <= kill.delay <= 1.5 for kill in drawn)
    assert kills.RUNS * kills.EACH["worker"] == 30 and kills.RUNS * kills.EACH["head"] == 5


def run(**changed: Any) -> dict[str, Any]:
    made = [{"what": "worker"}] * 6 + [{"what": "head"}]
    one = {"code": 0, "kills": made, "resumed": [[10, 10]], "orphans": [], "twice": [], "never": [], "equal": True}
    return one | changed


def test_figures_count_what_did_not_hold():
    found = {
        "runs": [
            run(),
            run(code=2, equal=False, resumed=[[10, 5]], orphans=["gcs_server", "raylet"], twice=[7], never=[8, 9]),
        ]
    }
    figures = kills.figures("kills", found)
    values = {name.removeprefix("kills_"): figure.value for name, figure in figures.items()}
    assert values == {
        "workers": 12,
        "heads": 2,
        "runs": 2,
        "ended": 1,
        "equal": 1,
        "resumed": 2,
        "resumed_at_checkpoint": 1,
        "versions_twice": 1,
        "versions_never": 2,
        "orphans": 2,
    }
    sweep = {"runs": 12, "finished": 4, "same_table": True, "met": True, "code": 0, "orphans": []}
    assert kills.figures("sweep-kill", sweep)["sweep_same_table"] == Figure(1, "")
    # a kill that came after the sweep's end shows nothing
    assert kills.figures("sweep-kill", sweep | {"met": False})["sweep_same_table"] == Figure(0, "")
    assert len(kills.rows(figures)) == len(figures)
    assert {"kills", "sweep-kill"} <= {cell.method for cell in bench.cells(quick=False)}


def test_versions_and_steps_are_counted_from_the_log(tmp_path: Path):
    rows = [(1, 1, 512), (2, 2, 1024), (3, 2, 1024), (4, 4, 2048)]
    text = '{{"step": {}, "wall_s": 1.0, "cluster/version": {}, "env_steps": {}}}\n'
    (tmp_path / "scalars.jsonl").write_text("".join(text.format(*row) for row in rows))
    found = kills.counted(tmp_path)
    assert (found["iterations"], found["twice"], found["never"]) == (4, [2], [3])
    assert not found["env_steps_counted_once"]
    with pytest.raises(DataError):
        kills.digest(tmp_path)


def test_a_run_that_loses_a_worker_and_its_head_ends_as_one_in_which_nothing_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("ray")
    monkeypatch.setattr(kills, "ORPHAN_S", 5.0)
    found = kills.kills(0, tmp_path, methods={"ppo": TINY}, runs=1, iterations=12, each={"worker": 1, "head": 1})
    (one,) = found["runs"]
    assert found["whole"]["ppo"]["code"] == one["code"] == 0
    assert sorted(kill["what"] for kill in one["kills"]) == ["head", "worker"]
    ((saved, first),) = one["resumed"]
    assert saved == first
    assert one["equal"] and one["iterations"] == 12 and one["env_steps_counted_once"]
    assert not one["twice"] and not one["never"]
    # Ray's agents end after a minute
    assert all(title.split("::")[-1].strip() in ("RuntimeEnvAgent", "DashboardAgent") for title in one["orphans"])
