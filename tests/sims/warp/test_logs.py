"""Driving logs: what is written is read back, and a bad log is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import robotrl
from robotrl.errors import ConfigError, DataError
from robotrl.sims.driving.logs import layout
from robotrl.sims.driving.logs.layout import read_log
from robotrl.sims.driving.logs.roads import builder_of, path_route
from robotrl.sims.driving.logs.writer import GrowingNpy, LogWriter
from robotrl.sims.driving.roads.lane_index import lane_index
from robotrl.sims.driving.roads.lanes import Control
from tests.kits.warp_kit import (
    STEPS,
    agents_of,
    centerline,
    frame_cfg,
    frames_of,
    poses_on,
    roads,
    small_log,
    steps_of,
    write_log,
)

POSES = poses_on(centerline(), 5.0 + 0.8 * np.arange(STEPS))


def clip(**changed: Any) -> dict[str, Any]:
    """Arguments of a good clip, some changed."""
    given = {
        "name": "one",
        "split": "train",
        "steps": steps_of(POSES, 8.0),
        "agents": agents_of(np.random.default_rng(0), 3),
        "route": centerline()[:200],
        "map_name": "bend",
        "frames": frames_of(frame_cfg("raster", 16, 1.0), POSES),
    }
    return given | changed


def writer(path: Path) -> LogWriter:
    out = LogWriter(path, "tests", 3, frame_cfg("raster", 16, 1.0))
    out.add_map("bend", roads())
    return out


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    given = clip(scenario="bend", size_m=(4.0, 1.5), lights=np.ones((STEPS, 2), np.int8))
    with writer(tmp_path / "log") as out:
        out.add_clip(**clip(name="first"))
        out.add_clip(**given)
    log = read_log(tmp_path / "log")
    found = log.meta.clips[1]
    assert found == layout.ClipCfg("one", "train", STEPS, STEPS, 200, 200, "bend", "bend", 4.0, 1.5)
    assert log.meta.frames == frame_cfg("raster", 16, 1.0)
    assert log.frames is not None
    for array, rows in ((log.steps, given["steps"]), (log.agents, given["agents"]), (log.frames, given["frames"])):
        assert np.array_equal(array[STEPS:], rows)
    # a clip without lights beside one with two
    assert log.lights.tolist() == [[-1, -1]] * STEPS + [[1, 1]] * STEPS
    assert np.array_equal(log.routes[200:], given["route"])
    assert log.clips_of("train") == [0, 1] and log.clips_of("val") == []
    assert json.loads((tmp_path / "log" / "log.json").read_text())["schema_version"] == 1


def test_growing_file_is_read_by_numpy(tmp_path: Path) -> None:
    rows = np.arange(12, dtype="<i4").reshape(4, 3)
    out = GrowingNpy(tmp_path / "a.npy", np.dtype("<i4"), (3,))
    assert [out.add(rows[:1]), out.add(rows[1:])] == [0, 1]
    out.finish()
    assert np.array_equal(np.load(tmp_path / "a.npy"), rows)


def back_in_time(steps: Any) -> Any:
    out = steps.copy()
    out["time_s"][7] = out["time_s"][6] - 0.01
    return out


def changed(records: Any, field: str, value: float, at: Any = 11) -> Any:
    out = records.copy()
    out[field][at] = value
    return out


STEPS_OK = clip()["steps"]
AGENTS_OK = clip()["agents"]
FRAMES_OK = clip()["frames"]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"frames": FRAMES_OK[:-1]}, "clip 'one' has 89 frames and 90 poses: expected one frame for each pose"),
        ({"frames": [*FRAMES_OK[:5], FRAMES_OK[5, 1:], *FRAMES_OK[6:]]}, r"step 5: the frame is uint16 \(31, 32\)"),
        ({"frames": FRAMES_OK.astype(np.int32)}, "the frame is int32 .*: expected uint16"),
        ({"frames": None}, "clip 'one' has no frames"),
        ({"steps": back_in_time(STEPS_OK)}, "clip 'one', step 7: time_s goes back from 5.6 to 5.59"),
        ({"steps": changed(STEPS_OK, "time_s", 6.18)}, "step 11: 0.18 s after the step before: expected 0.1 s"),
        ({"steps": changed(STEPS_OK, "yaw", np.nan)}, "step 11: yaw is nan: expected a finite number"),
        ({"steps": changed(STEPS_OK, "x", 4e6)}, "pose 4,000,000 m from the origin: expected .* subtract an origin"),
        ({"steps": STEPS_OK[:9]}, "9 rows|90 rows"),
        ({"agents": AGENTS_OK[:-1]}, "89 rows of road users and 90 poses"),
        ({"agents": changed(AGENTS_OK, "kind", 7, (3, 1))}, "road users of kind 7: expected 0 to 4"),
        ({"agents": changed(AGENTS_OK, "x", np.inf, (3, 1))}, "road user whose x is not finite"),
        ({"agents": changed(AGENTS_OK, "width", 0.0, (3, 1))}, "road user without a size"),
        ({"agents": np.zeros((STEPS, 4), layout.AGENT)}, "4 slots for road users: expected 3 or fewer"),
        ({"route": centerline()[:1]}, "expected 2 or more"),
        ({"route": np.full((5, 2), 3.0)}, "route without length"),
        ({"map_name": "bent"}, "names the map 'bent', which was not added"),
        ({"lights": np.zeros((3, 1), np.int8)}, "3 states of lights and 90 poses"),
        ({"lights": np.zeros((STEPS, 0), np.int8)}, "map 'bend' has 1 lights and clip 'one' the states of 0"),
        ({"size_m": (0.0, 1.0)}, "an ego of 0 by 1 m"),
    ],
)
def test_bad_clip_is_refused_by_name(bad: dict[str, Any], says: str, tmp_path: Path) -> None:
    out = writer(tmp_path / "log")
    with pytest.raises(DataError, match=says) as error:
        out.add_clip(**clip(**bad))
    assert "clip 'one'" in str(error.value) and "\n" not in str(error.value)


def test_log_without_index_was_not_finished(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stop"), writer(tmp_path / "log") as out:
        out.add_clip(**clip())
        raise RuntimeError("stop")
    with pytest.raises(DataError, match=r"has no log\.json"):
        read_log(tmp_path / "log")


def test_folder_with_contents_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(ConfigError, match="exists: expected a new folder"):
        LogWriter(tmp_path, "tests", 1)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "log", pixels=16, ppm=1.0, clips=(("train", 2),))


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the index of a log."""
    index = json.loads((path / "log.json").read_text())
    change(index)
    (path / "log.json").write_text(json.dumps(index))


