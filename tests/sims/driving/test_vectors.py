"""What is observed in the driving world, worked out again in numpy from where everybody is; vectors and views."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from robotrl.sims.bev import procedural
from robotrl.sims.bev.traffic.scenarios import SCENARIOS
from robotrl.sims.driving import tables
from robotrl.sims.driving.render import raster
from robotrl.sims.driving.render.vectors import AGENTS, EGO, LANES, PRIVILEGED, ROUTE_AT, SCALARS
from robotrl.sims.driving.roads.lanes import Control, RoadBuilder
from tests.kits.bev_kit import EGO_HALF_M, Array, Scene, drive, lanes_of, make, on_roads, route_of

N = 2 * len(SCENARIOS)
AT = {name: i for i, name in enumerate(SCALARS)}


def driven(steps: int, **options: Any) -> tuple[Any, dict[str, Array]]:
    """All scenarios after some steps of clumsy driving, and what is observed then."""
    sim = make(num_envs=N, **options)
    sim.queue_states(range(1 << 30, (1 << 30) + 10 * N))
    obs = sim.reset()
    expert, started = sim.make_expert(noise=0.1, episode_noise=0.5), torch.ones(N, dtype=torch.bool)
    for _ in range(steps):
        out = sim.step(expert.act(started))
        started, obs = out.terminated | out.truncated, out.obs
    return sim, {key: value.numpy() for key, value in obs.items()}


def relative(ego: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """m ahead and m left of the ego."""
    dx, dy = np.float64(x) - ego["x"], np.float64(y) - ego["y"]
    return dx * ego["cos"] + dy * ego["sin"], dy * ego["cos"] - dx * ego["sin"]


def light(sim: Any, env: int, group: int) -> tuple[int, float]:
    """0 green, 1 yellow, 2 red, and the seconds left."""
    episode = sim.core.world.episodes[env]
    signal = sim.core.bank.arrays.signals[sim.core.bank.arrays.maps["signal"][episode["map"]] + group]
    t = (float(episode["time"]) + float(episode["offset"]) - float(signal["start"])) % float(signal["cycle"])
    ends = np.cumsum([float(signal["green"]), float(signal["yellow"])])
    ends = [*ends, float(signal["cycle"])]
    state = int(np.searchsorted(ends, t, side="right"))
    return state, ends[state] - t


# vectors


@pytest.fixture(scope="module", params=[0, 35, 120])
def seen(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Array]]:
    return driven(request.param, obs="vector", nearest=6, polylines=16)


def test_names_and_shapes(seen: tuple[Any, dict[str, Array]]) -> None:
    sim, obs = seen
    assert {key: value.shape[1:] for key, value in obs.items()} == {
        "scalars": (len(SCALARS),),
        "route": (len(ROUTE_AT), 3),
        "agents": (6, len(AGENTS)),
        "agents_mask": (6,),
        "lanes": (16, len(LANES)),
        "lanes_mask": (16,),
        "privileged": (len(PRIVILEGED),),
    }
    assert sim.observation_spec["scalars"].names == SCALARS
    assert sim.privileged == ("privileged",)


def test_scalars_of_the_car_the_road_and_what_rules_it(seen: tuple[Any, dict[str, Array]]) -> None:
    sim, obs = seen
    world = sim.core.world
    for env in range(N):
        ego, out = world.egos[env], obs["scalars"][env]
        points = route_of(sim, env)
        p = points[ego["index"]]
        d = (float(ego["y"]) - p["y"]) * p["cos"] - (float(ego["x"]) - p["x"]) * p["sin"]
        psi = math.remainder(float(ego["yaw"]) - math.atan2(p["sin"], p["cos"]), 2 * math.pi)
        expected = {
            "speed": ego["v"] / 15,
            "accel": ego["a"] / 5,
            "steer_action": ego["steer"],
            "accel_action": ego["accel"],
            "yaw_rate": ego["yaw_rate"],
            "route_offset": d / 2,
            "heading_error_sin": math.sin(psi),
            "heading_error_cos": math.cos(psi),
            "lane_offset": ego["lane_d"] / 2,
            "speed_limit": p["speed"] / 15,
            "speed_excess": (ego["v"] - p["speed"]) / 5,
            "room_left": (p["left"] - d) / 10,
            "room_right": (p["right"] + d) / 10,
            "inside_junction": float(p["inside"]),
            "junction_distance": min(max(p["conflict"] - ego["progress"], 0), 60) / 60,
            "leader_gap": min(max(ego["gap"], 0), 60) / 60,
            "leader_speed": ego["leader_v"] / 15 if ego["gap"] < 60 else 0.0,
            "leader_closing": (ego["v"] - ego["leader_v"]) / 10 if ego["gap"] < 60 else 0.0,
            "route_left": min(len(points) - 1 - ego["progress"], 200) / 200,
        }
        ahead = float(p["stop"] - ego["progress"]) - EGO_HALF_M
        there = -1 < ahead < 60
        expected["stop_line_distance"] = ahead / 60 if there else 1.0
        lit = there and p["control"] == Control.LIGHT
        state, left = light(sim, env, int(p["group"])) if lit else (-1, 0.0)
        for k, color in enumerate(("green", "yellow", "red")):
            expected[f"light_{color}"] = float(lit and state == k)
        expected["light_time_left"] = min(left, 20) / 20
        expected["stop_sign"] = float(there and p["control"] == Control.STOP)
        expected["yield_sign"] = float(there and p["control"] == Control.YIELD)
        for name, value in expected.items():
            assert out[AT[name]] == pytest.approx(float(value), abs=2e-4), (env, name)


def test_scalars_of_who_is_met_first(seen: tuple[Any, dict[str, Array]]) -> None:
    """By brute force over the next 5 s: when is whose centre nearest, and is it nearer than 3 m then."""
    sim, obs = seen
    met = 0
    for env in range(N):
        agents, ego, out = sim.core.world.agents[env], sim.core.world.egos[env], obs["scalars"][env]
        found = {name: float(out[AT[f"conflict_{name}"]]) for name in ("time", "miss", "x", "y")}
        there = np.flatnonzero(agents["kind"][1:] > 0) + 1
        others = agents[there]
        t = np.linspace(0, 5, 2001)
        dx = (others["x"] - ego["x"])[:, None] + t * (others["v"] * others["cos"] - ego["v"] * ego["cos"])[:, None]
        dy = (others["y"] - ego["y"])[:, None] + t * (others["v"] * others["sin"] - ego["v"] * ego["sin"])[:, None]
        apart = np.hypot(dx, dy)
        nearest = apart.argmin(axis=1)
        # who is nearest now or only later than 5 s is not being met
        meets = (nearest > 0) & (nearest < 2000) & (apart.min(axis=1) < 3.0 - 1e-3)
        if not meets.any():
            if not ((nearest > 0) & (apart.min(axis=1) < 3.0 + 1e-3)).any():
                assert found == {"time": 1.0, "miss": 1.0, "x": 0.0, "y": 0.0}, env
            continue
        met += 1
        first = int(np.flatnonzero(meets)[nearest[meets].argmin()])
        assert found["time"] * 5 == pytest.approx(t[nearest[first]], abs=5e-3), env
        assert found["miss"] * 3 == pytest.approx(apart[first].min(), abs=5e-3), env
        ahead, left = relative(ego, others["x"][first], others["y"][first])
        assert (found["x"] * 50, found["y"] * 50) == pytest.approx((ahead, left), abs=1e-2), env
    assert met


def test_scalars_of_the_lanes_beside(seen: tuple[Any, dict[str, Array]]) -> None:
    sim, obs = seen
    world, lanes = sim.core.world, sim.core.bank.arrays.lanes
    there = 0
    for env in range(N):
        ego, users = world.egos[env], world.agents[env, 1:]
        here = lanes[ego["lane"]]
        for side in ("left", "right"):
            target = here[side]
            expected = np.array([0.0, 1.0, 0.0, 1.0, 0.0])
            if target >= 0:
                there += 1
                expected[0] = 1.0
                s = ego["lane_s"] * lanes["length"][target] / here["length"]
                for k, sign in ((1, 1), (3, -1)):
                    way = sign * (users["s"] - s)
                    on = (users["lane"] == target) & (users["kind"] > 0) & (way > 0)
                    if on.any():
                        other = users[np.flatnonzero(on)[way[on].argmin()]]
                        gap = sign * (other["s"] - s) - EGO_HALF_M - other["length"] / 2
                        expected[k] = min(max(gap, 0), 60) / 60
                        expected[k + 1] = sign * (ego["v"] - other["v"]) / 10 if gap < 60 else 0.0
            found = obs["scalars"][env, AT[f"{side}_lane"] : AT[f"{side}_lane"] + 5]
            assert found == pytest.approx(expected, abs=2e-4), (env, side)
    assert there > 5


def test_road_users_come_in_the_order_of_how_near_they_soon_are(seen: tuple[Any, dict[str, Array]]) -> None:
    sim, obs = seen
    world = sim.core.world
    full = 0
    for env in range(N):
        ego, users = world.egos[env], world.agents[env, 1:]
        users = users[users["kind"] > 0]
        x, y = relative(ego, users["x"], users["y"])
        there = np.hypot(x, y) <= 60
        users, x, y = users[there], x[there], y[there]
        # now or in 1.5 s, the lesser, if all keep speed and course
        moved = [users["v"] * users[name] - ego["v"] * ego[name] for name in ("cos", "sin")]
        later = np.hypot(users["x"] - ego["x"] + 1.5 * moved[0], users["y"] - ego["y"] + 1.5 * moved[1])
        order = np.argsort(np.minimum(np.hypot(x, y), later))[:6]
        users, x, y = users[order], x[order], y[order]
        expected = np.zeros((6, 8))
        expected[: len(users)] = np.stack(
            [
                x / 50,
                y / 50,
                users["cos"] * ego["cos"] + users["sin"] * ego["sin"],
                users["sin"] * ego["cos"] - users["cos"] * ego["sin"],
                users["v"] / 15,
                users["length"] / 10,
                (users["kind"] == tables.PEDESTRIAN) | (users["kind"] == tables.CYCLIST),
                users["a"] / 5,
            ],
            axis=1,
        )
        assert obs["agents_mask"][env].tolist() == [1.0] * len(users) + [0.0] * (6 - len(users))
        assert obs["agents"][env] == pytest.approx(expected, abs=2e-4), env
        full += len(users) == 6
    assert full > 0


def test_the_route_ahead_in_the_egos_frame(seen: tuple[Any, dict[str, Array]]) -> None:
    sim, obs = seen
    for env in range(N):
        ego, points = sim.core.world.egos[env], route_of(sim, env)
        ahead = points[np.minimum(ego["index"] + np.array(ROUTE_AT), len(points) - 1)]
        x, y = relative(ego, ahead["x"], ahead["y"])
        assert obs["route"][env, :, 0] == pytest.approx(x / 50, abs=1e-4)
        assert obs["route"][env, :, 1] == pytest.approx(y / 10, abs=1e-4)
        assert obs["route"][env, :, 2] == pytest.approx(ahead["curvature"] * 10, abs=1e-4)


def test_segments_of_lanes_lie_on_lanes_near_the_ego(seen: tuple[Any, dict[str, Array]]) -> None:
    sim, obs = seen
    arrays = sim.core.bank.arrays
    for env in range(N):
        ego = sim.core.world.egos[env]
        row = arrays.maps[sim.core.world.episodes["map"][env]]
        lanes = arrays.lanes[row["lane"] : row["lane"] + row["lanes"]]
        points = arrays.points[lanes["first"][0] : lanes["first"][-1] + lanes["count"][-1]]
        x, y = relative(ego, points["x"], points["y"])
        listed = obs["lanes"][env][obs["lanes_mask"][env] > 0]
        assert len(listed) == obs["lanes_mask"][env].sum() > 4
        assert (obs["lanes"][env][obs["lanes_mask"][env] == 0] == 0).all()
        for px, py in (listed[:, 0:2] * 50).tolist() + (listed[:, 2:4] * 50).tolist():
            assert np.hypot(x - px, y - py).min() < 0.02
        # in driving direction, some 8 m long, with the limit of one of the lanes
        assert set(np.round(listed[:, 4] * 15, 3)) <= set(np.round(lanes["speed"], 3).tolist())
        length = np.hypot(*(listed[:, 2:4] - listed[:, 0:2]).T) * 50
        assert length.min() > 2.0 and length.max() < 13.0
        # the ego's own lane is among them
        if ego["outside"] == 0:
            a, b = listed[:, 0:2] * 50, listed[:, 2:4] * 50
            u = np.clip(-(a * (b - a)).sum(1) / ((b - a) ** 2).sum(1), 0, 1)[:, None]
            assert np.hypot(*(a + u * (b - a)).T).min() < abs(ego["lane_d"]) + 0.6, env


def test_what_the_critic_is_told(seen: tuple[Any, dict[str, Array]]) -> None:
    sim, obs = seen
    world = sim.core.world
    hold = 50.0
    for env in range(N):
        episode, judge, ego = world.episodes[env], world.judges[env], world.egos[env]
        length = len(route_of(sim, env)) - 1  # its points are a metre apart
        expected = [
            (800 - episode["steps"]) / 800,
            1 - episode["blocked"] / 45.0,
            (length - ego["best"]) / length,
            judge["ttc"] / hold,
            *(judge["comfort"] / hold),
            min(judge["offset"], 6.0) / 3.0,
        ]
        assert obs["privileged"][env] == pytest.approx(np.array(expected, float), abs=1e-5)
    assert len(PRIVILEGED) == 11  # as many as CaRL's critic has


# situations


def avenue(lanes: int = 2, oncoming: int = 2) -> RoadBuilder:
    builder = RoadBuilder("avenue")
    road = procedural.two_way(builder, np.array([[0.0, 0.0], [400.0, 0.0]]), lanes, oncoming, 10.0)
    builder.route((road.forward[-1],), start_s=5.0, end_s=395.0)
    return builder


LINE_M = 89.0


def approach(control: Control) -> RoadBuilder:
    """100 m to a crossing with a stop line, over it, and on; green for 10 s, yellow for 3 s, red for 17 s."""
    builder = RoadBuilder("approach")
    ends = ((0.0, 90.0), (90.0, 110.0), (110.0, 230.0))
    ways = [builder.lane(np.array([[a, 0.0], [b, 0.0]]), 10.0, junction=a == 90.0) for a, b in ends]
    builder.follow(ways[0], ways[1])
    builder.follow(ways[1], ways[2])
    group = builder.signal(0.0, 10.0)
    builder.cycle_s = 30.0
    builder.stop(ways[0], control, group if control == Control.LIGHT else -1, LINE_M)
    builder.route(ways, start_s=0.0, end_s=100.0)
    return builder


def scalars(out: Any, env: int = 0) -> dict[str, float]:
    values = out.obs["scalars"] if hasattr(out, "obs") else out["scalars"]
    return dict(zip(SCALARS, values[env].tolist(), strict=True))


def test_who_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaps are from bumper to bumper; the ego's lane begins 5 m before its route."""
    n = 7
    sim = on_roads(monkeypatch, avenue(), num_envs=n, obs="vector")
    scene = Scene(sim)
    scene.ego(100.0, 8.0)
    at = 105.0 + EGO_HALF_M + 2.25
    scene.car(1, 1, at + 20.0, 5.0, env=[0], desire=0.5)
    scene.car(1, 0, at + 20.0, 5.0, env=[1], desire=0.5)  # on the lane beside
    scene.car(1, 1, at + 70.0, 5.0, env=[2], desire=0.5)  # out of sight
    scene.car(1, 1, 80.0, 5.0, env=[3], desire=0.5)  # behind
    scene.car(1, 1, at + 40.0, 6.0, env=[4], desire=0.6)  # the nearer of two
    scene.car(2, 1, at + 10.0, 6.0, env=[4], desire=0.6)
    scene.walker(1, 105.0 + EGO_HALF_M + 0.3 + 15.0, -5.25, env=[5])
    scene.walker(1, 105.0 + EGO_HALF_M + 0.3 + 15.0, -9.0, env=[6])  # on the pavement
    scene.apply()
    out = drive(sim)
    gaps = [scalars(out, env)["leader_gap"] * 60 for env in range(n)]
    assert gaps[1] == gaps[2] == gaps[3] == gaps[6] == 60.0
    assert gaps[0] == pytest.approx(20.0 - 0.3, abs=0.02)
    assert gaps[4] == pytest.approx(10.0 - 0.2, abs=0.02)
    assert gaps[5] == pytest.approx(15.0 - 0.8, abs=0.02)
    speeds = [scalars(out, env)["leader_speed"] * 15 for env in range(n)]
    assert speeds == pytest.approx([5, 0, 0, 0, 6, 0, 0], abs=0.1)
    assert scalars(out, 1)["left_ahead_gap"] * 60 == pytest.approx(20.0 - 0.3, abs=0.02)
    assert [scalars(out)[f"{side}_lane"] for side in ("left", "right")] == [1.0, 0.0]


