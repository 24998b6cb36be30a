"""Folders that are made one from another: once, and to the end after a stop."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

import tests.kits.learner_kit as kit
import tests.training.test_resume as resuming
from benchmarks.kit.stages import have, have_run
from robotrl.algos.bc import BcCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars
from tests.training.test_resume import assert_same_end, walk_is_known  # pyright: ignore[reportUnusedImport] # noqa: F401

WORK = """
from tests.benchmarks.test_stages import clone_cfg, have_run
from tests.training.test_resume import KillAt
from functools import partial
import benchmarks.kit.stages as kept
SIMS._rows["test/walk"] = "tests.kits.walk_sim:make"
kept.train = partial(kept.train, callbacks=[KillAt(3)])
have_run(run, clone_cfg(run.parent), "before")
"""


def clone_cfg(folder: Path) -> TrainCfg[BcCfg, object]:
    """A clone of walks in five iterations."""
    algo = BcCfg(updates=50, updates_per_iteration=10, batch=16)
    sim, evaluation = SimCfg("test/walk", 2), EvalCfg(2, 6, 4, 0)
    return TrainCfg(sim, algo, kit.GAUSSIAN, dataset=str(folder / "walks"), evaluation=evaluation)


def test_a_run_that_was_killed_goes_on(tmp_path: Path):
    kit.write_walks(tmp_path / "walks")
    whole = have_run(tmp_path / "whole", clone_cfg(tmp_path), "before")
    process = resuming.start(WORK, tmp_path / "cut")
    _, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, err
    latest = Run.open(tmp_path / "cut").latest()
    assert latest is not None and latest.step == 2
    begun = json.loads((tmp_path / "cut.begun.json").read_text())
    mark = have_run(tmp_path / "cut", clone_cfg(tmp_path), "before")
    assert mark == begun["mark"] != whole
    assert not (tmp_path / "cut.begun.json").exists()
    assert_same_end(tmp_path / "whole", tmp_path / "cut")
    learned = [row["learn_s"] for row in read_scalars(tmp_path / "cut" / "scalars.jsonl")]
    assert learned == sorted(learned) and len(learned) == 5  # what was learned before the stop counts
    sessions = json.loads((tmp_path / "cut" / "run.json").read_text())["sessions"]
    assert [session["from_step"] for session in sessions] == [None, 2]
    assert have_run(tmp_path / "cut", clone_cfg(tmp_path), "before") == mark
    assert have_run(tmp_path / "cut", clone_cfg(tmp_path), "something else") != mark


@pytest.mark.parametrize("change", [{"n": 2}, None])
def test_only_what_was_begun_the_same_way_goes_on(tmp_path: Path, change: dict[str, int] | None):
    path = tmp_path / "a"
    found: list[list[str]] = []

    def make(fails: bool) -> None:
        path.mkdir(exist_ok=True)
        found.append(sorted(x.name for x in path.iterdir()))
        (path / f"part-{len(found)}").write_text("")
        if fails:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        have(path, {"n": 1}, "x", lambda: make(True))
    assert not path.with_suffix(".json").exists()
    mark = have(path, change or {"n": 1}, "x", lambda: make(False))
    assert found == [[], [] if change else ["part-1"]]
    assert have(path, change or {"n": 1}, "x", lambda: make(True)) == mark
