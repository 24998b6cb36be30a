"""The other road users: car following and lane changes against closed forms, lights, right of way, crosswalks."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.sims.bev import procedural
from robotrl.sims.bev.traffic.lane_changes import HOLD_S, SIDEWAYS_MPS
from robotrl.sims.bev.traffic.scenarios import SCENARIOS
from robotrl.sims.driving import tables
from robotrl.sims.driving.roads.lanes import Control, RoadBuilder
from robotrl.sims.driving.traffic.following import ACCEL, BRAKE, GAP_M, HARDEST, idm
from tests.kits.bev_kit import EGO_HALF_M, Array, Scene, drivable, drive, lanes_of, make, on_roads, overlapping

DT_S = 0.1
LONG = {"limit_s": 3600.0, "blocked_s": 1e6}
STEP_MPS = 14.0
"""Speed limit of the roads made here."""


def road(length: float, lanes: int = 1, stop_at: float | None = None) -> RoadBuilder:
    """Parallel lanes from the origin along x, lane 0 the left one; the ego stands on a lane of its own, far aside."""
    builder = RoadBuilder("road")
    for i in range(lanes):
        builder.lane(np.array([[0.0, -3.5 * i], [length, -3.5 * i]]), STEP_MPS)
        if i:
            builder.beside(i - 1, i)
    own = builder.lane(np.array([[0.0, 80.0], [60.0, 80.0]]), STEP_MPS)
    builder.route((own,), start_s=20.0, end_s=50.0)
    return builder


def assert_apart(sim: Any) -> None:
    pairs = overlapping(sim.core.world.agents).tolist()
    assert not pairs, f"at {sim.core.world.episodes['time'][pairs[0][0]]:.1f} s: env and slots {pairs}"


# car following


def test_idm_by_hand() -> None:
    # s* = 2 + 10 * 1.5 + 10 * 2 / (2 sqrt(3)) = 22.7735; 1.5 (1 - (10 / 20)^4 - (22.7735 / 30)^2) = 0.54186
    assert idm(10.0, 20.0, 30.0, 2.0, 1.5) == pytest.approx(0.54186, abs=1e-4)
    # alone: the free road term
    assert idm(10.0, 20.0, 1e9, 0.0, 1.5) == pytest.approx(1.5 * 15 / 16)
    assert idm(20.0, 20.0, 1e9, 0.0, 1.5) == pytest.approx(0.0, abs=1e-6)
    # at rest, 2 m behind another: neither forward nor back; nearer: it brakes, but never harder than 6 m/s^2
    assert idm(0.0, 20.0, GAP_M, 0.0, 1.5) == pytest.approx(0.0, abs=1e-9)
    assert idm(20.0, 20.0, 1.0, 20.0, 1.5) == -HARDEST
    # one that draws away fast asks for no more than the gap of a standstill
    assert idm(10.0, 20.0, 4.0, -1000.0, 1.5) == pytest.approx(1.5 * (15 / 16 - (2 / 4) ** 2))


@settings(max_examples=200, deadline=None)
@given(st.floats(0, 30), st.floats(1, 30), st.floats(0.1, 100), st.floats(-20, 20), st.floats(0.5, 2))
def test_idm_brakes_harder_the_nearer_and_the_faster_one_closes_in(
    v: float, wanted: float, gap: float, closing: float, headway: float
) -> None:
    here = idm(v, wanted, gap, closing, headway)
    assert -HARDEST <= here <= ACCEL
    assert idm(v, wanted, gap + 1.0, closing, headway) >= here - 1e-12
    assert idm(v, wanted, gap, closing + 1.0, headway) <= here + 1e-12


def equilibrium(v: float, wanted: float, headway: float) -> float:
    return (GAP_M + v * headway) / math.sqrt(1 - (v / wanted) ** 4)


def platoon(monkeypatch: pytest.MonkeyPatch, rows: list[tuple[float, float, float]], cars: int, even: float) -> Any:
    """Envs with a platoon each, of (leader's speed, followers' wanted speed, headway); gaps are `even` times right."""
    sim = on_roads(monkeypatch, road(4000.0), num_envs=len(rows), **LONG)
    scene = Scene(sim)
    for env, (v, wanted, headway) in enumerate(rows):
        spacing = even * equilibrium(v, wanted, headway) + 4.5
        for k in range(cars):
            share = (v if k == 0 else wanted) / STEP_MPS
            scene.car(1 + k, 0, 20.0 + (cars - k) * spacing, v, env=[env], desire=share, headway=headway)
    scene.apply()
    return sim


def gaps(sim: Any, cars: int) -> Array:
    agents = sim.core.world.agents[:, 1 : 1 + cars]
    return agents["s"][:, :-1] - agents["s"][:, 1:] - 4.5


@pytest.mark.parametrize("even", [0.6, 1.5])
def test_a_platoon_settles_at_the_equilibrium_gap_of_the_closed_form(
    monkeypatch: pytest.MonkeyPatch, even: float
) -> None:
    rows = [(5.0, 12.0, 1.0), (8.0, 12.0, 1.5), (10.0, 14.0, 1.2), (11.0, 13.0, 1.8)]
    cars = 6
    sim = platoon(monkeypatch, rows, cars, even)
    for _ in range(1800):
        drive(sim)
    found = gaps(sim, cars)
    v = sim.core.world.agents["v"][:, 1 : 1 + cars]
    for env, (speed, wanted, headway) in enumerate(rows):
        assert v[env] == pytest.approx(speed, rel=1e-3)
        assert found[env] == pytest.approx(equilibrium(speed, wanted, headway), rel=5e-3)


def linearized(v: float, wanted: float, headway: float) -> tuple[float, float, float]:
    """Derivatives of a follower's acceleration at equilibrium: by the gap, by its own speed, by its leader's."""
    gap = equilibrium(v, wanted, headway)
    wish = GAP_M + v * headway
    by_gap = 2 * ACCEL * wish**2 / gap**3
    slope = 2 * ACCEL * wish / gap**2
    by_leader = slope * v / (2 * math.sqrt(ACCEL * BRAKE))
    return by_gap, -4 * ACCEL * v**3 / wanted**4 - slope * headway - by_leader, by_leader


def gain(v: float, wanted: float, headway: float, omega: float) -> float:
    """How much of a swing of the leader's speed arrives at the follower: from dv' = f_s dg + f_v dv + f_l dv_l."""
    f_s, f_v, f_l = linearized(v, wanted, headway)
    return abs((1j * omega * f_l + f_s) / (f_s - omega**2 - 1j * omega * f_v))


def is_string_stable(v: float, wanted: float, headway: float) -> bool:
    """That gain is at most 1 at every frequency just where f_v^2 - f_l^2 >= 2 f_s (Treiber and Kesting 2013)."""
    f_s, f_v, f_l = linearized(v, wanted, headway)
    return f_v**2 - f_l**2 >= 2 * f_s


STABLE = [(9.0, 14.0, 1.5), (6.0, 14.0, 1.8), (6.0, 10.0, 1.5)]
UNSTABLE = [(3.0, 14.0, 1.0), (4.0, 20.0, 1.0)]


def test_a_swing_of_the_leader_fades_down_the_platoon_just_where_idm_is_string_stable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, cars = STABLE + UNSTABLE, 8
    assert [is_string_stable(*row) for row in rows] == [True] * 3 + [False] * 2
    for row in rows:
        worst = max(gain(*row, omega) for omega in np.geomspace(1e-3, 10, 400))
        assert (worst <= 1 + 1e-9) == is_string_stable(*row)
    period_s = 40.0
    omega = 2 * math.pi / period_s
    sim = platoon(monkeypatch, rows, cars, 1.0)
    shares = sim.core.world.agents["desire"][:, 1].copy()
    steps = round(period_s / DT_S)
    speeds = np.zeros((6 * steps, len(rows), cars))
    for t in range(len(speeds)):
        sim.core.world.agents["desire"][:, 1] = shares * (1 + 0.1 * math.sin(omega * t * DT_S))
        drive(sim)
        speeds[t] = sim.core.world.agents["v"][:, 1 : 1 + cars]
    # once the beginning has faded away: the share of that frequency over whole periods
    wave = np.exp(-1j * omega * DT_S * np.arange(2 * steps))
    swing = np.abs(np.tensordot(wave, speeds[-2 * steps :], (0, 0))) / steps
    ratio = swing[:, 1:] / swing[:, :-1]
    for env, row in enumerate(rows):
        assert ratio[env] == pytest.approx(gain(*row, omega), rel=0.03), row
        down = np.diff(swing[env])
        assert (down < 0).all() if is_string_stable(*row) else (down > 0).all(), row


def test_nobody_runs_into_one_who_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = [(v, way) for v in (4.0, 9.0, 14.0) for way in (30.0, 60.0, 120.0) if way > v * v / (2 * 3.0) + 5]
    sim = on_roads(monkeypatch, road(600.0), num_envs=len(starts), **LONG)
    scene = Scene(sim)
    scene.car(1, 0, 300.0, kind=tables.OBSTACLE)
    for env, (v, way) in enumerate(starts):
        scene.car(2, 0, 300.0 - 4.5 - way, v, env=[env])
    scene.apply()
    hardest = np.zeros(len(starts))
    for _ in range(400):
        drive(sim)
        hardest = np.minimum(hardest, sim.core.world.agents["a"][:, 2])
        assert gaps(sim, 2).min() > 0.5
    assert sim.core.world.agents["v"][:, 2] == pytest.approx(0.0, abs=0.02)
    # at rest the wish s0 equals the gap; the last centimetres take long
    assert gaps(sim, 2) == pytest.approx(GAP_M, abs=0.25)
    assert hardest.min() >= -HARDEST


# lane changes


def watch_lanes(sim: Any, slot: int, steps: int) -> list[tuple[int, float, float]]:
    """Lane of a car on the map, its offset and its speed, step by step, in the first env."""
    base = sim.core.bank.arrays.maps["lane"][sim.core.world.episodes["map"][0]]
    out: list[tuple[int, float, float]] = []
    for _ in range(steps):
        drive(sim)
        me = sim.core.world.agents[0, slot]
        out.append((int(me["lane"] - base), float(me["d"]), float(me["v"])))
    return out


@pytest.mark.parametrize(("own", "other"), [(1, 0), (0, 1)])
def test_a_car_behind_a_slow_one_changes_to_the_faster_lane_and_crosses_over_at_walking_pace(
    monkeypatch: pytest.MonkeyPatch, own: int, other: int
) -> None:
    sim = on_roads(monkeypatch, road(1500.0, lanes=2), **LONG)
    scene = Scene(sim)
    scene.car(1, own, 90.0, 5.0, desire=5.0 / STEP_MPS)
    scene.car(2, own, 50.0, 10.0)
    scene.apply()
    seen = watch_lanes(sim, 2, 400)
    lanes = [lane for lane, _, _ in seen]
    changed = lanes.index(other)
    assert set(lanes[changed:]) == {other}  # and stays: nothing is gained by going back
    assert lanes[:changed] == [own] * changed
    # numbered from the left, the offset begins at a lane's width on the side that it comes from
    offsets = np.array([d for _, d, _ in seen[changed:]])
    assert offsets[0] == pytest.approx(3.5 * (1 if other > own else -1), abs=0.2)
    assert np.abs(np.diff(offsets)).max() <= SIDEWAYS_MPS * DT_S + 1e-5
    assert (np.diff(np.abs(offsets)) <= 1e-6).all() and offsets[-1] == 0.0
    assert seen[-1][2] == pytest.approx(STEP_MPS, rel=0.02)


def test_no_change_where_nothing_is_gained_or_somebody_would_have_to_brake(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: dict[str, list[dict[str, Any]]] = {
        "the other lane is as slow": [{"slot": 3, "lane": 0, "s": 88.0, "v": 5.0, "desire": 5.0 / STEP_MPS}],
        "somebody is beside": [{"slot": 3, "lane": 0, "s": 51.0, "v": 10.0, "desire": 10.0 / STEP_MPS}],
        "somebody comes fast from behind": [{"slot": 3, "lane": 0, "s": 38.0, "v": 14.0}],
        "free": [],
    }
    for case, others in cases.items():
        sim = on_roads(monkeypatch, road(1500.0, lanes=2), **LONG)
        scene = Scene(sim)
        scene.car(1, 1, 90.0, 5.0, desire=5.0 / STEP_MPS)
        scene.car(2, 1, 50.0, 10.0)
        for row in others:
            scene.car(**row)
        scene.apply()
        lanes = {lane for lane, _, _ in watch_lanes(sim, 2, 12)}
        assert (lanes == {1}) == (case != "free"), case


@pytest.mark.parametrize("gap", [2.5, 4.0, 7.0, 12.0])
def test_who_pulls_out_keeps_clear_of_who_stands_before_it(monkeypatch: pytest.MonkeyPatch, gap: float) -> None:
    """It is on the other lane by its number, but not yet by its place; without the room for that, it stays."""
    sim = on_roads(monkeypatch, road(600.0, lanes=2), num_envs=3, **LONG)
    scene = Scene(sim)
    scene.car(1, 1, 100.0, kind=tables.OBSTACLE)
    for env, v in enumerate((1.5, 3.0, 5.0)):
        scene.car(2, 1, 100.0 - 4.5 - max(gap, v * v / 6.0 + 2.0), v, env=[env])
    scene.apply()
    base = sim.core.bank.arrays.maps["lane"][sim.core.world.episodes["map"][0]]
    changed = np.zeros(3, bool)
    for _ in range(150):
        drive(sim)
        assert_apart(sim)
        changed |= sim.core.world.agents["lane"][:, 2] == base
    # crossing over by 1.9 m and 0.2 m takes 1.75 s, or 5.3 m below 3 m/s, and 2.3 m to gather speed
    assert changed.tolist() == [gap == 12.0] * 3


def test_who_comes_to_what_stands_on_the_lane_drives_round_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when others on the lane beside make it wait: it leaves the room to pull out."""
    sim = on_roads(monkeypatch, road(900.0, lanes=2), num_envs=3, **LONG)
    scene = Scene(sim)
    scene.car(1, 1, 300.0, kind=tables.OBSTACLE)
    for env, v in enumerate((5.0, 9.0, 13.0)):
        scene.car(2, 1, 220.0, v, env=[env])
        for k in range(12):
            scene.car(3 + k, 0, 20.0 + 24.0 * k, 8.0, env=[env], desire=8.0 / STEP_MPS)
    scene.apply()
    for _ in range(600):
        drive(sim)
        assert_apart(sim)
    assert (sim.core.world.agents["s"][:, 2] > 310.0).all()