def test_somebody_ahead_on_the_next_lane_of_the_route_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, approach(Control.NONE), obs="vector")
    scene = Scene(sim)
    scene.ego(70.0, 0.0)
    scene.car(1, 2, 5.0, kind=tables.OBSTACLE)  # 115 m from the beginning
    scene.apply()
    assert scalars(drive(sim))["leader_gap"] * 60 == pytest.approx(45.0 - EGO_HALF_M - 2.25, abs=0.1)


@pytest.mark.parametrize(("phase", "color", "left"), [(3.0, "green", 7.0), (11.0, "yellow", 2.0), (20.0, "red", 10.0)])
def test_a_light_and_when_it_changes(monkeypatch: pytest.MonkeyPatch, phase: float, color: str, left: float) -> None:
    sim = on_roads(monkeypatch, approach(Control.LIGHT), obs="vector")
    scene = Scene(sim)
    scene.ego(LINE_M - EGO_HALF_M - 20.0, 0.0)
    scene["episodes/time"], scene["episodes/offset"] = 0.0, phase
    scene.apply()
    found = scalars(drive(sim))
    lit = {name: found[f"light_{name}"] for name in ("green", "yellow", "red")}
    assert lit == {name: float(name == color) for name in lit}
    assert found["light_time_left"] * 20 == pytest.approx(left - 0.1, abs=1e-3)
    assert found["stop_line_distance"] * 60 == pytest.approx(20.0, abs=0.01)
    assert found["stop_sign"] == found["yield_sign"] == 0.0
    # a car that stands cannot get over on yellow: only green leaves the way open
    assert found["way_closed_distance"] * 40 == pytest.approx(40.0 if color == "green" else 20.0, abs=0.02)
    assert found["junction_distance"] * 60 == pytest.approx(90.0 - LINE_M + EGO_HALF_M + 20.0, abs=0.6)


