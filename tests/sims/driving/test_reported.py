"""Scenes that another simulator reports, against the driving sim itself on the same road."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import robotrl
from robotrl.errors import ConfigError
from robotrl.sims.driving.plan import actions_of
from robotrl.sims.driving.render.raster import RasterCfg
from robotrl.sims.driving.render.vectors import SCALARS
from robotrl.sims.driving.reported import phases
from robotrl.sims.driving.reported.scene import (
    BEFORE_M,
    ReportedEgo,
    ReportedLight,
    ReportedUser,
    RouteScene,
    along_way,
    drivable,
    point_on,
)
from tests.kits import xodr_kit

WAY = np.stack([np.arange(0.0, 201.0, 2.0), np.zeros(101), np.zeros(101)], axis=1)


def scene(kind: str = "controls", obs: str = "vector") -> RouteScene:
    actions = actions_of(kind, 1 if kind == "controls" else 5, 4)
    return RouteScene(obs, 8, 8, RasterCfg(32, 32), False, actions, 2.4)


def scalars(found: dict[str, Any]) -> dict[str, float]:
    return dict(zip(SCALARS, found["scalars"].tolist(), strict=True))


@pytest.fixture
def road(tmp_path: Path) -> Path:
    path = tmp_path / "road.xodr"
    path.write_text(xodr_kit.document(xodr_kit.straight(length=400.0)))
    return path


@pytest.mark.parametrize("kind", ["controls", "trajectory"])
def test_it_observes_and_moves_as_the_driving_sim(road: Path, kind: str) -> None:
    """An empty straight road: the route of the sim, reported point by point, gives the sim's own observations."""
    options: dict[str, Any] = {"map": str(road), "actions": kind, "agents": 4, "nearest": 8, "polylines": 8}
    with closing(robotrl.make_sim("bev/drive", num_envs=1, seed=0, **options)) as sim:
        obs, told = sim.reset(seed=1), scene(kind)
        core: Any = sim.core
        # nobody else is on the road
        core.world.agents["kind"][:, 1:] = 0
        core.observe(np.arange(1))
        route = core.bank.arrays.routes[core.world.episodes["route"][0]]
        points = core.bank.arrays.route_points[route["first"] : route["first"] + route["count"]]
        way = np.stack([points["x"], points["y"]], axis=1).astype(np.float64)
        limit = float(points["speed"][0])
        rng = np.random.default_rng(3)
        low, high = (np.array(bound) for bound in (sim.action_spec.low, sim.action_spec.high))
        for _ in range(6):
            ego = core.world.egos[0]
            names = ("x", "y", "yaw", "v", "a", "yaw_rate", "steer", "accel")
            numbers = [float(ego[name]) for name in names]
            agent = core.world.agents[0, 0]
            seen = told.observe(way, limit, ReportedEgo(*numbers, float(agent["length"]), float(agent["width"])))
            # the way is continued back, so that positions along it differ; all else is equal
            for key in ("route", "agents", "agents_mask"):
                np.testing.assert_allclose(seen[key], obs[key][0], atol=2e-4, err_msg=key)
            own = {name: float(v) for name, v in zip(SCALARS, obs["scalars"][0], strict=True)}
            for name, value in scalars(seen).items():
                # the last point of the sim's route lies up to 1 m of 200 before its end
                assert value == pytest.approx(own[name], abs=6e-3 if name == "route_left" else 2e-3), name
            # about straight ahead: controls near 0, or points at 8 m/s near the center line
            straight = np.zeros(2) if kind == "controls" else np.stack([0.4 * high[::2], 0 * high[::2]], 1).ravel()
            action = np.clip(straight + 0.02 * (high - low) * rng.uniform(-1, 1, len(low)), low, high)
            moved = told.motion(action[None], float(sim.control_dt_s or 0.0), 0.0, 4.0)
            obs = sim.step(torch.tensor(action[None], dtype=torch.float32)).obs
            steps = 1 if kind == "controls" else 5
            ego = core.world.egos[0]
            pose = [float(ego[name]) for name in ("x", "y", "yaw")]
            np.testing.assert_allclose(moved.poses[steps - 1], pose, atol=1e-4)
            assert moved.controls[steps - 1] == pytest.approx([float(ego["steer"]), float(ego["accel"])], abs=1e-5)
        told.close()


