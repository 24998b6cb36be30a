"""Driving: rewards by hand, events and how they end an episode, fault, the score, the info; on roads made for it."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from robotrl.sims.bev import procedural
from robotrl.sims.driving import tables
from robotrl.sims.driving.geometry import BRAKE_MPS2
from robotrl.sims.driving.rewards import RewardCfg
from robotrl.sims.driving.roads.lanes import Control, RoadBuilder
from robotrl.sims.driving.scores import Route, leaderboard_2_0
from robotrl.spec import Step
from tests.kits.bev_kit import EGO_HALF_M, Array, Scene, drive, make, on_roads, pose_on, route_of

DT_S = 0.1
LIMIT_MPS = 10.0
COAST = 0.0


def avenue(lanes: int = 2, oncoming: int = 2, length: float = 400.0) -> RoadBuilder:
    """A straight road along x; lane 0 is its inner, the last of `lanes` its outer lane, which the route takes."""
    builder = RoadBuilder("avenue")
    road = procedural.two_way(builder, np.array([[0.0, 0.0], [length, 0.0]]), lanes, oncoming, LIMIT_MPS)
    builder.route((road.forward[-1],), start_s=5.0, end_s=length - 5.0)
    return builder


LINE_M = 89.0
"""Of the stop line on the approach."""


def approach(control: Control) -> RoadBuilder:
    """100 m to a crossing with a stop line, over it, and on; green for 10 s, yellow for 3 s, red for 17 s."""
    builder = RoadBuilder("approach")
    ways = [builder.lane(np.array([[a, 0.0], [b, 0.0]]), LIMIT_MPS, junction=a == 90.0) for a, b in SECTIONS]
    builder.follow(ways[0], ways[1])
    builder.follow(ways[1], ways[2])
    group = builder.signal(0.0, 10.0)
    builder.cycle_s = 30.0
    builder.stop(ways[0], control, group if control == Control.LIGHT else -1, LINE_M)
    builder.route(ways, start_s=0.0, end_s=100.0)
    return builder


SECTIONS = ((0.0, 90.0), (90.0, 110.0), (110.0, 230.0))


def terms(sim: Any, env: int = 0) -> dict[str, float]:
    return {name: float(value[env]) for name, value in sim.terms.items()}


def length_of(sim: Any) -> float:
    return len(route_of(sim))


def events(out: Step, env: int = 0) -> set[str]:
    return {name for name, bit in tables.EVENTS.items() if int(out.info["events"][env]) & bit}


def situation(sim: Any, *at: float, clear: bool = True, **ego: Any) -> Scene:
    """The ego on its route (`Scene.ego`), nobody else; not put back yet."""
    scene = Scene(sim)
    if clear:
        scene.clear()
    scene.ego(*at, **ego)
    return scene


# CaRL's reward


def test_progress_counts_in_percent_of_the_route_and_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, avenue())
    length = 389.0  # from 5 m to 395 m, in whole metres, the last point left out
    assert sim.core.bank.arrays.routes["length"][sim.core.world.episodes["route"][0]] == length
    situation(sim, 100.0, 8.0).apply()
    out = drive(sim)
    assert float(out.reward[0]) == pytest.approx(100 * 0.8 / length, rel=1e-4)
    assert terms(sim)["progress"] == pytest.approx(100 * 0.8 / length, rel=1e-4)
    for name in ("outside", "speeding", "ttc", "comfort", "centre"):
        assert terms(sim)[name] == 1.0
    # again where it has been before: nothing
    situation(sim, 100.0, 8.0, best=120.0).apply()
    assert float(drive(sim).reward[0]) == 0.0
    # over its old best: only what lies beyond
    situation(sim, 100.0, 8.0, best=100.5).apply()
    assert float(drive(sim).reward[0]) == pytest.approx(100 * 0.3 / length, rel=1e-3)


def test_a_larger_penalty_costs_that_much_at_a_collision_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    rewards: list[float] = []
    for options in ({}, {"end_penalty": 5.0}):
        sim = on_roads(monkeypatch, avenue(), **options)
        scene = situation(sim, 100.0, 8.0)
        scene.car(1, 1, 105.0 + EGO_HALF_M + 2.25 + 0.4, kind=tables.OBSTACLE)
        scene.apply()
        out = drive(sim)
        assert events(out) == {"static"}
        rewards.append(float(out.reward[0]))
    assert rewards[0] - rewards[1] == pytest.approx(4.0, abs=1e-4)


def test_a_whole_drive_sums_to_a_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, avenue(), limit_s=100.0)
    situation(sim, 0.0, 9.0).apply()
    total, steps = 0.0, 0
    while True:
        out = drive(sim)
        total, steps = total + float(out.reward[0]), steps + 1
        if bool(out.terminated[0]):
            break
    assert events(out) == {"finished"}
    assert total == pytest.approx(100.0, abs=100 * 1.0 / 389.0 + 0.01)  # done within the last metre
    assert steps == pytest.approx(388 / 0.9, abs=2)


@pytest.mark.parametrize(
    ("speed", "factor"), [(9.9, 1.0), (10.0, 1.0), (11.0, 1 - 1 / 2.23), (12.0, 1 - 2 / 2.23), (12.3, 0.0), (20.0, 0.0)]
)
def test_speeding_takes_its_share(monkeypatch: pytest.MonkeyPatch, speed: float, factor: float) -> None:
    sim = on_roads(monkeypatch, avenue())
    situation(sim, 50.0, speed).apply()
    out = drive(sim)
    assert terms(sim)["speeding"] == pytest.approx(factor, abs=1e-4)
    assert float(out.reward[0]) == pytest.approx(factor * 100 * speed * DT_S / 389.0, abs=1e-4)


def test_outside_the_lanes_of_its_direction_nothing_is_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The route is on the outer lane of two: 1.75 m to its right edge, 5.25 m to the middle of the road."""
    sim = on_roads(monkeypatch, avenue())
    for d, inside in ((0.0, True), (3.5, True), (5.2, True), (5.3, False), (7.0, False), (-1.7, True), (-1.8, False)):
        situation(sim, 50.0, 8.0, d=d).apply()
        out = drive(sim)
        assert terms(sim)["outside"] == (1.0 if inside else 0.0), d
        assert (float(out.reward[0]) > 0) == inside, d