def test_after_a_stop_at_its_sign_the_way_is_open_to_whoever_drives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without the rule-based driver, whose questions must not be what lets time pass."""
    sim = on_roads(monkeypatch, approach(Control.STOP), obs="vector")
    scene = Scene(sim)
    scene.ego(LINE_M - EGO_HALF_M - 1.0, 0.0)
    scene.apply()
    found = scalars(drive(sim, accel=-1.0))
    assert (found["stop_sign"], found["stop_sign_obeyed"]) == (1.0, 1.0)
    assert found["way_closed_distance"] * 40 == pytest.approx(1.0, abs=0.02)
    for _ in range(20):
        found = scalars(drive(sim, accel=-1.0))
    assert found["way_closed_distance"] == 1.0


def test_privileged_timers_run_down(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, avenue(), obs="vector", limit_s=20.0, blocked_s=10.0)
    scene = Scene(sim)
    scene.ego(97.25, 0.0, best=97.25)
    scene["judges/ttc"], scene["judges/offset"] = 25.0, 1.0
    scene["judges/comfort"] = np.arange(6) * 5.0
    scene["episodes/steps"], scene["episodes/blocked"] = 40, 4.0
    scene.apply()
    found = dict(zip(PRIVILEGED, drive(sim, accel=-1.0).obs["privileged"][0].tolist(), strict=True))
    assert found["time_left"] == pytest.approx(159 / 200)
    assert found["blocked_left"] == pytest.approx(1 - 4.1 / 10)
    assert found["route_left"] == pytest.approx((389 - 97.25) / 389)
    assert found["ttc_timer"] == pytest.approx(24.9 / 50)
    timers = [found[f"comfort_timer_{name}"] for name in tables.COMFORT]
    assert timers == pytest.approx([0.0, *((np.arange(1, 6) * 5 - 0.1) / 50)], abs=1e-6)
    assert found["offset_timer"] == 0.0  # in the middle of its lane


def test_nothing_is_observed_where_nothing_is_asked_for() -> None:
    sim, obs = driven(5, obs="none")
    assert obs == {} and sim.observation_spec == {} and sim.privileged == ()
    out = drive(sim)
    assert out.obs == {} and out.final_obs == {}
    small = make(num_envs=2, obs="vector", nearest=0, polylines=0)
    assert set(small.reset()) == set(small.observation_spec) == {"scalars", "route", "privileged"}


def test_every_way_of_observing_shows_the_same_drive() -> None:
    found = {kind: driven(30, obs=kind, raster_pixels=64)[1] for kind in ("vector", "raster", "both")}
    assert set(found["raster"]) == {"bev", "ego", "privileged"}
    assert set(found["both"]) == {"bev"} | set(found["vector"])
    for kind in ("vector", "raster"):
        for key, value in found[kind].items():
            if key in found["both"]:
                assert np.array_equal(value, found["both"][key]), key
    # the scalars beside a raster are some of the others
    for k, name in enumerate(EGO):
        assert np.array_equal(found["raster"]["ego"][:, k], found["both"]["scalars"][:, AT[name]]), name


# views

CHANNEL = {name: i for i, name in enumerate(raster.CHANNELS)}
PX, PPM = 64, 2.0
AHEAD_M = PX * (1 - 100 / 256) / PPM
"""Of the upper edge: the ego's centre lies 39 rows below it."""


