"""Scenes of a log: observations as in episodes, frames, ways, lines and stop lines by hand, and what is refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import robotrl
from robotrl.errors import ConfigError, DataError
from robotrl.sims.driving.logs import layout
from robotrl.sims.driving.logs.writer import LogWriter
from robotrl.sims.warp.scenes import logged_way, map_lines, to_frame
from robotrl.sims.wrapper import WrappedSim, declared
from robotrl.spec.vehicle import CAR, DIVIDER, EDGE, OBSTACLE, PEDESTRIAN, HasLoggedScenes, LoggedScenes, SceneCfg
from tests.kits import warp_kit
from tests.kits.refusals import raises_naming

CFG = SceneCfg(every=10, history=10, horizon=20, agents=6, lines=24)


def sim(log: str | None = None, num_envs: int = 2) -> Any:
    made = robotrl.make_sim(
        "bev/warp", num_envs=num_envs, seed=0, log=log or warp_kit.small_log(None), actions="trajectory", threads=1
    )
    return made


@cache
def scenes() -> LoggedScenes:
    return sim().logged_scenes("train", CFG)


def test_every_tenth_step_with_past_and_future_is_a_scene() -> None:
    found = scenes()
    # clips of 90 steps: 10, 20, ..., 60
    assert sorted(zip(found.clip.tolist(), found.step.tolist(), strict=True)) == [
        (clip, step) for clip in range(5) for step in range(10, 70, 10)
    ]
    assert found.ego.shape == (30, 31, 4)
    assert {value.shape[0] for value in found.obs.values()} == {30}


def test_scenes_are_the_same_whatever_the_number_of_envs() -> None:
    other = sim(num_envs=5).logged_scenes("train", CFG)
    order = np.lexsort((scenes().step, scenes().clip))
    again = np.lexsort((other.step, other.clip))
    for name, values in scenes()._asdict().items():
        if name != "obs":
            assert np.array_equal(values[order], getattr(other, name)[again]), name
    for key, values in scenes().obs.items():
        assert np.array_equal(values[order], other.obs[key][again]), key


def test_observations_are_those_of_an_episode_that_is_driven_so() -> None:
    """Speed, route, others and limits; a clip's own steps are also where episodes of later laps start."""
    made, found = sim(num_envs=1), scenes()
    seen = 0
    for state_id in range(5, 60):
        clip, step = made.core.clip_of(state_id)
        if step % 10 or not 10 <= step < 70:
            continue
        made.queue_states([state_id])
        obs = made.reset()
        row = int(np.flatnonzero((found.clip == clip) & (found.step == step))[0])
        for key in ("route", "agents_mask", "lanes"):
            assert np.allclose(obs[key][0].numpy(), found.obs[key][row], atol=1e-4), key
        names = made.observation_spec["scalars"].names
        for name in ("speed", "route_offset", "heading_error_sin", "speed_limit", "stop_line_distance", "light_red"):
            k = names.index(name)
            assert obs["scalars"][0, k].item() == pytest.approx(found.obs["scalars"][row, k], abs=1e-4), name
        seen += 1
    assert seen > 2


def test_the_ego_is_at_the_origin_of_its_scene_and_moves_as_logged() -> None:
    found, log = scenes(), layout.read_log(Path(warp_kit.small_log(None)))
    assert np.abs(found.ego[:, 10, :3]).max() < 1e-5
    for row in (0, 17):
        clip = log.meta.clips[found.clip[row]]
        now = clip.first + found.step[row]
        steps = log.steps[now - 10 : now + 21]
        apart = np.hypot(steps["x"] - steps["x"][10], steps["y"] - steps["y"][10])
        assert np.allclose(np.hypot(found.ego[row, :, 0], found.ego[row, :, 1]), apart, atol=1e-3)
        assert np.allclose(found.ego[row, :, 3], steps["speed"], atol=1e-5)


def test_others_are_the_nearest_ones_in_the_egos_frame() -> None:
    found, log = scenes(), layout.read_log(Path(warp_kit.small_log(None)))
    row = 3
    clip = log.meta.clips[found.clip[row]]
    now = clip.first + int(found.step[row])
    here = np.array([log.steps[name][now] for name in ("x", "y", "yaw")])
    logged = log.agents[now]
    distance = np.hypot(logged["x"] - here[0], logged["y"] - here[1])
    near = np.sort(distance[(logged["kind"] > 0) & (distance < 60.0)])
    kinds = found.kind[row]
    others = np.hypot(*found.agents[row, 10, (kinds > 0) & (kinds != OBSTACLE), :2].T)
    assert np.allclose(np.sort(others), near, atol=1e-3)
    assert set(kinds[kinds > 0].tolist()) <= {CAR, PEDESTRIAN, OBSTACLE}
    assert found.there[row, 10, kinds > 0].all()