def test_off_the_centre_of_a_lane_for_three_seconds_costs_half(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, avenue())
    # off the route's lane; off the neighbour's, whose centre is 3.5 m to the left; within half a metre of either
    for d, off in ((0.6, True), (-0.6, True), (4.1, True), (2.9, True), (3.5, False), (0.4, False), (3.9, False)):
        scene = situation(sim, 50.0, 5.0, d=d)
        scene["judges/offset"] = 0.0
        scene.apply()
        factors = []
        for _ in range(40):
            drive(sim)
            factors.append(terms(sim)["centre"])
        assert factors[:29] == [1.0] * 29
        assert factors[31:] == [0.5 if off else 1.0] * 9, d
    # back in the centre the timer starts anew
    scene = Scene(sim)
    scene.ego(50.0, 5.0, d=0.6)
    scene["judges/offset"] = 5.0
    scene.apply()
    drive(sim)
    assert terms(sim)["centre"] == 0.5
    scene.ego(50.0, 5.0, d=0.0)
    scene.apply()
    drive(sim)
    assert terms(sim)["centre"] == 1.0 and sim.core.world.judges["offset"][0] == 0.0


def test_a_junction_has_no_lane_centre(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, approach(Control.NONE))
    scene = situation(sim, 95.0, 1.0, d=0.6)
    scene["judges/offset"] = 5.0
    scene.apply()
    drive(sim)
    assert terms(sim)["centre"] == 1.0


@pytest.mark.parametrize(
    ("gap", "own", "other", "near"),
    [
        (8.0, 10.0, 0.0, True),  # less than a second away
        (11.5, 10.0, 0.0, False),
        (4.0, 10.0, 7.0, False),  # closes in by 3 m in a second
        (2.0, 10.0, 7.0, True),
        (0.5, 0.05, 0.0, False),  # who stands does not run into anything
    ],
)
def test_a_near_collision_halves_the_reward_for_as_long_as_it_holds(
    monkeypatch: pytest.MonkeyPatch, gap: float, own: float, other: float, near: bool
) -> None:
    sim = on_roads(monkeypatch, avenue(), reward_terms=RewardCfg(hold_s=2.0))
    scene = situation(sim, 100.0, own)
    # the route begins at 5 m of the lane; the look is at every second step
    scene.car(1, 1, 105.0 + EGO_HALF_M + 2.25 + gap, other, desire=other / LIMIT_MPS, kind=tables.CAR)
    scene["episodes/steps"] = 1
    scene.apply()
    out = drive(sim)
    assert terms(sim)["ttc"] == (0.5 if near else 1.0)
    if own > 1.0:
        assert float(out.reward[0]) == pytest.approx((0.5 if near else 1.0) * 10 * own / 389.0, rel=1e-3)
    # the other is taken away: it holds for 2 s
    after = Scene(sim)
    after.clear()
    after.apply()
    held = []
    for _ in range(25):
        drive(sim)
        held.append(terms(sim)["ttc"] == 0.5)
    assert sum(held) == pytest.approx(20 if near else 0, abs=1)
    assert held == sorted(held, reverse=True)


def test_somebody_beside_or_behind_or_going_away_is_no_near_collision(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, avenue())
    scene = situation(sim, 100.0, 9.0)
    scene.car(1, 0, 106.0, 9.0, desire=0.9)
    scene.car(2, 1, 90.0, 9.0, desire=0.9)
    scene.car(3, 1, 112.0, 9.5, desire=0.95)
    scene.apply()
    for _ in range(10):
        drive(sim)
        assert terms(sim)["ttc"] == 1.0


LIMITS = {
    "accel": (-4.05, 2.40),
    "accel_lat": 4.89,
    "jerk": 8.37,
    "jerk_lon": 4.13,
    "yaw_rate": 0.95,
    "yaw_accel": 1.93,
}
"""nuPlan's, as the paper gives them."""


def violations(speeds: list[float], yaws: list[float]) -> Array:
    """(6,) which limits the end of a drive violates; derivatives are those of fitted parabolas (Savitzky and Golay).

    Before the drive everything was as at its beginning.
    """
    at = np.arange(-2, 3) * DT_S

    def slope(values: Array) -> Array:
        """At the middle of each five samples: of the parabola that fits them best."""
        windows = np.lib.stride_tricks.sliding_window_view(values, 5)
        return np.polyfit(at, windows.T, 2)[1]

    v = np.concatenate([np.full(20, speeds[0]), speeds])[-20:]
    yaw = np.concatenate([np.full(20, yaws[0]), np.unwrap(yaws)])[-20:]
    lon, rate = slope(v), slope(yaw)
    lat = v[2:-2] * rate
    jerk_lon, jerk_lat = slope(lon)[-1], slope(lat)[-1]
    return np.array(
        [
            not LIMITS["accel"][0] <= lon[-1] <= LIMITS["accel"][1],
            abs(lat[-1]) > LIMITS["accel_lat"],
            math.hypot(jerk_lon, jerk_lat) > LIMITS["jerk"],
            abs(jerk_lon) > LIMITS["jerk_lon"],
            abs(rate[-1]) > LIMITS["yaw_rate"],
            abs(slope(rate)[-1]) > LIMITS["yaw_accel"],
        ]
    )