def middles(pixels: int = PX) -> tuple[Array, Array]:
    """m ahead and m left of the ego, of each pixel's middle."""
    ahead = pixels * (1 - 100 / 256) / PPM - (np.arange(pixels) + 0.5) / PPM
    left = (pixels / 2 - np.arange(pixels) - 0.5) / PPM
    return np.broadcast_to(ahead[:, None], (pixels, pixels)), np.broadcast_to(left[None], (pixels, pixels))


def under(ego: Any, box: Any, length: float, width: float, forward: float = 0.0) -> Array:
    """Which pixels have their middle in a box; `forward` m ahead of where it is."""
    ahead, left = middles()
    f, w = relative(ego, box["x"], box["y"])
    c, s = (
        box["cos"] * ego["cos"] + box["sin"] * ego["sin"],
        box["sin"] * ego["cos"] - box["cos"] * ego["sin"],
    )
    u, v = ahead - f - forward * c, left - w - forward * s
    return (np.abs(u * c + v * s) <= length / 2) & (np.abs(v * c - u * s) <= width / 2)


@pytest.fixture(scope="module")
def views() -> tuple[Any, Array]:
    sim, obs = driven(60, obs="raster", raster_pixels=PX)
    return sim, obs["bev"]


def test_road_users_and_parked_cars_are_under_their_pixels(views: tuple[Any, Array]) -> None:
    sim, found = views
    world, arrays = sim.core.world, sim.core.bank.arrays
    seen = {"vehicles": 0, "vulnerable": 0}
    for env in range(N):
        ego = world.egos[env]
        vehicle, person, moving = np.zeros((3, PX, PX), bool)
        for user in world.agents[env]:
            if user["kind"] == 0 or user["x"] > 1e5:
                continue
            box = under(ego, user, max(user["length"], 1.6), max(user["width"], 1.6))
            if user["kind"] in (tables.PEDESTRIAN, tables.CYCLIST):
                person |= box
            else:
                vehicle |= box
            if user["v"] > 0.5:
                moving |= under(ego, user, user["v"], 0.6, 0.5 * user["v"])
        row = arrays.maps[world.episodes["map"][env]]
        for box in arrays.parked[row["parked"] : row["parked"] + row["parkeds"]]:
            vehicle |= under(ego, box, box["length"], box["width"])
        expected = {
            "vehicles": np.where(vehicle, np.where(moving, 128, 255), np.where(moving & ~person, 64, 0)),
            "vulnerable": np.where(person, np.where(moving, 128, 255), 0),
        }
        for name, picture in expected.items():
            # a middle may lie on an edge to within a rounding
            assert (found[env, :, :, CHANNEL[name]] != picture).sum() <= 3, (env, name)
            seen[name] += int((picture > 0).any())
    assert seen["vehicles"] == N and seen["vulnerable"] > 2