def test_a_car_and_a_light_ahead() -> None:
    told = scene()
    ego = ReportedEgo(30.0, 0.5, 0.0, 6.0)
    alone = scalars(told.observe(WAY, 10.0, ego))
    assert alone["leader_gap"] == 1.0 and alone["stop_line_distance"] == 1.0
    assert alone["route_offset"] == pytest.approx(0.5 / 2.0)
    assert alone["speed_limit"] == pytest.approx(10.0 / 15.0)
    car = ReportedUser(1, 60.0, 0.0, 0.0, 3.0, 0.0, 4.5, 2.0)
    bicycle = ReportedUser(2, 40.0, 3.0, 0.0, 4.0, 0.0, 1.8, 0.6)
    found = told.observe(WAY, 10.0, ego, [car, bicycle], ReportedLight(40.0, phases.RED))
    seen = scalars(found)
    # 30 m between the centers, less half of either car
    assert seen["leader_gap"] == pytest.approx((30.0 - 0.5 * 4.7 - 0.5 * 4.5) / 60.0, abs=1e-3)
    assert seen["leader_closing"] == pytest.approx((6.0 - 3.0) / 10.0)
    assert seen["stop_line_distance"] == pytest.approx((40.0 - 0.5 * 4.7) / 60.0, abs=0.01)
    assert (seen["light_red"], seen["light_green"], seen["light_yellow"]) == (1.0, 0.0, 0.0)
    assert found["agents_mask"].tolist() == [1.0, 1.0, *[0.0] * 6]
    # x ahead and y to the left over 50 m, the nearest first; the bicycle is vulnerable
    np.testing.assert_allclose(found["agents"][0, :2], [10.0 / 50.0, 2.5 / 50.0], atol=1e-4)
    assert found["agents"][:2, 6].tolist() == [1.0, 0.0]
    # the next scene forgets them
    again = told.observe(WAY, 10.0, ego)
    assert scalars(again) == alone and not again["agents_mask"].any()
    for state, name in ((phases.GREEN, "light_green"), (phases.YELLOW, "light_yellow")):
        assert scalars(told.observe(WAY, 10.0, ego, (), ReportedLight(40.0, state)))[name] == 1.0
    told.close()


def test_a_raster_shows_the_road_and_the_car_ahead() -> None:
    told = scene(obs="raster")
    ego = ReportedEgo(30.0, 0.0, 0.0, 6.0)
    empty = told.observe(WAY, 10.0, ego)["bev"].copy()
    car = told.observe(WAY, 10.0, ego, [ReportedUser(1, 38.0, 0.0, 0.0, 3.0, 0.0, 4.5, 2.0)])["bev"]
    assert empty.any() and (empty != car).any()
    told.close()


def test_motion_beyond_the_actions_follows_the_route() -> None:
    told = scene()
    told.observe(WAY, 10.0, ReportedEgo(30.0, 1.5, 0.1, 8.0))
    moved = told.motion(np.array([[0.0, 0.0]]), 0.1, 0.0, 6.0)
    assert len(moved.poses) == 60
    assert abs(moved.poses[-1, 1]) < 0.1 and abs(moved.poses[-1, 2]) < 0.02, "back on the center line"
    np.testing.assert_allclose(np.hypot(*np.diff(moved.poses[:, :2], axis=0).T), 0.8, atol=1e-3)
    # the last action is held until the simulator has stepped
    held = told.motion(np.array([[0.0, -1.0]]), 0.1, 0.5, 6.0)
    assert held.controls[:6, 1].tolist() == [-1.0] * 5 + [0.0]
    told.close()


def test_ways() -> None:
    way = drivable(np.array([[0.0, 0.0, 5.0], [0.0, 0.0, 5.0], [0.0, 30.0, 5.0]]))
    np.testing.assert_allclose(way, [[0.0, -BEFORE_M], [0.0, 0.0], [0.0, 30.0]], atol=1e-9)
    assert along_way(way, 3.0, 10.0) == pytest.approx(BEFORE_M + 10.0)
    assert point_on(way, BEFORE_M + 35.0) == pytest.approx((0.0, 35.0))
    with pytest.raises(ConfigError, match=r"route is 5\.0 m long: expected 12 m or more"):
        drivable(np.array([[0.0, 0.0], [5.0, 0.0]]))
    with pytest.raises(ConfigError, match=r"route has shape \(0, 3\)|0.0 m long"):
        drivable(np.zeros((0, 3)))
    with pytest.raises(ConfigError, match="expected finite points"):
        drivable(np.array([[0.0, 0.0], [np.nan, 0.0]]))
    told = scene()
    with pytest.raises(ConfigError, match="not finite"):
        told.observe(WAY, 10.0, ReportedEgo(30.0, 0.0, float("nan"), 8.0))
    told.close()