def test_comfort_is_judged_by_filtered_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random driving on a wide field of lanes; every limit is passed somewhere and kept elsewhere."""
    n, steps = 12, 60
    sim = on_roads(monkeypatch, avenue(8, 8), num_envs=n, reward_terms=RewardCfg(hold_s=1.0))
    scene = situation(sim, 100.0, 8.0, d=10.0)
    for env in range(n):
        scene.ego(100.0, 1.0 + env, d=10.0, env=[env])
    scene.apply()
    rng = np.random.default_rng(0)
    world = sim.core.world
    speeds = [[float(v)] for v in world.egos["v"]]
    yaws = [[float(yaw)] for yaw in world.egos["yaw"]]
    last = np.full((n, 6), -1000.0)
    seen = np.zeros(6, int)
    alive = np.ones(n, bool)
    target = rng.uniform(-1, 1, (n, 2)) * (0.4, 1.0)
    compared = 0
    for t in range(steps):
        if t % 6 == 0:
            target = rng.uniform(-1, 1, (n, 2)) * (0.4, 1.0)
        out = sim.step(torch.from_numpy(target.astype(np.float32)))
        alive &= ~(out.terminated | out.truncated).numpy()
        for env in np.flatnonzero(alive):
            speeds[env].append(float(world.egos["v"][env]))
            yaws[env].append(float(world.egos["yaw"][env]))
            if t < 9:
                continue  # until ten samples have been seen, the second derivatives are not judged
            bad = violations(speeds[env], yaws[env])
            last[env, bad] = t
            seen += bad
        if t < 25:
            continue
        held = (t - last) * DT_S < 1.0 - 1e-3
        edge = np.abs((t - last) * DT_S - 1.0) < 0.05
        for env in np.flatnonzero(alive & ~edge.any(axis=1)):
            assert terms(sim, env)["comfort"] == pytest.approx(1 - 0.5 * held[env].sum() / 6, abs=1e-6), (t, env)
            assert ((world.judges["comfort"][env] > 0) == held[env]).all()
            compared += 1
    assert compared > 100
    assert (seen > 0).all(), dict(zip(tables.COMFORT, seen, strict=True))


def test_full_braking_breaks_three_limits_and_gentle_driving_none(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, avenue(), num_envs=2)
    situation(sim, 100.0, 9.0).apply()
    for t in range(22):
        # from the tenth step on: -4.95 m/s^2 at once, more than 4.05; the jerk passes both of its limits
        brake = -1.0 if t >= 10 else 0.0
        sim.step(torch.tensor([[0.0, brake], [0.0, brake * 0.3]]))
    found = [terms(sim, env)["comfort"] for env in (0, 1)]
    assert found[0] == pytest.approx(1 - 0.5 * 3 / 6)
    assert found[1] == 1.0
    names = [name for name, timer in zip(tables.COMFORT, sim.core.world.judges["comfort"][0], strict=True) if timer > 0]
    assert names == ["accel", "jerk", "jerk_lon"]


def test_a_collision_costs_one_and_so_does_a_red_light_but_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, avenue())
    scene = situation(sim, 100.0, 8.0)
    scene.car(1, 1, 110.0, 0.0, kind=tables.OBSTACLE)
    scene.apply()
    out = drive(sim)
    assert events(out) == {"static"}
    assert terms(sim)["end"] == -1.0
    # the near collision was seen or not, by the parity of the step
    assert float(out.reward[0]) == pytest.approx(10 * 8 / 389.0 * terms(sim)["ttc"] - 1.0, rel=1e-4)
    situation(sim, 385.0, 8.0).apply()
    out = drive(sim)
    while not out.terminated[0]:
        out = drive(sim)
    assert events(out) == {"finished"} and terms(sim)["end"] == 0.0
    situation(sim, 100.0, 8.0, d=-10.0).apply()
    out = drive(sim)
    assert events(out) == {"off_road"} and terms(sim)["end"] == 0.0 and float(out.reward[0]) == 0.0
    # a light
    sim = on_roads(monkeypatch, approach(Control.LIGHT))
    scene = situation(sim, LINE_M - EGO_HALF_M - 0.4, 8.0)
    scene["episodes/time"], scene["episodes/offset"] = 0.0, 20.0
    scene.apply()
    out = drive(sim)
    assert events(out) == {"red_light"} and terms(sim)["end"] == -1.0


# Roach's reward


def test_roach_sums_speed_offset_heading_and_steering(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, avenue(), reward="roach")
    situation(sim, 100.0, 4.0, d=0.5, psi=0.1).apply()
    out = drive(sim)
    # it has gone on by 0.4 m at 0.1 rad: 0.04 m further to the left
    assert terms(sim)["lateral"] == pytest.approx(-(0.5 + 0.4 * math.sin(0.1)) / 2, abs=1e-3)
    assert terms(sim)["heading"] == pytest.approx(-0.1, abs=1e-5)
    assert terms(sim)["speed"] == pytest.approx(1 - abs(4 - 6) / 6, abs=1e-4)
    assert terms(sim)["steering"] == 0.0
    assert float(out.reward[0]) == pytest.approx(1 - 2 / 6 - 0.26996 - 0.1, abs=1e-3)
    # a steering action that moves by more than 0.01 costs 0.1, one that stays costs nothing
    for before, now, cost in ((0.0, 0.02, 1.0), (0.02, 0.02, 0.0), (0.02, 0.025, 0.0), (0.025, -0.2, 1.0)):
        scene = situation(sim, 100.0, 6.0)
        scene["judges/steer"] = before
        scene.apply()
        out = drive(sim, steer=now)
        assert terms(sim)["steering"] == -cost
        parts = [terms(sim)[name] for name in ("speed", "lateral", "heading")]
        assert float(out.reward[0]) == pytest.approx(sum(parts) - 0.1 * cost, abs=1e-5)
    # too fast is as bad as too slow
    situation(sim, 100.0, 9.0).apply()
    drive(sim)
    assert terms(sim)["speed"] == pytest.approx(1 - 3 / 6, abs=1e-4)


def test_roachs_wanted_speed_falls_to_nothing_before_a_car_a_light_and_a_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the last 5 m: before a line at it, behind a car 3 m short of it."""
    sim = on_roads(monkeypatch, avenue(), reward="roach")
    for gap, wanted in ((20.0, 6.0), (8.0, 6.0), (5.5, 3.0), (3.0, 0.0), (1.0, 0.0)):
        scene = situation(sim, 100.0, 0.0)
        scene.car(1, 1, 105.0 + EGO_HALF_M + 2.25 + gap, kind=tables.OBSTACLE)
        scene.apply()
        drive(sim)
        assert terms(sim)["speed"] == pytest.approx(1 - wanted / 6, abs=1e-3), gap
    for control, phase, closed in (
        (Control.LIGHT, 2.0, False),
        (Control.LIGHT, 11.0, True),
        (Control.LIGHT, 20.0, True),
        (Control.STOP, 0.0, True),
        (Control.YIELD, 0.0, False),
    ):
        sim = on_roads(monkeypatch, approach(control), reward="roach")
        for ahead in (10.0, 5.0, 2.5, 0.5):
            scene = situation(sim, LINE_M - EGO_HALF_M - ahead, 0.2)
            scene["episodes/time"], scene["episodes/offset"] = 0.0, phase
            scene.apply()
            drive(sim)
            wanted = 6.0 * min((ahead - 0.02) / 5.0, 1.0) if closed else 6.0
            assert terms(sim)["speed"] == pytest.approx(1 - abs(0.2 - wanted) / 6, abs=2e-3), (control, phase, ahead)