def test_the_ego_is_where_it_must_be_and_looks_up(views: tuple[Any, Array]) -> None:
    """4.7 m by 1.9 m at 2 pixels a metre: rows 39 +- 4.7, columns 32 +- 1.9."""
    _, found = views
    vehicles = found[:, :, :, CHANNEL["vehicles"]]
    assert (vehicles[:, 35:43, 31:33] >= 128).all()
    assert (vehicles[:, 45:47, 31:33] == 0).mean() > 0.9
    straight, along = middles()
    box = (np.abs(straight) <= 2.35) & (np.abs(along) <= 0.95)
    assert box.sum() == 10 * 4  # rows 34 to 43, columns 30 to 33
    assert (vehicles[:, box] >= 128).all()


def test_the_surface_is_sampled_from_the_map(views: tuple[Any, Array]) -> None:
    """Every pixel shows the cell under its middle; where there is no map, nothing."""
    sim, found = views
    arrays, world = sim.core.bank.arrays, sim.core.world
    ahead, left = middles()
    outside = 0
    for env in range(N):
        ego = world.egos[env]
        row = arrays.maps[world.episodes["map"][env]]
        x = ego["x"] + ahead * ego["cos"] - left * ego["sin"]
        y = ego["y"] + ahead * ego["sin"] + left * ego["cos"]
        r = np.floor((y - row["y0"]) / row["cell"]).astype(int)
        c = np.floor((x - row["x0"]) / row["cell"]).astype(int)
        inside = (r >= 0) & (c >= 0) & (r < row["rows"]) & (c < row["columns"])
        cell = np.where(inside, arrays.tiles[np.where(inside, row["tile"] + r * row["columns"] + c, 0)], 0)
        for name, bit in (
            ("road", tables.DRIVABLE),
            ("broken_lines", tables.BROKEN),
            ("shoulder", tables.SHOULDER),
        ):
            wrong = (found[env, :, :, CHANNEL[name]] > 0) != (cell & bit > 0)
            assert wrong.mean() < 0.01, (env, name)
        lines = np.where(cell & tables.SOLID > 0, 255, np.where(cell & tables.CROSSWALK > 0, 128, 0))
        assert (found[env, :, :, CHANNEL["solid_lines"]] != lines).mean() < 0.01
        # a pixel further off the map than a cell
        far = (r < -1) | (c < -1) | (r > row["rows"]) | (c > row["columns"])
        for name in ("road", "solid_lines", "broken_lines", "shoulder"):
            assert (found[env, far, CHANNEL[name]] == 0).all()
        outside += int(far.sum())
    assert outside > 200