def test_after_a_change_there_is_no_other_for_four_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, road(3000.0, lanes=3), **LONG)
    scene = Scene(sim)
    # slow ones in all lanes, each lane's a little further on: it is worth changing again and again
    for k in range(9):
        scene.car(1 + k, k % 3, 150.0 + 60.0 * k, 4.0, desire=4.0 / STEP_MPS)
    scene.car(12, 0, 100.0, 12.0)
    scene.apply()
    lanes = [lane for lane, _, _ in watch_lanes(sim, 12, 900)]
    at = np.flatnonzero(np.diff(lanes))
    assert len(at) >= 3
    assert np.diff(at).min() * DT_S >= HOLD_S
    assert np.abs(np.diff(lanes)).max() == 1


# lights, signs, right of way


def crossroads(control: Control) -> RoadBuilder:
    """Main road from west to east (lanes 0, 1, 2), minor from south to north (3, 4, 5), with a line at 89 m."""
    builder = RoadBuilder("crossroads")
    ends = np.array([-100.0, -10.0, 10.0, 110.0])
    for axis in (0, 1):
        points = np.zeros((4, 2))
        points[:, axis] = ends
        lanes = [builder.lane(points[i : i + 2], 10.0, junction=i == 1) for i in range(3)]
        builder.follow(lanes[0], lanes[1])
        builder.follow(lanes[1], lanes[2])
    group = builder.signal(0.0, 10.0)
    builder.cycle_s = 30.0
    builder.stop(3, control, group if control == Control.LIGHT else -1)
    own = builder.lane(np.array([[60.0, -80.0], [110.0, -80.0]]), 10.0)
    builder.route((own,), start_s=10.0, end_s=40.0)
    return builder