def test_roachs_failures_cost_one_and_collisions_the_speed_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, avenue(), reward="roach")
    scene = situation(sim, 100.0, 8.0)
    scene.car(1, 1, 110.0, 0.0, kind=tables.OBSTACLE)
    scene.apply()
    out = drive(sim)
    assert terms(sim)["end"] == pytest.approx(-1.0 - 8.0)
    assert float(out.reward[0]) == pytest.approx(terms(sim)["speed"] - 9.0, abs=1e-4)
    situation(sim, 100.0, 8.0, d=-10.0).apply()
    assert events(drive(sim)) == {"off_road"}
    assert terms(sim)["end"] == -1.0
    situation(sim, 388.5, 6.0).apply()
    assert events(drive(sim)) == {"finished"}
    assert terms(sim)["end"] == 0.0


def test_a_reward_of_ones_own_composes_both(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = RewardCfg(
        progress=2.0, factors=("speeding",), weights={"speed": 0.5, "alive": 0.25}, ends={"finished": 7.0}, hold_s=1.0
    )
    sim = on_roads(monkeypatch, avenue(), reward_terms=cfg)
    situation(sim, 100.0, 11.0, d=7.0).apply()  # outside its lanes, which is no factor here
    out = drive(sim)
    expected = 2 * (100 * 1.1 / 389) * (1 - 1 / 2.23) + 0.5 * (1 - 5 / 6) + 0.25
    assert float(out.reward[0]) == pytest.approx(expected, abs=1e-3)
    situation(sim, 388.5, 6.0).apply()
    out = drive(sim)
    assert float(out.reward[0]) == pytest.approx(2 * 100 * 0.5 / 389 + 0.5 + 0.25 + 7.0, abs=0.01)


# events


def test_hits_are_told_apart_and_end_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, avenue(), num_envs=5)
    scene = situation(sim, 100.0, 8.0)
    for env, kind in ((0, tables.CAR), (1, tables.CYCLIST), (2, tables.OBSTACLE)):
        scene.car(1, 1, 109.9, 0.0, env=[env], kind=kind)
    scene.walker(1, 107.8 + EGO_HALF_M - 2.35, -5.25, env=[3])
    scene.car(1, 0, 105.0, 8.0, env=[4])  # side by side: 3.5 m apart
    scene.apply()
    out = drive(sim)
    assert [events(out, env) for env in range(5)] == [{"vehicle"}, {"vehicle"}, {"static"}, {"pedestrian"}, set()]
    assert out.terminated.tolist() == [True] * 4 + [False]
    assert out.truncated.tolist() == [False] * 5
    assert not out.info["success"].any()
    assert out.final_ids.tolist() == [0, 1, 2, 3]