def test_the_route_is_drawn_from_where_the_ego_is(views: tuple[Any, Array]) -> None:
    sim, found = views
    for env in range(N):
        ego = sim.core.world.egos[env]
        points = route_of(sim, env)[ego["index"] : ego["index"] + 150]
        expected = np.zeros((PX, PX), bool)
        for p in points:
            f, _ = relative(ego, p["x"], p["y"])
            if f < AHEAD_M + 1:
                expected |= under(ego, p, 1.2, 3.0)
        wrong = (found[env, :, :, CHANNEL["route"]] > 0) != expected
        # points aside of the view are left out, though a corner of theirs may be in it
        assert wrong[:, 3:-3].sum() <= 4, env


def test_lights_and_signs_are_drawn_at_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = {"green": (3.0, 80), "yellow": (11.0, 170), "red": (20.0, 255)}
    for phase, level in levels.values():
        sim = on_roads(monkeypatch, approach(Control.LIGHT), obs="raster", raster_pixels=PX)
        scene = Scene(sim)
        scene.ego(LINE_M - 12.0, 0.0)
        scene["episodes/time"], scene["episodes/offset"] = 0.0, phase
        scene.apply()
        found = drive(sim).obs["bev"][0].numpy()
        rows, columns = np.nonzero(found[:, :, CHANNEL["lights"]])
        assert set(found[rows, columns, CHANNEL["lights"]].tolist()) == {level}
        # 12 m ahead of the ego's centre, 24 rows up; as wide as the lane
        assert rows.mean() == pytest.approx(39 - 24 - 0.5, abs=1.0) and np.ptp(rows) <= 3
        assert columns.mean() == pytest.approx(31.5, abs=0.01) and len(set(columns)) == pytest.approx(7, abs=1)
        assert (found[:, :, CHANNEL["stop_signs"]] == 0).all()
    sim = on_roads(monkeypatch, approach(Control.STOP), obs="raster", raster_pixels=PX)
    scene = Scene(sim)
    scene.ego(LINE_M - 12.0, 0.0)
    scene.apply()
    found = drive(sim).obs["bev"][0].numpy()
    rows, _ = np.nonzero(found[:, :, CHANNEL["stop_signs"]])
    assert rows.mean() == pytest.approx(39 - 24 - 0.5, abs=1.0)
    assert (found[:, :, CHANNEL["lights"]] == 0).all()


