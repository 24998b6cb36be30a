"""What an action is: how long it lasts, trajectories and the tracker that follows them, held to closed forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.errors import ConfigError
from robotrl.sims.driving import plan, tables
from robotrl.sims.driving.geometry import REAR_M
from robotrl.sims.driving.plan import SPACING_S, actions_of, point_at
from robotrl.sims.driving.roads.lanes import RoadBuilder
from tests.kits.bev_kit import Scene, drive, make, on_roads

LONG = {"limit_s": 3600.0, "blocked_s": 1e6}


def plain(width_m: float = 400.0) -> RoadBuilder:
    """A single road east, wide enough to turn on."""
    builder = RoadBuilder("plain")
    lane = builder.lane(np.array([[0.0, 0.0], [800.0, 0.0]]), 20.0, width_m=width_m)
    builder.route((lane,), start_s=5.0)
    return builder


def straight_plan(v: float, points: int = 4) -> np.ndarray:
    """Straight on at a speed."""
    times = SPACING_S * np.arange(1, points + 1)
    return np.stack([v * times, 0 * times], axis=-1).ravel().astype(np.float32)


def take(sim: Any, trajectory: np.ndarray) -> Any:
    return sim.step(torch.from_numpy(np.broadcast_to(trajectory, (sim.num_envs, len(trajectory))).copy()))


def ego(sim: Any) -> Any:
    return sim.core.world.egos[0]


# the spec


def test_bounds_and_names_of_a_trajectory_by_hand() -> None:
    spec = actions_of("trajectory", None, 3).spec
    assert spec.names == ("x_0.5s", "y_0.5s", "x_1.0s", "y_1.0s", "x_1.5s", "y_1.5s")
    assert spec.units == ("m",) * 6
    # 20 m/s ahead; aside half of 5 m/s^2 times the square of the time
    assert spec.high == pytest.approx((10.0, 0.625, 20.0, 2.5, 30.0, 5.625))
    assert spec.low == pytest.approx((0.0, -0.625, 0.0, -2.5, 0.0, -5.625))
    assert max(actions_of("trajectory", None, 16).spec.high[1::2]) == plan.ASIDE_M


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"actions": "trajectories"}, "actions 'trajectories' is unknown: did you mean 'trajectory'"),
        ({"hold": 0}, "hold is 0: expected control steps from 1 to 50"),
        ({"hold": "3,threads=1"}, "hold is '3,threads=1': expected control steps from 1 to 50"),
        ({"actions": "trajectory", "points": 1}, "points is 1: expected a whole number from 2 to 16"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**options)


def test_how_long_an_action_lasts_is_declared() -> None:
    for options, lasts_s in (({}, 0.1), ({"hold": 3}, 0.3), ({"actions": "trajectory"}, 0.5)):
        assert make(**options).control_dt_s == pytest.approx(lasts_s)


# holding


def test_an_action_that_is_held_is_that_action_given_again_and_again() -> None:
    """State bit for bit, rewards and the sums of terms too, with everybody on the road."""
    n, hold = 24, 4
    held, single = make(num_envs=n, hold=hold), make(num_envs=n)
    ids = held.state_ids("val")[:n]
    for sim in (held, single):
        sim.reset(options={"state_ids": list(ids)})
    rng = np.random.default_rng(0)
    running = np.ones(n, bool)
    for _ in range(12):
        actions = torch.from_numpy((0.04 * rng.standard_normal((n, 2)) - [0.0, 0.1]).clip(-1, 1).astype(np.float32))
        rewards, progress, speed, over = np.zeros(n), np.zeros(n), np.zeros((hold, n)), ~running
        for k in range(hold):
            out = single.step(actions)
            rewards += np.where(over, 0.0, out.reward.numpy())
            progress += np.where(over, 0.0, single.terms["progress"].numpy())
            speed[k] = single.terms["speed"].numpy()
            over = over | (out.terminated | out.truncated).numpy()
        out = held.step(actions)
        assert np.array_equal((out.terminated | out.truncated).numpy() & running, over & running)
        assert out.reward.numpy()[running] == pytest.approx(rewards[running], abs=1e-4)
        assert held.terms["progress"].numpy()[running] == pytest.approx(progress[running], abs=1e-4)
        running &= ~over
        assert held.terms["speed"].numpy()[running] == pytest.approx(speed.mean(0)[running], abs=1e-4)
        mine, theirs = held.get_state(), single.get_state()
        for key in ("egos/x", "egos/v", "agents/x", "agents/s", "judges/ttc", "episodes/time", "episodes/steps"):
            assert np.array_equal(mine[key][running], theirs[key][running]), key
    assert 4 < running.sum() < n  # some of both


def test_an_episode_that_ends_while_an_action_is_held_ends_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Into what stands 3.05 m ahead at 10 m/s: in the fourth tenth of a second, not at the end of the action."""
    sim = on_roads(monkeypatch, plain(), hold=20, **LONG)
    scene = Scene(sim)
    scene.ego(100.0, 10.0)
    scene.car(1, 0, 105.0 + 3.05 + 4.7 / 2 + 4.5 / 2, kind=tables.OBSTACLE)
    scene.apply()
    before = float(sim.core.world.episodes["time"][0])
    out = drive(sim)
    assert bool(out.terminated[0])
    assert float(out.info["events"][0]) == tables.STATIC or int(out.info["events"][0]) & tables.VEHICLE
    assert float(sim.core.ended.episodes["time"][0]) - before == pytest.approx(0.4, abs=1e-6)


# the tracker