LINE_M = 89.0


def test_cars_stop_at_a_red_light_before_the_line_and_go_when_it_is_green(monkeypatch: pytest.MonkeyPatch) -> None:
    """Green for 10 s, yellow for 3 s, red for 17 s; one env for each second of the cycle."""
    phases = np.arange(30)
    sim = on_roads(monkeypatch, crossroads(Control.LIGHT), num_envs=30, **LONG)
    scene = Scene(sim)
    for env in phases:
        scene.car(1, 3, 30.0 + env % 7, 9.0, env=[env], following=4)
        scene.car(2, 3, 15.0, 8.0, env=[env], following=4)
    scene["episodes/time"] = 0.0
    scene["episodes/offset"] = phases
    scene.apply()
    lane = sim.core.bank.arrays.maps["lane"][sim.core.world.episodes["map"][0]] + 3
    passed = np.full((30, 2), -1.0)
    stood = np.full((30, 2), np.nan)
    for t in range(600):
        before = sim.core.world.agents[:, 1:3].copy()
        drive(sim)
        now = sim.core.world.agents[:, 1:3]
        over = (before["lane"] == lane) & (before["s"] + 2.25 <= LINE_M)
        over &= (now["lane"] != lane) | (now["s"] + 2.25 > LINE_M)
        phase = (t * DT_S + phases) % 30
        passed[over] = np.broadcast_to(phase[:, None], over.shape)[over]
        still = (now["lane"] == lane) & (now["v"] < 0.05)
        stood[still] = LINE_M - (now["s"][still] + 2.25)
    assert (passed >= 0).all()
    assert (passed < 13.0).all(), "on red"
    assert (passed < 10.0).sum() > 40  # on green
    first = stood[:, 0][~np.isnan(stood[:, 0])]
    assert len(first) >= 10
    assert first == pytest.approx(0.5, abs=0.3)  # half a metre before the line