def test_a_car_ahead_is_up_and_one_on_the_left_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, avenue(), obs="raster", raster_pixels=PX)
    scene = Scene(sim)
    scene.ego(100.0, 0.0)
    scene.car(1, 1, 105.0 + 10.0, kind=tables.OBSTACLE)  # 10 m ahead: 20 rows up
    scene.car(2, 0, 105.0 - 5.0, kind=tables.OBSTACLE)  # 3.5 m left, 5 m back: 7 columns left, 10 rows down
    scene.walker(3, 105.0 + 6.0, -5.25 - 4.0)  # 6 m ahead, 4 m right
    scene.apply()
    found = drive(sim).obs["bev"][0].numpy()
    vehicles = found[:, :, CHANNEL["vehicles"]]
    assert (vehicles[16:22, 31:33] == 255).all()
    assert (vehicles[46:52, 24:26] == 255).all()
    rows, columns = np.nonzero(found[:, :, CHANNEL["vulnerable"]])
    assert (rows.mean(), columns.mean()) == pytest.approx((39 - 12 - 0.5, 32 + 8 - 0.5), abs=0.51)
    assert rows.min() >= 25 and len(rows) in (9, 12, 16)  # 1.6 m by 1.6 m, more than they are
    # a moving car has a line ahead of it, as long as its way in a second
    scene.car(1, 1, 105.0 + 8.0, 8.0, desire=0.8)
    scene.apply()
    drive(sim)
    column = sim.core.obs["bev"][0, :, 31, CHANNEL["vehicles"]]
    assert (column == 64).sum() == pytest.approx((8.0 - 2.25) * PPM, abs=1)


