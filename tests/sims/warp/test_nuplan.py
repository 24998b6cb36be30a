"""nuPlan-style logs: databases of ours in that layout."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import robotrl
from robotrl.errors import ConfigError, DataError
from robotrl.sims.driving.logs.layout import read_log
from robotrl.sims.driving.logs.nuplan import EGO_M, REAR_TO_CENTER_M, read_nuplan
from robotrl.sims.driving.logs.tracks import LeftOut

TABLES = """
CREATE TABLE scene (token BLOB, log_token BLOB, name TEXT);
CREATE TABLE lidar_pc (token BLOB, scene_token BLOB, ego_pose_token BLOB, timestamp INTEGER);
CREATE TABLE ego_pose (token BLOB, timestamp INTEGER, x REAL, y REAL, z REAL, qw REAL, qx REAL, qy REAL, qz REAL,
                       vx REAL, vy REAL);
CREATE TABLE lidar_box (token BLOB, lidar_pc_token BLOB, track_token BLOB, x REAL, y REAL, yaw REAL, length REAL,
                        width REAL, vx REAL, vy REAL);
CREATE TABLE track (token BLOB, category_token BLOB);
CREATE TABLE category (token BLOB, name TEXT);
CREATE TABLE scenario_tag (lidar_pc_token BLOB, type TEXT);
"""
YAW = 0.4
FAR = (664_000.0, 3_998_000.0)
"""The layout has UTM coordinates."""


def write(path: Path, scans: int = 121, scenes: int = 1, gap_at: int | None = None) -> Path:
    """An ego at 8 m/s in the direction `YAW`, scanned at 20 Hz; a car 15 m ahead, a cone; half a second is missing."""
    base = sqlite3.connect(path)
    base.executescript(TABLES)
    cos, sin = math.cos(YAW), math.sin(YAW)
    for k, name in enumerate(("vehicle", "traffic_cone")):
        base.execute("INSERT INTO category VALUES (?, ?)", (b"c%d" % k, name))
        base.execute("INSERT INTO track VALUES (?, ?)", (b"t%d" % k, b"c%d" % k))
    for s in range(scenes):
        base.execute("INSERT INTO scene VALUES (?, ?, ?)", (b"s%d" % s, b"log", f"scene-{s:04d}"))
        for k in range(scans):
            pc, pose = b"p%d-%d" % (s, k), b"e%d-%d" % (s, k)
            late = 0.5 if gap_at is not None and k >= gap_at else 0.0
            time = 0.05 * k + late
            stamp = 1_620_000_000_000_000 + s * 10**9 + round(1e6 * time)
            base.execute("INSERT INTO lidar_pc VALUES (?, ?, ?, ?)", (pc, b"s%d" % s, pose, stamp))
            x, y = FAR[0] + 8.0 * time * cos, FAR[1] + 8.0 * time * sin
            turn = (math.cos(YAW / 2), 0.0, 0.0, math.sin(YAW / 2))
            base.execute(
                "INSERT INTO ego_pose VALUES (?,?,?,?,?,?,?,?,?,?,?)", (pose, stamp, x, y, 600.0, *turn, 8.0, 0.1)
            )
            car = (x + 15.0 * cos, y + 15.0 * sin, YAW, 4.8, 2.1, 8.0 * cos, 8.0 * sin)
            cone = (FAR[0] + 10.0, FAR[1] - 6.0, 0.0, 0.4, 0.3, 0.0, 0.0)
            for t, box in enumerate((car, cone)):
                if t == 0 or k >= 40:
                    base.execute("INSERT INTO lidar_box VALUES (?,?,?,?,?,?,?,?,?,?)", (b"", pc, b"t%d" % t, *box))
            base.execute(
                "INSERT INTO scenario_tag VALUES (?, ?)", (pc, "following_lane_with_lead" if k > 20 else "other")
            )
    base.commit()
    base.close()
    return path


def test_scene_becomes_a_clip_at_10_hz(tmp_path: Path) -> None:
    index = read_nuplan([write(tmp_path / "a.db")], tmp_path / "log", slots=3)
    log = read_log(tmp_path / "log")
    (clip,) = log.meta.clips
    assert log.meta == index and (clip.name, clip.steps, clip.map) == ("a-scene-0000-0", 61, None)
    assert clip.scenario == "following_lane_with_lead"
    assert (clip.ego_length_m, clip.ego_width_m) == EGO_M
    way = 0.8 * np.arange(61)
    assert np.allclose(log.steps["x"], way * math.cos(YAW), atol=1e-3)
    assert np.allclose(log.steps["y"], way * math.sin(YAW), atol=1e-3)
    assert np.allclose(log.steps["yaw"], YAW) and np.allclose(log.steps["speed"], math.hypot(8.0, 0.1))
    car, cone = log.agents[:, 0], log.agents[:, 1]
    if car["kind"][0] != 1:
        car, cone = cone, car
    assert car["kind"].tolist() == [1] * 61 and cone["kind"].tolist() == [0] * 20 + [4] * 41
    # its center from the ego's center: the logged point is the middle of the rear axle
    apart = np.hypot(car["x"] - log.steps["x"], car["y"] - log.steps["y"])
    assert np.allclose(apart, 15.0 - REAR_TO_CENTER_M, atol=1e-3)
    assert np.allclose(car["speed"], 8.0) and np.allclose(cone["speed"], 0.0)


def test_sim_drives_in_a_clip_without_lanes(tmp_path: Path) -> None:
    read_nuplan([write(tmp_path / "a.db")], tmp_path / "log")
    sim = robotrl.make_sim("bev/warp", num_envs=1, log=tmp_path / "log", threads=1)
    obs = sim.reset(options={"state_ids": [0]})
    scalars = dict(zip(sim.observation_spec["scalars"].names, obs["scalars"][0].tolist(), strict=True))
    assert abs(scalars["route_offset"]) < 0.05 and scalars["heading_error_cos"] == pytest.approx(1.0, abs=1e-3)
    gap = 15.0 - REAR_TO_CENTER_M - 0.5 * (EGO_M[0] + 4.8)
    assert scalars["leader_gap"] == pytest.approx(gap / 60.0, abs=0.01)


def test_gaps_and_length_cut_clips(tmp_path: Path) -> None:
    index = read_nuplan([write(tmp_path / "a.db", gap_at=60)], tmp_path / "log", clip_s=2.0)
    # 30 steps, half a second that is missing, 31 steps; of at most 20 and at least 10
    assert [clip.steps for clip in index.clips] == [20, 10, 20, 11]
    assert [clip.name for clip in index.clips] == [f"a-scene-0000-{k}" for k in range(4)]


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    """30 and 31 steps, at most 25 in a clip: rests of 5 and 6 are too short. Of two road users one is kept."""
    left_out = LeftOut()
    path = write(tmp_path / "a.db", gap_at=60)
    index = read_nuplan([path], tmp_path / "log", slots=1, clip_s=2.5, left_out=left_out)
    assert [clip.steps for clip in index.clips] == [25, 25]
    assert left_out == LeftOut(pieces=2, steps=11, road_users=2)


def test_scenes_are_split(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.db", scans=30, scenes=7), write(tmp_path / "b.db", scans=30, scenes=3)]
    index = read_nuplan(paths, tmp_path / "log")
    assert [clip.split for clip in index.clips] == ["train"] * 8 + ["val", "test"]
    index = read_nuplan(paths, tmp_path / "other", split="test")
    assert {clip.split for clip in index.clips} == {"test"}


def changed(path: Path, sql: str) -> None:
    base = sqlite3.connect(path)
    base.execute(sql)
    base.commit()
    base.close()


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no table": (lambda p: changed(p, "DROP TABLE lidar_box"), "a.db has no table 'lidar_box'"),
    "no column": (lambda p: changed(p, "ALTER TABLE ego_pose DROP COLUMN qz"), "'ego_pose' has no column 'qz'"),
    "no pose": (lambda p: changed(p, "DELETE FROM ego_pose WHERE rowid = 5"), "a scan of a scene has no pose"),
    "one time": (lambda p: changed(p, "UPDATE lidar_pc SET timestamp = 3"), "two scans of a scene have one timestamp"),
    "no database": (lambda p: p.write_bytes(b"hello" * 99), "a.db cannot be read"),
    "missing": (lambda p: p.unlink(), "a.db does not exist"),
    "too short": (lambda p: changed(p, "DELETE FROM lidar_pc WHERE rowid > 9"), "has no clips"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_databases_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    spoil, says = BAD[kind]
    path = write(tmp_path / "a.db", scans=40)
    spoil(path)
    with pytest.raises(DataError, match=says) as error:
        read_nuplan([path], tmp_path / "log")
    assert "\n" not in str(error.value)


def test_length_of_clips_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"clip_s is 0.5: expected a number from 1"):
        read_nuplan([write(tmp_path / "a.db")], tmp_path / "log", clip_s=0.5)