def test_yellow_is_passed_by_those_who_cannot_stop_and_by_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 10 m/s and 3.5 m/s^2 a stop takes 14.3 m."""
    ways = np.arange(6.0, 30.0, 2.0)
    sim = on_roads(monkeypatch, crossroads(Control.LIGHT), num_envs=len(ways), **LONG)
    scene = Scene(sim)
    for env, way in enumerate(ways):
        scene.car(1, 3, LINE_M - 2.25 - way, 10.0, env=[env], following=4)
    scene["episodes/time"] = 0.0
    scene["episodes/offset"] = 10.0
    scene.apply()
    for _ in range(28):  # to the end of yellow
        drive(sim)
    agents = sim.core.world.agents[:, 1]
    base = sim.core.bank.arrays.maps["lane"][sim.core.world.episodes["map"][0]]
    gone = (agents["lane"] != base + 3) | (agents["s"] + 2.25 > LINE_M)
    assert gone[ways < 13.0].all()
    assert not gone[ways > 16.0].any()


def test_a_reckless_car_does_not_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, crossroads(Control.LIGHT), num_envs=2, **LONG)
    scene = Scene(sim)
    for env in (0, 1):
        scene.car(1, 3, 50.0, 9.0, env=[env], following=4, reckless=env)
    scene["episodes/time"] = 0.0
    scene["episodes/offset"] = 13.5
    scene.apply()
    for _ in range(90):
        drive(sim)
    agents = sim.core.world.agents[:, 1]
    base = sim.core.bank.arrays.maps["lane"][sim.core.world.episodes["map"][0]]
    assert (agents["lane"] - base).tolist() == [3, 5]
    assert agents["v"].tolist() == pytest.approx([0.0, 10.0], abs=0.7)


def minor_and_main(
    monkeypatch: pytest.MonkeyPatch, control: Control, main_s: float | None
) -> tuple[Array, Array, bool]:
    """A car on the minor road, one on the main road where asked.

    Gives the speeds of the first before the crossing, the accelerations of the second, and whether all got across.
    """
    sim = on_roads(monkeypatch, crossroads(control), **LONG)
    scene = Scene(sim)
    scene.car(1, 3, 40.0, 8.0, following=4)
    if main_s is not None:
        scene.car(2, 0, main_s, 9.0, following=1)
    scene["episodes/time"] = 0.0
    scene.apply()
    base = sim.core.bank.arrays.maps["lane"][sim.core.world.episodes["map"][0]]
    minor: list[float] = []
    main: list[float] = []
    over = set[int]()
    for _ in range(180):
        drive(sim)
        one, two = sim.core.world.agents[0, 1], sim.core.world.agents[0, 2]
        assert_apart(sim)
        if one["lane"] == base + 3:
            minor.append(float(one["v"]))
        if two["lane"] in (base, base + 1):
            main.append(float(two["a"]))
        over |= {int(one["lane"] - base), int(two["lane"] - base)} & {2, 5}
    return np.array(minor), np.array(main), over == ({5} if main_s is None else {2, 5})


def test_at_a_stop_sign_cars_stand_for_a_second_even_when_nobody_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds, _, over = minor_and_main(monkeypatch, Control.STOP, None)
    assert over
    assert (speeds < 0.3).sum() * DT_S >= 1.0
    # and at a yield sign they do not
    speeds, _, over = minor_and_main(monkeypatch, Control.YIELD, None)
    assert over
    assert speeds.min() > 3.0


@pytest.mark.parametrize("control", [Control.STOP, Control.YIELD, Control.NONE])
@pytest.mark.parametrize("main_s", [20.0, 35.0, 48.0, 60.0])
def test_the_minor_road_gives_way(monkeypatch: pytest.MonkeyPatch, control: Control, main_s: float) -> None:
    """Without a sign the later lane is the minor one."""
    minor, main, over = minor_and_main(monkeypatch, control, main_s)
    assert over
    # who is on the main road never has to brake for the other more than is comfortable
    assert main.min() >= -BRAKE
    if control == Control.STOP:
        assert minor.min() < 0.3


def four_arms() -> tuple[RoadBuilder, list[procedural.Arm], dict[tuple[int, int], list[int]]]:
    """A crossing of four roads of one lane each way, without signs; arms to the east, north, west and south."""
    builder = RoadBuilder("four")
    arms = [procedural.arm(builder, k * math.pi / 2, 11.5, 95.0, 1, 10.0) for k in range(4)]
    lanes = procedural.crossing(builder, arms, 10.0)
    own = builder.lane(np.array([[40.0, -80.0], [90.0, -80.0]]), 10.0)
    builder.route((own,), start_s=10.0, end_s=40.0)
    return builder, arms, lanes


def test_a_left_turn_gives_way_to_who_comes_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    builder, arms, lanes = four_arms()
    starts = np.arange(20.0, 80.0, 5.0)
    sim = on_roads(monkeypatch, builder, num_envs=len(starts), **LONG)
    scene = Scene(sim)
    (left,), (ahead,) = lanes[0, 3], lanes[2, 0]
    scene.car(1, arms[0].inbound[0], 60.0, 8.0, following=left)
    for env, s in enumerate(starts):
        scene.car(2, arms[2].inbound[0], s, 9.0, env=[env], following=ahead)
    scene.apply()
    base = sim.core.bank.arrays.maps["lane"][sim.core.world.episodes["map"][0]]
    hardest, turned = np.zeros(len(starts)), np.zeros(len(starts), bool)
    waited = np.zeros(len(starts), bool)
    for _ in range(200):
        drive(sim)
        assert_apart(sim)
        one, two = sim.core.world.agents[:, 1], sim.core.world.agents[:, 2]
        coming = (two["lane"] == base + arms[2].inbound[0]) | (two["lane"] == base + ahead)
        hardest = np.where(coming, np.minimum(hardest, two["a"]), hardest)
        turned |= one["lane"] == base + arms[3].outbound[0]
        waited |= (one["v"] < 1.0) & coming
    assert turned.all()
    assert hardest.min() >= -BRAKE, hardest.round(1)
    assert waited.any() and not waited.all()


@pytest.mark.parametrize("inside_m", [0.5, 2.0, 3.5])
def test_who_stands_at_the_beginning_of_a_turn_is_seen_by_those_who_go_straight_on(
    monkeypatch: pytest.MonkeyPatch, inside_m: float
) -> None:
    """Lanes that part lie on each other for some metres: a car that waits to turn left there is in the way."""
    builder, arms, lanes = four_arms()
    sim = on_roads(monkeypatch, builder, **LONG)
    (left,), (ahead,) = lanes[0, 3], lanes[0, 2]
    scene = Scene(sim)
    scene.car(1, left, inside_m, kind=tables.OBSTACLE)
    scene.car(2, arms[0].inbound[0], 40.0, 9.0, following=ahead)
    scene.apply()
    for _ in range(120):
        drive(sim)
        assert_apart(sim)


# people


def street() -> RoadBuilder:
    """One lane east with people crossing at x = 100; the ego aside."""
    builder = road(300.0)
    builder.crosswalk((100.0, -4.0), (100.0, 4.0), 3.0)
    return builder


def pedestrian(scene: Scene, slot: int, wait: float, d: float = 0.0, turns: int = 0) -> None:
    scene.walker(slot, 100.0, -4.0)
    for name, value in {"walk": 0, "wait": wait, "desire": 1.3, "d": d, "turns": turns, "seed": 5}.items():
        scene[f"agents/{name}"][:, slot] = value


def test_people_cross_there_and_back_at_their_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, street(), **LONG)
    scene = Scene(sim)
    pedestrian(scene, 5, 1.0)
    scene.apply()
    ys: list[float] = []
    for _ in range(600):
        drive(sim)
        me = sim.core.world.agents[0, 5]
        assert me["x"] == pytest.approx(100.0, abs=1e-4)
        ys.append(float(me["y"]))
    y = np.array(ys)
    assert y[:9] == pytest.approx(-4.0)
    assert y.max() == pytest.approx(4.0, abs=0.14) and y.min() == pytest.approx(-4.0, abs=0.14)
    steps = np.abs(np.diff(y))
    walking = steps > 1e-6
    assert steps[walking] == pytest.approx(0.13, abs=1e-4) or steps.max() <= 0.13 + 1e-4
    crossings = np.flatnonzero(np.diff(np.sign(y)))
    assert len(crossings) >= 2


def test_two_who_meet_on_a_crosswalk_pass_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Placed as `populate` does: one at each side, each 0.9 m off the middle of a strip of 3 m."""
    sim = on_roads(monkeypatch, street(), **LONG)
    scene = Scene(sim)
    pedestrian(scene, 5, 0.2, d=-0.9)
    pedestrian(scene, 6, 0.2, d=0.9, turns=1)
    scene.apply()
    drive(sim)
    places = [sim.core.world.agents[["x", "y"]][0, 5:7].copy()]
    for _ in range(200):
        drive(sim)
        assert_apart(sim)
        places.append(sim.core.world.agents[["x", "y"]][0, 5:7].copy())
    y = np.array([place["y"] for place in places])
    assert (np.sign(y[0]) != np.sign(y[80])).all()  # each has crossed
    moved = np.hypot(np.diff([place["x"] for place in places], axis=0), np.diff(y, axis=0))
    assert moved.max() <= 1.3 * DT_S + 1e-3  # nor does anyone jump when turning round