def test_between_and_beyond_the_points_by_hand() -> None:
    # x goes 0, 1, 3: the parabola (u + u^2) / 2 through all three; after it on at its slope there, 2.5 m in 0.5 s
    trajectory = np.array([1.0, 0.0, 3.0, 1.0])
    for t, x in ((0.0, 0.0), (0.25, 0.375), (0.5, 1.0), (0.75, 1.875), (1.0, 3.0), (1.5, 5.5)):
        assert point_at(trajectory, t)[0] == pytest.approx(x)
    # y goes 0, 0, 1: (u^2 - u) / 2
    assert [point_at(trajectory, t)[1] for t in (0.25, 0.5, 1.0, 1.5)] == pytest.approx([-0.125, 0.0, 1.0, 2.5])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 40), st.floats(-10, 10)), min_size=2, max_size=16))
def test_a_trajectory_goes_through_its_points_and_without_a_kink(points: list[tuple[float, float]]) -> None:
    trajectory = np.array(points).ravel()
    for k, point in enumerate([(0.0, 0.0), *points]):
        t = k * SPACING_S
        assert point_at(trajectory, t) == pytest.approx(point, abs=1e-9)
        if k:
            before, after = (np.array(point_at(trajectory, t + dt)) for dt in (-1e-6, 1e-6))
            here = np.array(point)
            assert (after - here) / 1e-6 == pytest.approx((here - before) / 1e-6, abs=1e-2)


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 20), st.floats(-4, 4), st.integers(2, 16), st.floats(0, 9))
def test_constant_acceleration_is_kept_between_the_points(v: float, a: float, n: int, t: float) -> None:
    times = SPACING_S * np.arange(1, n + 1)
    trajectory = np.stack([v * times + 0.5 * a * times**2, 0.5 * a * times**2], axis=-1).ravel()
    t = min(t, float(times[-1]))
    assert point_at(trajectory, t) == pytest.approx((v * t + 0.5 * a * t * t, 0.5 * a * t * t), abs=1e-9)


@pytest.mark.parametrize(("v", "wanted"), [(5.0, 5.0), (10.0, 10.0), (0.0, 8.0), (12.0, 6.0), (9.0, 0.0)])
def test_a_speed_that_is_planned_is_driven(monkeypatch: pytest.MonkeyPatch, v: float, wanted: float) -> None:
    sim = on_roads(monkeypatch, plain(), actions="trajectory", **LONG)
    scene = Scene(sim)
    scene.ego(50.0, v)
    scene.apply()
    for _ in range(20):
        take(sim, straight_plan(wanted))
    assert ego(sim)["v"] == pytest.approx(wanted, abs=0.05)
    assert abs(ego(sim)["d"]) < 1e-3


@pytest.mark.parametrize("curvature", [0.0, 0.02, -0.05])
def test_an_arc_that_is_planned_is_driven(monkeypatch: pytest.MonkeyPatch, curvature: float) -> None:
    """Planned anew every half second from where the car is, as a policy does: it turns as fast as planned, to 3 %.

    The centre of a turning car moves not where the car looks, but `asin(curvature * 1.418 m)` further in.
    """
    v = 6.0
    sim = on_roads(monkeypatch, plain(), actions="trajectory", **LONG)
    scene = Scene(sim)
    scene.ego(100.0, v)
    scene.apply()
    s = v * SPACING_S * np.arange(1, 5)
    if curvature:
        xy = np.stack([np.sin(curvature * s) / curvature, (1 - np.cos(curvature * s)) / curvature], axis=-1)
    else:
        xy = np.stack([s, 0 * s], axis=-1)
    slip = math.asin(curvature * REAR_M)
    xy = xy @ np.array([[math.cos(slip), math.sin(slip)], [-math.sin(slip), math.cos(slip)]])
    trajectory = xy.ravel().astype(np.float32)
    yaws = [float(ego(sim)["yaw"])]
    for _ in range(8):
        take(sim, trajectory)
        yaws.append(float(ego(sim)["yaw"]))
    turned = float(np.unwrap(yaws)[-1] - np.unwrap(yaws)[2])
    assert turned == pytest.approx(curvature * v * 0.5 * 6, rel=0.03, abs=1e-6)


def test_a_lane_change_that_is_planned_ends_on_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """One plan of 4 s, held to its end: 3.5 m aside, along the road again."""
    sim = on_roads(monkeypatch, plain(), actions="trajectory", points=8, hold=40, **LONG)
    scene = Scene(sim)
    scene.ego(100.0, 10.0)
    scene.apply()
    t = SPACING_S * np.arange(1, 9)
    u = np.minimum(t / 3.0, 1.0)
    trajectory = np.stack([10.0 * t, 3.5 * u * u * (3 - 2 * u)], axis=-1).ravel().astype(np.float32)
    take(sim, trajectory)
    assert ego(sim)["d"] == pytest.approx(3.5, abs=0.15)
    assert ego(sim)["psi"] == pytest.approx(0.0, abs=math.radians(2))
    assert ego(sim)["v"] == pytest.approx(10.0, abs=0.3)


def test_the_viewer_shows_the_trajectory_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, plain(), actions="trajectory", points=2, **LONG)
    scene = Scene(sim)
    scene.ego(100.0, 10.0, psi=math.pi / 2)
    scene.apply()
    x, y = float(ego(sim)["x"]), float(ego(sim)["y"])
    found = sim.trace_plan(0, np.array([[5.0, 0.0, 10.0, 1.0]]))
    # it looks north: ahead is y, left is -x
    assert found[:, :2] == pytest.approx(np.array([[x, y + 5.0], [x - 1.0, y + 10.0]]))
    assert found[:, 2] == pytest.approx([math.pi / 2, math.pi / 2 + math.atan2(1.0, 5.0)])