def resave(path: Path, change: Callable[[Any], Any]) -> None:
    """Change an array of a log."""
    np.save(path, change(np.load(path)))


def moved(steps: Any) -> Any:
    return changed(steps, "y", 900.0)


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "fewer frames": (lambda p: resave(p / "frames.npy", lambda a: a[:-3]), "177 frames and steps.npy 180 poses"),
    "fewer rows": (lambda p: resave(p / "agents.npy", lambda a: a[:-1]), "agents.npy has 179 rows and .* 180 poses"),
    "lights": (lambda p: resave(p / "lights.npy", lambda a: a[:-1]), "lights.npy has 179 rows"),
    "fewer lights": (
        lambda p: resave(p / "lights.npy", lambda a: np.ascontiguousarray(a[:, :0])),
        "map 'bend' has 1 lights and lights.npy the states of 0: expected 1 or more",
    ),
    "no lights": (lambda p: (p / "lights.npy").unlink(), "map 'bend' has 1 lights and lights.npy the states of 0"),
    "other type": (lambda p: resave(p / "routes.npy", lambda a: a.astype(np.float32)), "routes.npy holds float32"),
    "frames of another kind": (lambda p: resave(p / "frames.npy", lambda a: a[..., None]), "expected uint16 of 3 axes"),
    "time": (lambda p: resave(p / "steps.npy", back_in_time), "clip 'train-0', step 7: time_s goes back"),
    "far pose": (
        lambda p: resave(p / "steps.npy", moved),
        r"clip 'train-0', step 11: the pose .* outside the map 'bend'",
    ),
    "no steps": (lambda p: (p / "steps.npy").unlink(), "has no steps.npy"),
    "truncated": (lambda p: (p / "steps.npy").write_bytes((p / "steps.npy").read_bytes()[:700]), "cannot be read"),
    "pointer": (lambda p: (p / "steps.npy").write_bytes(b"version https://git-lfs.github.com/spec"), "git-LFS pointer"),
    "no map": (lambda p: (p / "maps" / "bend.npz").unlink(), "does not exist: expected the lanes"),
    "no index": (lambda p: (p / "log.json").unlink(), "has no log.json"),
    "version": (lambda p: edit(p, lambda i: i.update(schema_version=9)), "written by a newer robotrl"),
    "no clips": (lambda p: edit(p, lambda i: i.update(clips=[])), "expected a list of one or more"),
    "split": (lambda p: edit(p, lambda i: i["clips"][0].update(split="tran")), "did you mean 'train'"),
    "unknown field": (lambda p: edit(p, lambda i: i["clips"][0].update(spilt="val")), "did you mean 'split'"),
    "two of a name": (lambda p: edit(p, lambda i: i["clips"][0].update(name="train-1")), "two clips 'train-1'"),
    "too many steps": (lambda p: edit(p, lambda i: i["clips"][1].update(steps=91)), "has the steps 90 to 181"),
    "names": (lambda p: edit(p, lambda i: i["frames"].update(names=["a"])), "0 channels and log.json 1 names"),
    "scale": (lambda p: edit(p, lambda i: i["frames"].update(pixels_per_m=0.0)), "pixels_per_m 0.0: expected above 0"),
    "missing field": (lambda p: edit(p, lambda i: i["clips"][0].pop("steps")), "steps"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_log_is_refused_by_name(kind: str, log: Path) -> None:
    spoil, says = BAD[kind]
    read_log(log)
    spoil(log)
    with pytest.raises(DataError, match=says) as error:
        read_log(log)
    assert "\n" not in str(error.value) and "log" in str(error.value)
    # the sim refuses it as well
    with pytest.raises(DataError, match=says):
        robotrl.make_sim("bev/warp", num_envs=1, log=log)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("lane_width", lambda a: a[:-1], "lane_width has 1 lanes and lane_sizes 2"),
        ("lane_sizes", lambda a: a + 1, "as many in all"),
        ("lane_left", lambda a: a + 2, "lane_left names lane 3: expected -1 to 1"),
        ("lane_points", lambda a: np.where(a > 100, np.nan, a), "lane_points holds a number that is not finite"),
        ("lane_control", lambda a: a + 3, "lane_control holds 4"),
        ("lane_light", lambda a: a - 1, "a lane with a light has lane_light -1"),
        ("parked", lambda a: a[:, :4], r"parked is float64 \(1, 4\): expected \(parked cars, 5\)"),
        ("lane_speed", lambda a: a.astype(int), "lane_speed is int64"),
    ],
)
def test_bad_map_is_refused_by_name(name: str, change: Callable[[Any], Any], says: str, tmp_path: Path) -> None:
    arrays = roads()
    arrays[name] = change(arrays[name])
    with pytest.raises(DataError, match=says):
        LogWriter(tmp_path / "log", "tests", 1).add_map("bend", arrays)
    arrays.pop(name)
    with pytest.raises(DataError, match=f"has no array '{name}'"):
        LogWriter(tmp_path / "other", "tests", 1).add_map("bend", arrays)