@pytest.mark.parametrize("way", [15.0, 25.0, 40.0])
def test_cars_yield_to_people_on_a_crosswalk(monkeypatch: pytest.MonkeyPatch, way: float) -> None:
    sim = on_roads(monkeypatch, street(), **LONG)
    scene = Scene(sim)
    pedestrian(scene, 5, 0.0)  # walks already
    speed = math.sqrt(2 * 2.5 * (way - 5.0))
    scene.car(1, 0, 98.5 - 2.25 - way, min(speed, 12.0))
    scene.apply()
    slowest, walking = math.inf, 0
    for _ in range(150):
        drive(sim)
        car, person = sim.core.world.agents[0, 1], sim.core.world.agents[0, 5]
        assert_apart(sim)
        if person["v"] > 0.0:
            walking += 1
            assert car["s"] + 2.25 < 98.5 or car["s"] - 2.25 > 101.5, "on the strip together"
        slowest = min(slowest, float(car["v"]))
    assert walking > 40
    assert slowest < min(speed, 12.0) - 1.0
    assert car["s"] > 110.0  # and goes on


def test_nobody_sets_out_in_front_of_a_car_that_could_not_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, street(), **LONG)
    scene = Scene(sim)
    pedestrian(scene, 5, 0.3)
    scene.car(1, 0, 70.0, 13.0)
    scene.apply()
    set_out = None
    for t in range(120):
        drive(sim)
        car, person = sim.core.world.agents[0, 1], sim.core.world.agents[0, 5]
        if set_out is None and person["v"] > 0:
            set_out = (t, float(car["s"]))
    assert set_out is not None
    assert set_out[1] > 100.0 + 6.0
    assert sim.core.world.agents["a"][0, 1] >= -0.5