def test_every_packed_pixel_is_expanded_to_its_channels() -> None:
    """Each pixel's ten bytes lie where they belong, beside whichever neighbours."""
    packed = np.random.default_rng(0).permutation(1 << raster.BITS).astype(np.uint16)
    words = np.zeros(len(packed) // raster.PIXELS * raster.WORDS, np.uint64)
    raster.expand(packed, raster.channel_table(), words)
    assert np.array_equal(words.view(np.uint8).reshape(-1, 10), raster.levels()[packed])


def test_packed_and_expanded_views_agree() -> None:
    _, channels = driven(40, obs="raster", raster_pixels=48)
    sim, packed = driven(40, obs="raster", raster_pixels=48, packed=True)
    assert packed["bev"].shape == (N, 48, 48, 2)
    assert sim.observation_spec["bev"].names == ("bits_low", "bits_high")
    bits = packed["bev"][..., 0].astype(int) + 256 * packed["bev"][..., 1].astype(int)
    assert np.array_equal(raster.levels()[bits], channels["bev"])
    assert sum((channels["bev"][..., k] > 0).any() for k in range(10)) >= 7


def turned(builder: RoadBuilder, angle: float) -> RoadBuilder:
    """The same roads, turned about the origin."""
    rotation = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    for lane in builder.lanes:
        lane.points = lane.points @ rotation
    builder.crosswalks = [
        walk._replace(start=tuple(np.array(walk.start) @ rotation), end=tuple(np.array(walk.end) @ rotation))
        for walk in builder.crosswalks
    ]
    builder.parked = [
        box._replace(**dict(zip("xy", np.array([box.x, box.y]) @ rotation, strict=True)), yaw=box.yaw + angle)
        for box in builder.parked
    ]
    return builder


@pytest.mark.parametrize("family", ["signal", "straight"])
def test_a_turned_world_looks_the_same(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """The view turns with the ego: boxes and routes to a pixel, what is sampled but for the edges of cells."""
    found: list[Array] = []
    for angle in (0.0, math.pi / 2, 0.7):
        sim = on_roads(monkeypatch, turned(procedural.layout(family, 3), angle), obs="both", raster_pixels=PX)
        scene = Scene(sim)
        scene.ego(15.0, 5.0)
        for slot in range(1, 9):
            lane = slot % len(lanes_of(sim))
            scene.car(slot, lane, min(10.0 + 9.0 * slot, lanes_of(sim)["length"][lane]), 3.0)
        scene["episodes/time"], scene["episodes/offset"] = 0.0, 3.0
        found.append(scene.apply()["bev"][0].numpy().copy())
    for other in found[1:]:
        for name, k in CHANNEL.items():
            same = (found[0][:, :, k] == other[:, :, k]).mean()
            drawn = name in ("vehicles", "vulnerable", "route", "lights", "stop_signs", "speed_signs")
            assert same > (0.997 if drawn else 0.9), name
    assert (found[0][:, :, CHANNEL["vehicles"]] > 0).sum() > 60


def test_a_turned_ego_sees_a_turned_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """By quarter turns on the spot: around it the view is the same picture, turned the other way."""
    reach = 20
    pictures: list[Array] = []
    for quarter in range(4):
        sim = on_roads(monkeypatch, procedural.layout("signal", 3), obs="raster", raster_pixels=PX)
        scene = Scene(sim)
        scene.ego(60.0, 0.0, psi=quarter * math.pi / 2)
        ego = sim.core.world.egos[0]
        own = int(ego["lane"] - sim.core.bank.arrays.maps["lane"][0])
        scene.car(1, own, 87.0, kind=tables.OBSTACLE)  # the ego is at 80 m
        scene.car(2, own, 74.0, d=3.2, kind=tables.OBSTACLE)
        scene.walker(3, float(scene["egos/x"][0]) + 4.0, float(scene["egos/y"][0]) + 6.0, 0.5)
        obs = scene.apply()
        pictures.append(obs["bev"][0, 39 - reach : 39 + reach, 32 - reach : 32 + reach].numpy().copy())
    for quarter in range(1, 4):
        # the ego has turned to the left: the world turns to the right, and back again to the left here
        back = np.rot90(pictures[quarter], quarter)
        middle = np.ones((2 * reach, 2 * reach), bool)
        middle[reach - 6 : reach + 6, reach - 6 : reach + 6] = False  # its own box turns with it
        for name, k in CHANNEL.items():
            assert (back[:, :, k] == pictures[0][:, :, k])[middle].mean() > 0.998, (quarter, name)
    assert (pictures[0][:, :, CHANNEL["road"]] > 0).mean() > 0.2
    assert (pictures[0][:, :, CHANNEL["vehicles"]] > 0).sum() > 90
    assert (pictures[0][:, :, CHANNEL["vulnerable"]] > 0).any()