def test_a_parked_car_is_an_obstacle_that_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roads = {**warp_kit.roads(), "parked": np.array([[50.0, -4.0, 0.3, 4.5, 1.9]])}
    monkeypatch.setattr(warp_kit, "roads", lambda: roads)
    path = warp_kit.write_log(tmp_path / "log", None, clips=(("train", 1),))
    found = sim(str(path)).logged_scenes("train", CFG)
    rows, slots = np.nonzero(found.kind == OBSTACLE)
    assert len(rows)
    row, slot = rows[0], slots[0]
    track = found.agents[row, :, slot]
    assert np.abs(track - track[:1]).max() < 1e-5
    assert found.size[row, slot].tolist() == pytest.approx([4.5, 1.9])
    # 4 m to the right of the straight road
    assert track[0, 1] == pytest.approx(-4.0, abs=0.01)
    assert track[0, 2] == pytest.approx(0.3, abs=1e-3)


def test_frames_by_hand() -> None:
    pose = np.array([[2.0, 5.0, np.pi, 3.0]])
    assert to_frame(pose, np.array([2.0, 1.0, np.pi / 2]))[0].tolist() == pytest.approx([4.0, 0.0, np.pi / 2, 3.0])


def test_a_way_goes_straight_on_beyond_its_clip() -> None:
    steps = np.zeros(4, layout.STEP)
    steps["x"] = [0.0, 1.0, 2.0, 3.0]
    way, there = logged_way(steps, np.zeros(3), SceneCfg(points=3, spacing_m=2.0))
    assert way.tolist() == [[2.0, 0.0], [4.0, 0.0], [6.0, 0.0]]
    assert there.tolist() == [True, False, False]


def test_lines_are_the_outer_borders_of_the_lanes() -> None:
    """Two lanes of 3.5 m of one direction: edges 1.75 m right of the right one, and left of the left one."""
    made = sim()
    made.reset()
    lines, kinds = map_lines(made.core.pool, 0)
    assert set(kinds.tolist()) == {EDGE}
    straight = lines[lines[:, 2] < 100.0]
    assert sorted({round(float(y), 2) for y in straight[:, 1]}) == [-1.75, 5.25]
    assert (scenes().line_kind != DIVIDER).all()


def test_a_stop_line_is_closed_while_its_light_is_red() -> None:
    """The light at 60 m is green for 40 steps and more, and yellow after that: it is never red in this log."""
    found = scenes()
    assert not found.closed.any()
    ahead = found.stop[:, 0] < 100.0
    assert ahead.any()
    log = layout.read_log(Path(warp_kit.small_log(None)))
    for row in np.flatnonzero(ahead):
        clip = log.meta.clips[found.clip[row]]
        start = log.steps["x"][clip.first + found.step[row]]
        # the road is straight there
        assert 0.5 * (found.stop[row, 0] + found.stop[row, 2]) == pytest.approx(60.0 - start, abs=1.1)


def test_a_red_light_closes_its_line_at_its_steps(tmp_path: Path) -> None:
    path = warp_kit.write_log(tmp_path / "log", None, clips=(("train", 1),))
    lights = np.load(path / layout.LIGHTS)
    lights[:] = 0
    lights[35:50] = 2
    np.save(path / layout.LIGHTS, lights)
    found = sim(str(path)).logged_scenes("train", SceneCfg(every=10, history=10, horizon=20))
    row = int(np.flatnonzero(found.step == 20)[0])
    if found.stop[row, 0] < 100.0:
        assert np.flatnonzero(found.closed[row]).tolist() == list(range(15, 21))
    else:
        pytest.fail("the light is not ahead of the ego: choose another step")


class Wrapper(WrappedSim):
    """A wrapper that changes nothing."""


def test_a_wrapped_sim_has_scenes_too() -> None:
    inner = sim()
    made = declared(Wrapper, inner)(inner)
    assert isinstance(made, HasLoggedScenes)
    assert made.vehicle.brake_mps2 == pytest.approx(4.95)
    drive = robotrl.make_sim("bev/drive", num_envs=1, seed=0, threads=1)
    assert not isinstance(drive, HasLoggedScenes)


# refusals


def test_a_horizon_longer_than_the_log_is_refused() -> None:
    with raises_naming(DataError, "horizon", 80, 90, 91):
        sim().logged_scenes("train", CFG._replace(horizon=80))


def test_sizes_out_of_range_are_refused_by_name() -> None:
    for name, value in (("every", 0), ("history", 0), ("horizon", 0), ("agents", 0), ("points", 1)):
        with raises_naming(ConfigError, f"scenes.{name}", value):
            sim().logged_scenes("train", CFG._replace(**{name: value}))


def test_a_log_without_anybody_else_is_refused(tmp_path: Path) -> None:
    steps = warp_kit.steps_of(warp_kit.poses_on(warp_kit.centerline(), 0.8 * np.arange(60)), 8.0)
    with LogWriter(tmp_path / "log", "tests", 1) as writer:
        writer.add_clip("alone", "train", steps, np.zeros((60, 1), layout.AGENT), warp_kit.centerline()[:80])
    with raises_naming(DataError, "log", "train", 60):
        sim(str(tmp_path / "log")).logged_scenes("train", CFG)


def test_a_split_without_clips_is_refused(tmp_path: Path) -> None:
    path = warp_kit.write_log(tmp_path / "log", None, clips=(("train", 1),))
    with raises_naming(DataError, "split", "'val'"):
        sim(str(path)).logged_scenes("val", CFG)