def test_parked_cars_are_hit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = avenue()
    builder.park(1, 150.0, -2.9)
    sim = on_roads(monkeypatch, builder, num_envs=2)
    scene = situation(sim, 100.0, 8.0)
    scene.ego(144.5 - EGO_HALF_M - 2.25 + 0.3, 8.0, d=-1.2, env=[0])
    scene.ego(144.5 - EGO_HALF_M - 2.25 + 0.3, 8.0, d=0.0, env=[1])
    scene.apply()
    out = drive(sim)
    assert [events(out, env) for env in (0, 1)] == [{"static"}, set()]


def test_nothing_is_driven_through_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 30 m/s a step is 3 m long, a person 0.6 m thick: what is met halfway counts."""
    sim = on_roads(monkeypatch, avenue(), num_envs=20)
    scene = situation(sim, 100.0, 30.0)
    ahead = np.linspace(0.0, 3.0, 20)
    for env in range(20):
        scene.walker(1, 105.0 + EGO_HALF_M + 0.35 + ahead[env], -5.25, env=[env])
    scene.apply()
    out = drive(sim)
    hit = np.array(["pedestrian" in events(out, env) for env in range(20)])
    assert hit[ahead < 2.9].all()


@pytest.mark.parametrize(
    ("phase", "expected"), [(5.0, set()), (11.5, set()), (13.2, {"red_light"}), (29.5, {"red_light"}), (0.2, set())]
)
def test_the_line_of_a_light_counts_when_the_bumper_passes_it_on_red(
    monkeypatch: pytest.MonkeyPatch, phase: float, expected: set[str]
) -> None:
    sim = on_roads(monkeypatch, approach(Control.LIGHT))
    scene = situation(sim, LINE_M - EGO_HALF_M - 0.5, 8.0)
    scene["episodes/time"], scene["episodes/offset"] = 0.0, phase
    scene.apply()
    out = drive(sim)
    assert events(out) == expected
    assert bool(out.terminated[0]) == bool(expected) and not out.truncated[0]


def test_before_and_behind_the_line_red_means_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, approach(Control.LIGHT))
    for bumper in (LINE_M - 2.0, LINE_M + 0.1, LINE_M + 3.0):
        scene = situation(sim, bumper - EGO_HALF_M, 8.0)
        scene["episodes/time"], scene["episodes/offset"] = 0.0, 20.0
        scene.apply()
        assert events(drive(sim)) == set(), bumper


@pytest.mark.parametrize(("stops_at", "obeyed"), [(None, False), (1.0, True), (3.5, True), (6.0, False)])
def test_a_stop_sign_is_obeyed_by_standing_before_its_line(
    monkeypatch: pytest.MonkeyPatch, stops_at: float | None, obeyed: bool
) -> None:
    sim = on_roads(monkeypatch, approach(Control.STOP))
    if stops_at is not None:
        situation(sim, LINE_M - EGO_HALF_M - stops_at, 0.0).apply()
        drive(sim)
        assert float(sim.core.world.egos["v"][0]) == 0.0
        scene = Scene(sim)
    else:
        scene = situation(sim, LINE_M - EGO_HALF_M - 2.0, 4.0)
    scene["egos/v"] = 4.0
    scene.apply()
    found: set[str] = set()
    for _ in range(25):
        out = drive(sim)
        found |= events(out)
        if out.terminated[0]:
            break
    assert found == (set() if obeyed else {"stop_sign"})


def test_leaving_the_road_and_leaving_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    # eight lanes one way: the route is on the right one, 24.5 m from the left one
    sim = on_roads(monkeypatch, avenue(8, 0))
    for d, expected in (
        (14.9, set[str]()),  # 15 m aside, but on the road
        (15.1, {"off_route"}),
        (-1.0, set[str]()),
        (-2.0, set[str]()),  # half of the car on the verge
        (-4.0, {"off_road"}),
    ):
        situation(sim, 100.0, 5.0, d=d).apply()
        out = drive(sim)
        assert events(out) == expected, d
        assert bool(out.terminated[0]) == bool(expected)
    for d, share in ((0.0, 0.0), (-1.75, 1 / 3), (-1.75 - 0.5, 2 / 3), (-2.9, 1.0)):
        # columns of points at the middle and both sides, 0.95 m apart; the road ends 1.75 m to the right
        situation(sim, 100.0, 0.0, d=d).apply()
        drive(sim)
        assert float(sim.core.world.egos["off"][0]) == pytest.approx(share, abs=0.01) or share == 1.0


def test_standing_too_long_is_being_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, avenue(), blocked_s=2.0)
    situation(sim, 100.0, 0.0).apply()
    steps = 0
    while True:
        out, steps = drive(sim, accel=-1.0), steps + 1
        if out.terminated[0] or steps > 50:
            break
    assert events(out) == {"blocked"} and steps == pytest.approx(20, abs=1)
    # who moves in between is not
    situation(sim, 100.0, 0.0).apply()
    for t in range(60):
        out = drive(sim, accel=0.5 if t % 15 < 3 else -1.0)
        assert not out.terminated[0]


def test_the_time_limit_truncates_and_a_failure_at_that_moment_terminates(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, avenue(), num_envs=3, limit_s=1.0)
    scene = situation(sim, 100.0, 8.0)
    scene.car(1, 1, 105.0 + EGO_HALF_M + 2.25 + 7.6, 0.0, env=[1], kind=tables.OBSTACLE)
    scene.ego(389.0 - 1.0 - 7.6, 8.0, env=[2])
    scene.apply()
    for _ in range(9):
        assert not (out := drive(sim)).terminated.any() and not out.truncated.any()
    out = drive(sim)
    assert [events(out, env) for env in range(3)] == [{"timed_out"}, {"timed_out", "static"}, {"timed_out", "finished"}]
    assert out.terminated.tolist() == [False, True, True]
    assert out.truncated.tolist() == [True, False, False]
    assert out.info["success"].tolist() == [False, False, True]


def test_arriving_in_a_crash_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, avenue(), num_envs=2)
    scene = situation(sim, 389.0 - 1.5, 8.0)
    scene.car(1, 1, 389.0 - 1.5 + 5.0 + EGO_HALF_M + 2.25 + 0.3, 0.0, env=[0], kind=tables.OBSTACLE)
    scene.apply()
    out = drive(sim)
    assert [events(out, env) for env in (0, 1)] == [{"static", "finished"}, {"finished"}]
    assert out.info["success"].tolist() == [False, True]


# fault


def test_whose_fault_a_collision_is(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, avenue(), num_envs=7)
    scene = situation(sim, 100.0, 8.0)
    scene.car(1, 1, 109.9, 2.0, env=[0], desire=0.2)  # runs into the one ahead
    scene.ego(100.0, 0.0, env=[1])  # stands, and is hit from behind
    scene.car(1, 1, 100.5, 8.0, env=[1])
    scene.car(1, 1, 100.5, 12.0, env=[2])  # hit from behind while it drives
    scene.car(1, 1, 109.9, 2.0, env=[3], desire=0.2, reckless=1)  # the scenario's reckless car is met
    scene["episodes/target"][3] = 1
    scene.car(1, 1, 109.9, 0.0, env=[4], kind=tables.OBSTACLE)
    scene.walker(1, 107.8, -5.25, env=[5])
    scene.car(1, 1, 109.9, 2.0, env=[6], desire=0.2, reckless=1)  # somebody of the traffic, distracted just now
    scene.apply()
    out = drive(sim)
    assert out.terminated.all()
    assert [sim.core.drives[env].at_fault for env in range(7)] == [1, 0, 0, 0, 1, 1, 1]
    assert [sim.core.drives[env].collisions for env in range(7)] == [1] * 7


def test_on_red_a_reckless_other_is_no_excuse(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, approach(Control.LIGHT))
    scene = situation(sim, LINE_M - EGO_HALF_M - 0.5, 8.0)
    scene.car(1, 1, 1.0, 0.0, reckless=1, desire=0.1)
    scene["episodes/target"][:] = 1
    scene["agents/x"][:, 1] = LINE_M + 2.25
    scene["episodes/time"], scene["episodes/offset"] = 0.0, 20.0
    scene.apply()
    out = drive(sim)
    assert events(out) == {"red_light", "vehicle"}
    assert sim.core.drives[0].at_fault == 1


# scores and info


def test_scores_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, avenue(), num_envs=4)
    scene = situation(sim, 100.0, 8.0)
    scene.ego(388.5, 6.0, env=[0])  # arrives, alone on the road: 100
    # hits a standing car half way, which is all the traffic: 50 * 0.60; no quarter was driven to its end at its speed
    scene.ego(0.5 * 389.0 - 0.8, 8.0, env=[1])
    scene.car(1, 1, 0.5 * 389.0 + 5.0 + EGO_HALF_M + 2.2, 0.0, env=[1])
    # arrives at half of the speed of the traffic near it: 1 - 0.3 / 2 at the one checkpoint that it has steps for
    scene.ego(388.5, 4.5, env=[2])
    scene.car(1, 0, 310.0, 9.0, env=[2], desire=0.9)
    # a fifth of its way was outside its lanes, and then it left the road: a quarter done
    scene.ego(0.25 * 389.0, 5.0, d=-10.0, env=[3])
    scene["judges/outside_m"][3] = 0.05 * 389.0
    scene.apply()
    out = drive(sim)
    assert [events(out, env) for env in range(4)] == [{"finished"}, {"vehicle"}, {"finished"}, {"off_road"}]
    scores = out.info["driving_score"].tolist()
    assert scores[0] == pytest.approx(100.0)
    assert scores[1] == pytest.approx(50.0 * 0.60, abs=0.05)
    assert scores[2] == pytest.approx(100 * (1 - 0.3 * 0.5), abs=0.05)
    way = 0.25 * 389.0 + 0.5
    assert scores[3] == pytest.approx(100 * way / 389.0 * (1 - (0.05 * 389.0 + 0.5) / way), abs=0.2)
    assert out.info["route_completion"].tolist() == pytest.approx([1.0, 0.5, 1.0, way / 389.0], abs=2e-3)
    assert drive(sim).info["driving_score"].tolist() == [0.0] * 4


def test_info_of_a_long_drive_is_what_the_drives_say() -> None:
    n = 48
    sim = make(num_envs=n, limit_s=15.0)
    sim.queue_states(range(1 << 30, (1 << 30) + 4 * n))
    sim.reset(options={"stagger": True})
    expert, started = sim.make_expert(episode_noise=1.0), torch.ones(n, dtype=torch.bool)
    ended, kinds = 0, set[str]()
    ids = sim.core.state_ids.copy()
    for _ in range(250):
        out = sim.step(expert.act(started))
        started = out.terminated | out.truncated
        assert set(out.info) == {"success", "state_id", "route_completion", "events", "driving_score"}
        assert np.array_equal(out.info["state_id"].numpy(), ids)
        assert not (out.terminated & out.truncated).any()
        assert out.final_ids.tolist() == list(sim.core.drives)
        found = out.info["events"].numpy()
        assert np.array_equal(found > 0, started.numpy())
        assert np.array_equal(out.truncated.numpy(), found == tables.TIMED_OUT)
        for env, drive_ in sim.core.drives.items():
            assert float(out.info["driving_score"][env]) == pytest.approx(leaderboard_2_0(drive_).driving, abs=1e-3)
            assert drive_.completion == pytest.approx(float(out.info["route_completion"][env]))
            names = events(out, env)
            kinds |= names
            assert isinstance(drive_, Route)
            counted = (drive_.vehicles, drive_.pedestrians, drive_.static, drive_.red_lights, drive_.stop_signs)
            assert counted == tuple(
                int(name in names) for name in ("vehicle", "pedestrian", "static", "red_light", "stop_sign")
            )
            assert bool(out.info["success"][env]) <= (drive_.completion == 1.0)
        goes_on = ~started.numpy()
        assert (out.info["driving_score"].numpy()[goes_on] == 0).all()
        route = sim.core.bank.arrays.routes["length"][sim.core.world.episodes["route"]]
        share = sim.core.world.egos["best"] / route
        assert out.info["route_completion"].numpy()[goes_on] == pytest.approx(share[goes_on], abs=1e-6)
        ended += len(sim.core.drives)
        ids = sim.core.state_ids.copy()
    assert ended > 60
    assert {"timed_out", "vehicle"} <= kinds


def test_an_env_does_not_notice_its_neighbours() -> None:
    """An episode is the same among others, on their maps, and alone, whoever steps it."""
    n, steps = 24, 100
    options = {"obs": "both", "raster_pixels": 32, "agents": 48}
    sim = make(num_envs=n, threads=2, **options)
    ids = list(range(1 << 30, (1 << 30) + n))
    sim.reset(options={"state_ids": ids})
    expert, started = sim.make_expert(mode="calm"), torch.ones(n, dtype=torch.bool)
    actions: list[torch.Tensor] = []
    seen: list[dict[str, torch.Tensor]] = []
    users: list[Array] = []
    ends = np.full(n, steps)
    for t in range(steps):
        actions.append(expert.act(started).clone())
        out = sim.step(actions[-1])
        started = out.terminated | out.truncated
        ends[started.numpy()] = np.minimum(ends[started.numpy()], t)
        seen.append({"reward": out.reward.clone()} | {key: value.clone() for key, value in out.obs.items()})
        users.append(sim.core.world.agents.copy())
    assert (ends == steps).sum() > n / 2
    # of each scenario with a junction or several lanes, on the later of its two starts
    for env in (15, 16, 17, 18, 19, 21, 23):
        alone = make(num_envs=1, **options)
        alone.reset(options={"state_ids": [ids[env]]})
        for t in range(ends[env]):
            out = alone.step(actions[t][env : env + 1])
            for name in ("kind", "s", "d", "v", "x", "y"):
                assert np.array_equal(alone.core.world.agents[name][0], users[t][name][env]), (env, t, name)
            for key, value in ({"reward": out.reward} | out.obs).items():
                assert torch.equal(value[0], seen[t][key][env]), (env, t, key)


# the ego


def test_the_ego_moves_by_its_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, avenue(8, 8), num_envs=4, throttle_mps2=3.0)
    situation(sim, 100.0, 5.0).apply()
    sim.step(torch.tensor([[0.0, 1.0], [0.0, -1.0], [1.0, 0.0], [-1.0, 0.0]]))
    egos = sim.core.world.egos
    assert egos["v"].tolist() == pytest.approx([5.3, 5.0 - 0.1 * BRAKE_MPS2, 5.0, 5.0], abs=1e-5)
    assert egos["a"].tolist() == pytest.approx([3.0, -BRAKE_MPS2, 0.0, 0.0], abs=1e-4)
    assert egos["progress"].tolist()[:2] == pytest.approx([100.515, 100.0 + 0.5 - 0.005 * BRAKE_MPS2], abs=1e-4)
    # at full lock the radius is 3.721 m: to the left and to the right
    assert egos["yaw_rate"].tolist() == pytest.approx([0.0, 0.0, 5.0 / 3.721, -5.0 / 3.721], abs=2e-3)
    assert egos["psi"].tolist()[2:] == pytest.approx([0.5 / 3.721, -0.5 / 3.721], abs=2e-4)


def test_the_ego_is_on_its_lane_where_it_is() -> None:
    """What the others see of it, lane and way along it, is the place at which it stands."""
    n = 48
    sim = make(num_envs=n)
    sim.queue_states(range(1 << 30, (1 << 30) + 10 * n))
    sim.reset()
    expert, started = sim.make_expert(), torch.ones(n, dtype=torch.bool)
    errors: list[Array] = []
    for _ in range(150):
        out = sim.step(expert.act(started))
        started = out.terminated | out.truncated
        egos = sim.core.world.egos
        x, y, _, _ = pose_on(sim, egos["lane"], egos["lane_s"], egos["lane_d"])
        inside = ~started.numpy() & (egos["outside"] == 0)
        errors.append(np.hypot(x - egos["x"], y - egos["y"])[inside])
    found = np.concatenate(errors)
    # where one lane ends and the next begins, and across a lane change, the route's direction is another
    assert np.quantile(found, 0.97) < 0.1
    assert found.max() < 1.0


def test_stop_lines_of_a_route_are_those_of_its_lanes() -> None:
    sim = make(num_envs=24, scenarios=("merge", "roundabout", "signal", "crossing"))
    sim.reset(seed=0)
    arrays = sim.core.bank.arrays
    errors: list[float] = []
    for e in range(sim.num_envs):
        points = route_of(sim, e)
        at = np.unique(points["stop"][points["stop"] < tables.FAR])
        for line in at:
            i = int(line)
            lane = arrays.lanes[points["lane"][i]]
            x, y, _, _ = pose_on(sim, points["lane"][i], lane["stop"], 0.0)
            p = points[i]
            errors.append(abs(float((x - p["x"]) * p["cos"] + (y - p["y"]) * p["sin"]) - (float(line) - i)))
    assert len(errors) > 15
    assert max(errors) < 0.1


def test_asking_the_rule_based_driver_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a stop sign, where cars count how long they have stood."""
    sim = on_roads(monkeypatch, approach(Control.STOP))
    situation(sim, LINE_M - EGO_HALF_M - 1.0, 0.0).apply()
    drive(sim)
    before = Scene(sim).state
    expert = sim.make_expert()
    for _ in range(5):
        expert.act(torch.ones(1, dtype=torch.bool))
    after = sim.get_state()
    for key, value in before.items():
        assert np.array_equal(after[key], value), key


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_state_is_a_copy_for_one_env_as_well(num_envs: int) -> None:
    sim = make(num_envs=num_envs)
    sim.reset(seed=0)
    state = sim.get_state()
    kept = {key: value.copy() for key, value in state.items()}
    for _ in range(3):
        drive(sim, 0.1, 0.5)
    for key, value in state.items():
        assert np.array_equal(value, kept[key]), key