def test_who_runs_across_the_street_is_not_run_over_by_the_others_nor_stays_on_the_road() -> None:
    """The event of `occluded-pedestrian`: somebody sets out before the ego, and reaches the other side."""
    n = 48
    sim = make(num_envs=n, scenarios=("occluded-pedestrian",))
    sim.queue_states(range(1 << 30, (1 << 30) + 10 * n))
    sim.reset()
    expert, started = sim.make_expert(mode="calm"), torch.ones(n, dtype=torch.bool)
    set_out, crossed, run_over, left_standing = 0, 0, 0, 0
    counted = np.zeros(n, bool)
    for _ in range(350):
        was = sim.core.world.episodes["phase"].copy()
        out = sim.step(expert.act(started))
        started = out.terminated | out.truncated
        goes_on = ~started.numpy()
        world = sim.core.world
        set_out += int((goes_on & (was == 0) & (world.episodes["phase"] == 1)).sum())
        pairs = overlapping(world.agents)
        kinds = world.agents["kind"][pairs[:, 0], pairs[:, 2]]
        run_over += int((goes_on[pairs[:, 0]] & (pairs[:, 1] == 1) & (kinds != tables.PEDESTRIAN)).sum())
        done = goes_on & (world.episodes["phase"] == 1) & (world.agents["s"][:, 1] >= world.agents["rest"][:, 1])
        x, y = world.agents["x"][:, 1:2], world.agents["y"][:, 1:2]
        left_standing += int((done & ~counted & drivable(sim, np.arange(n), x, y)[:, 0]).sum())
        crossed += int((done & ~counted).sum())
        counted = (counted | done) & goes_on
    assert set_out > 30 and crossed > 0.8 * set_out
    assert (left_standing, run_over) == (0, 0), "who is left standing on the road; steps in which somebody is run over"


