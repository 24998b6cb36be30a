"""`robotrl driving-log`: records a log, makes logs of other layouts, and refuses what it cannot use."""

from __future__ import annotations

from pathlib import Path

import pytest

from robotrl.cli.main import main
from robotrl.sims.driving.logs.layout import read_log
from tests.sims.warp.test_nuplan import write as write_nuplan
from tests.sims.warp.test_waymo import scenario
from tests.sims.warp.test_waymo import write as write_waymo


def test_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "log"
    numbers = ["--train", "2", "--val", "1", "--test", "0", "--num-envs", "3", "--pixels", "32", "--margin-m", "4"]
    sim = ["--sim.scenarios", "straight", "--sim.agents", "8", "--sim.threads", "1"]
    assert main(["driving-log", "record", "--out", str(out), *numbers, *sim]) == 0
    said = capsys.readouterr().out
    log = read_log(out)
    assert f"{len(log.steps)} steps in" in said and "3 starts were driven" in said
    assert log.frames is not None and log.frames.shape[1:] == (48, 48)
    assert {clip.scenario for clip in log.meta.clips} == {"straight"}
    assert {clip.split for clip in log.meta.clips} <= {"train", "val"}


def test_other_layouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = write_nuplan(tmp_path / "a.db", scans=40)
    assert main(["driving-log", "nuplan", str(database), "--out", str(tmp_path / "one"), "--split", "val"]) == 0
    said = capsys.readouterr().out
    assert "20 steps in 0 train, 1 val, 0 test clips" in said and "left out" not in said
    short = ["--clip-s", "1.5", "--slots", "1", "--out", str(tmp_path / "short")]
    assert main(["driving-log", "nuplan", str(database), *short]) == 0
    said = capsys.readouterr().out
    assert "left out: 5 steps in 1 pieces" in said
    records = write_waymo(tmp_path / "b.tfrecord", scenario())
    assert main(["driving-log", "waymo", str(records), "--out", str(tmp_path / "two"), "--slots", "4"]) == 0
    assert "30 steps in 1 train, 0 val, 0 test clips" in capsys.readouterr().out
    assert read_log(tmp_path / "two").agents.shape == (30, 4)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["recrd"], "did you mean 'record'"),
        (["record", "--out", "{tmp}"], "exists already"),
        (["record", "--out", "{tmp}/log", "--sim", "mujoco/reach"], "is no driving sim"),
        (["record", "--out", "{tmp}/log", "--train", "0", "--val", "0", "--test", "0"], "expected one start or more"),
        (["record", "--out", "{tmp}/log", "--num-envs", "0"], "--num-envs is 0"),
        (["waymo", "{tmp}/no.tfrecord", "--out", "{tmp}/log"], "no.tfrecord does not exist"),
        (["nuplan", "{tmp}/no.db", "--out", "{tmp}/log"], "no.db does not exist"),
        (["nuplan", "{tmp}/here", "--out", "{tmp}/log", "--slots", "0"], "--slots is 0"),
    ],
)
def test_refusals(argv: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "here").touch()
    assert main(["driving-log", *(word.format(tmp=tmp_path) for word in argv)]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "log").exists()