def test_the_driver_stays_on_its_lane_to_the_end_where_it_could_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The route ends on the right lane, where somebody drives beside the ego all the way."""
    builder = RoadBuilder("two")
    left, right = procedural.two_way(builder, np.array([[0.0, 0.0], [200.0, 0.0]]), 2, 0, LIMIT_MPS).forward
    builder.route((left, right))
    sim = on_roads(monkeypatch, builder)
    scene = situation(sim, 140.0, 8.0, d=3.5)
    expert, started = sim.make_expert(mode="calm"), torch.ones(1, dtype=torch.bool)
    scene.apply()
    for _ in range(80):
        scene = Scene(sim)
        ego = sim.core.world.egos[0]
        scene.car(1, right, min(float(ego["x"]), 197.0), float(ego["v"]), desire=float(ego["v"]) / LIMIT_MPS)
        scene.apply()
        out = sim.step(expert.act(started))
        started = out.terminated | out.truncated
        if started[0]:
            break
        assert abs(float(sim.core.world.egos["yaw"][0])) < 0.1
    assert events(out) in ({"finished"}, {"off_road"}, {"timed_out"})


# nothing breaks the process


def in_a_process_of_its_own(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_pictures_of_envs_that_are_not_there_are_refused() -> None:
    done = in_a_process_of_its_own(
        "import robotrl\n"
        "from robotrl.errors import ConfigError\n"
        "sim = robotrl.make_sim('bev/drive', 2, obs='none')\n"
        "sim.reset(seed=0)\n"
        "for ids in ([2], [-1], [0, 1 << 40]):\n"
        "    try:\n"
        "        sim.render(ids, 'top', 16, 16)\n"
        "    except ConfigError as error:\n"
        "        print(error)\n"
    )
    assert done.returncode == 0, done.stderr[-300:]
    assert [line.startswith("ids is ") for line in done.stdout.splitlines()] == [True] * 3


def test_wide_lanes_are_drawn_whole() -> None:
    done = in_a_process_of_its_own(
        "import numpy as np\n"
        "from robotrl.sims.driving import tables\n"
        "from robotrl.sims.driving.roads import maps\n"
        "from robotrl.sims.driving.roads.lanes import RoadBuilder\n"
        "builder = RoadBuilder('wide')\n"
        "lane = builder.lane(np.array([[0.0, 0.0], [60.0, 0.0]]), 10.0, width_m=30.0)\n"
        "builder.route((lane,))\n"
        "tile = maps.finish(builder).tile\n"
        "print(((tile & tables.DRIVABLE) > 0).sum() * maps.CELL_M**2)\n"
    )
    assert done.returncode == 0, f"ended by signal {-done.returncode}: {done.stderr[-300:]}"
    assert float(done.stdout) == pytest.approx(60.0 * 30.0, rel=0.1)


def test_who_is_on_the_road_does_not_notice_that_another_env_gets_a_larger_map() -> None:
    """Scratch for junctions grows with the maps; envs beside one that moves to a larger one drive as they do alone."""
    ids = range(1 << 30, (1 << 30) + 200)
    beside, alone = make(num_envs=9, threads=1), make(num_envs=8, threads=1)
    by_name = {name: [i for i in ids if beside.scenario_of(i) == name] for name in ("merge", "straight", "signal")}
    ramps = by_name["merge"][:8]
    alone.reset(options={"state_ids": ramps})
    beside.reset(options={"state_ids": [*ramps, by_name["straight"][0]]})
    for t in range(40):
        if t == 20:
            beside.queue_states([by_name["signal"][0]])
            before = beside.core.world.claims.shape[1]
            beside.restart(torch.tensor([8]))
            assert beside.core.world.claims.shape[1] > before
        drive(beside)
        drive(alone)
        found, expected = beside.core.world.agents[:8], alone.core.world.agents
        assert all(np.array_equal(found[field], expected[field]) for field in ("s", "v", "a")), t