def test_roads_become_a_network() -> None:
    builder = builder_of("bend", roads())
    assert [lane.left for lane in builder.lanes] == [1, -1] and [lane.right for lane in builder.lanes] == [-1, 0]
    assert (builder.lanes[0].control, builder.lanes[0].stop_s) == (Control.LIGHT, 60.0)
    assert len(builder.signals) == 1 and len(builder.crosswalks) == 1 and len(builder.parked) == 1


def test_route_takes_the_lanes_below_a_driven_way() -> None:
    """A way that changes lanes after 50 m: on the right one, then on the left one."""
    builder = builder_of("bend", roads())
    right, left = centerline(), centerline(3.5)
    share = np.clip((np.arange(150) - 50.0) / 20.0, 0.0, 1.0)[:, None]
    way = right[:150] * (1 - share) + left[:150] * share
    route = path_route(builder, lane_index(builder), way)
    changes = np.flatnonzero(np.diff(route.lane))
    assert route.lane[0] == 0 and route.lane[-1] == 1 and len(changes) == 1
    assert 55 <= changes[0] <= 65
    # positions along both lanes go on
    assert (np.diff(route.lane_s) > 0.5).all() and (np.diff(route.lane_s) < 1.5).all()


def test_log_is_required() -> None:
    with pytest.raises(ConfigError, match=r"log of bev/warp is None: expected .* `robotrl driving-log record"):
        robotrl.make_sim("bev/warp", num_envs=1)
    assert Path(small_log()).is_dir()