# all scenarios together


class Drive(NamedTuple):
    """Counts of a long drive through every scenario."""

    agent_steps: int
    overlaps: Counter[str]
    """Agents in overlap with another, over all steps but the first; by scenario."""
    at_start: int
    red: int
    """Lines passed on red by a car that heeds lights."""
    lights: int
    stop_signs: int
    """Lines passed without a stop."""
    signs: int
    jumps: float
    """Furthest, m, that a car was from where its speed takes it."""
    hardest: float
    backwards: int
    walked: float
    """Furthest, m, that somebody on foot came in a step."""
    stuck: Counter[str]
    """Cars and cyclists that have stood for 50 s on end; by scenario."""


@pytest.fixture(scope="module")
def long_drive() -> Drive:
    """Every scenario in 6 envs for 600 steps, the rule-based driver at the wheel."""
    n, steps = 6 * len(SCENARIOS), 600
    sim = make(num_envs=n, threads=0)
    first = sim.state_ids("val").start
    sim.queue_states(range(first, first + 1000))
    sim.reset()
    expert, started = sim.make_expert(mode="calm"), torch.ones(n, dtype=torch.bool)
    world = sim.core.world
    at_start, overlaps = len(overlapping(world.agents)), Counter[str]()
    agent_steps = red = lights = stop_signs = signs = backwards = 0
    jumps = hardest = walked = 0.0
    stood, stuck = np.zeros(world.agents.shape, int), Counter[str]()
    for _ in range(steps):
        before, episodes = world.agents.copy(), world.episodes.copy()
        out = sim.step(expert.act(started))
        started = out.terminated | out.truncated
        maps = sim.core.bank.arrays
        goes_on = ~started.numpy()
        now = world.agents
        pairs = overlapping(now)
        fresh = pairs[~goes_on[pairs[:, 0]]]
        at_start += len(fresh)
        pairs = pairs[goes_on[pairs[:, 0]]]
        for env, _, _ in pairs:
            overlaps[SCENARIOS[world.episodes["scenario"][env]].name] += 2
        present = (now["kind"] > 0) & (np.abs(now["x"]) < 1e5)
        agent_steps += int(present[goes_on].sum())
        on_foot = (now["kind"] == tables.PEDESTRIAN) & goes_on[:, None]
        walked = max(walked, float(np.hypot(now["x"] - before["x"], now["y"] - before["y"])[on_foot].max()))
        wheels = ((now["kind"] == tables.CAR) | (now["kind"] == tables.CYCLIST)) & (now["lane"] >= 0)
        stood = np.where(wheels & (now["v"] < 0.1) & goes_on[:, None], stood + 1, 0)
        for env in np.nonzero(stood[:, 1:] == 500)[0]:
            stuck[SCENARIOS[world.episodes["scenario"][env]].name] += 1
        # cars that drive on
        moving = ((before["kind"] == tables.CAR) | (before["kind"] == tables.CYCLIST)) & goes_on[:, None]
        moving &= (before["lane"] >= 0) & (now["lane"] >= 0)
        moving[:, 0] = False
        env, slot = np.nonzero(moving)
        was, is_ = before[env, slot], now[env, slot]
        hardest = min(hardest, float(is_["a"].min()))
        backwards += int((is_["v"] < 0).sum())
        way = np.hypot(is_["x"] - was["x"], is_["y"] - was["y"])
        jumps = max(jumps, float((way - np.maximum(was["v"], is_["v"]) * DT_S).max()))
        lane = maps.lanes[was["lane"]]
        half = was["length"] / 2
        passed = (lane["stop"] >= 0) & (was["s"] + half <= lane["stop"]) & (was["lane"] >= 0)
        beside = (is_["lane"] == lane["left"]) | (is_["lane"] == lane["right"])
        passed &= ((is_["lane"] != was["lane"]) & ~beside) | (
            (is_["lane"] == was["lane"]) & (is_["s"] + half > lane["stop"])
        )
        lit = np.flatnonzero(passed & (lane["control"] == Control.LIGHT) & (was["reckless"] == 0))
        signal = maps.signals[maps.maps["signal"][episodes["map"][env[lit]]] + lane["group"][lit]]
        t = (episodes["time"][env[lit]] + episodes["offset"][env[lit]] - signal["start"]) % signal["cycle"]
        red += int((t >= signal["green"] + signal["yellow"]).sum())
        lights += len(lit)
        signed = passed & (lane["control"] == Control.STOP) & (was["reckless"] == 0)
        stop_signs += int((was["wait"][signed] < 1.0 - 1e-3).sum())
        signs += int(signed.sum())
    sim.close()
    return Drive(
        agent_steps, overlaps, at_start, red, lights, stop_signs, signs, jumps, hardest, backwards, walked, stuck
    )


def test_nobody_passes_a_line_on_red_and_nobody_a_stop_sign_without_a_stop(long_drive: Drive) -> None:
    assert long_drive.lights > 200
    assert long_drive.red == 0
    assert long_drive.signs > 0
    assert long_drive.stop_signs == 0


def test_road_users_hardly_ever_overlap(long_drive: Drive) -> None:
    """At most 0.1 % of all agents' steps, and never at a start."""
    assert long_drive.agent_steps > 500_000
    share = sum(long_drive.overlaps.values()) / long_drive.agent_steps
    assert share < 1e-3, f"{share:.4%} of agent-steps: {dict(long_drive.overlaps)}"


def test_no_start_of_a_drive_has_overlapping_boxes(long_drive: Drive) -> None:
    assert long_drive.at_start == 0


def test_traffic_keeps_moving(long_drive: Drive) -> None:
    """A light's cycle takes 38 s at most: who stands for 50 s waits for somebody who waits for him."""
    assert not long_drive.stuck


def test_cars_move_as_fast_as_their_speed_says_and_never_back(long_drive: Drive) -> None:
    assert long_drive.backwards == 0
    assert long_drive.hardest >= -HARDEST - 1e-3
    # a lane change goes sideways as well; lanes meet end to end
    assert long_drive.jumps < SIDEWAYS_MPS * DT_S + 0.1


def test_people_never_jump(long_drive: Drive) -> None:
    assert 0.1 < long_drive.walked <= 2.0 * DT_S + 1e-3


def test_the_lanes_of_the_kit_are_where_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, crossroads(Control.LIGHT), **LONG)
    lanes = lanes_of(sim)
    assert lanes["length"][:3].tolist() == pytest.approx([90.0, 20.0, 100.0])
    assert lanes["stop"][3] == pytest.approx(LINE_M)
    assert lanes["junction"][[1, 4]].min() >= 0 and lanes["entry"].tolist() == [1, 0, 0, 1, 0, 0, 1]


# waiting for each other


def waits_beside(monkeypatch: pytest.MonkeyPatch, ego_s: float) -> list[float]:
    """y of somebody who waits at the crosswalk at x = 100, over 40 s, while the ego stands at `ego_s`."""
    builder = street()
    builder.routes.clear()
    builder.route([0], 5.0, 295.0)
    sim = on_roads(monkeypatch, builder, **LONG)
    scene = Scene(sim)
    pedestrian(scene, 5, 0.3)
    scene.ego(ego_s - 5.0, 0.0)
    scene.apply()
    ys: list[float] = []
    for _ in range(400):
        drive(sim, accel=-1.0)
        ys.append(float(sim.core.world.agents["y"][0, 5]))
    return ys


def test_who_waits_in_vain_sets_out_before_one_who_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ego stands 3 m before the strip, for somebody on foot as it seems, who waits, too: 20 s, then they cross."""
    ys = waits_beside(monkeypatch, 100.0 - 1.5 - 3.0 - EGO_HALF_M)
    assert ys[190] == pytest.approx(-4.0)
    assert max(ys) == pytest.approx(4.0, abs=0.14)


def test_nobody_walks_into_one_who_stands_on_the_crosswalk(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(waits_beside(monkeypatch, 100.0)) == pytest.approx(-4.0)
