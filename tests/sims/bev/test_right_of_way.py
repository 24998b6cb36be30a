"""Who goes at a junction: nobody waits for ever, nobody waits on others' path, a stop on all sides goes in order."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from robotrl.sims.bev import procedural
from robotrl.sims.driving import tables
from robotrl.sims.driving.roads import maps
from robotrl.sims.driving.roads.lanes import Control, RoadBuilder
from robotrl.sims.driving.traffic.right_of_way import WAIT_M, barrier
from tests.kits.bev_kit import Array, Scene, drive, lanes_of, on_roads, overlapping

LONG = {"limit_s": 3600.0, "blocked_s": 1e6}
LIMIT_MPS = 10.0
EAST, NORTH, WEST, SOUTH = range(4)
"""Arms; a car comes from one and leaves by another."""
HALF_M = 2.25


def four_arms(control: Control = Control.NONE) -> tuple[RoadBuilder, list[procedural.Arm], dict[tuple[int, int], int]]:
    """A crossing of four roads of one lane each way; its arms, and the lane from arm to arm."""
    builder = RoadBuilder("four")
    arms = [procedural.arm(builder, k * math.pi / 2, 11.5, 95.0, 1, LIMIT_MPS) for k in range(4)]
    ways = {pair: lanes[0] for pair, lanes in procedural.crossing(builder, arms, LIMIT_MPS).items()}
    for arm in arms:
        if control != Control.NONE:
            builder.stop(arm.inbound[0], control)
    own = builder.lane(np.array([[40.0, -80.0], [90.0, -80.0]]), LIMIT_MPS)
    builder.route((own,), start_s=10.0, end_s=40.0)
    return builder, arms, ways


def conflict_of(sim: Any, lane: int, other: int) -> Any:
    """Row of the conflict of two lanes of the map."""
    base = int(sim.core.bank.arrays.maps["lane"][sim.core.world.episodes["map"][0]])
    row = lanes_of(sim)[lane]
    rows = sim.core.bank.arrays.conflicts[row["conflict"] : row["conflict"] + row["conflicts"]]
    return rows[rows["other"] == base + other][0]


def when_through(sim: Any, cars: dict[int, int], seconds: float) -> dict[int, float]:
    """Time, s, at which each car is on the lane behind the junction that it is to reach; nobody overlaps."""
    base = int(sim.core.bank.arrays.maps["lane"][sim.core.world.episodes["map"][0]])
    found: dict[int, float] = {}
    for k in range(int(10 * seconds)):
        drive(sim)
        pairs = overlapping(sim.core.world.agents).tolist()
        assert not pairs, f"at {0.1 * k:.1f} s: {pairs}"
        for slot, lane in cars.items():
            if sim.core.world.agents["lane"][0, slot] == base + lane:
                found.setdefault(slot, 0.1 * k)
        if len(found) == len(cars):
            break
    return found


@pytest.mark.parametrize("apart_m", [0.0, 2.0, 5.0, 10.0])
def test_two_left_turners_who_meet_both_get_through(monkeypatch: pytest.MonkeyPatch, apart_m: float) -> None:
    builder, arms, ways = four_arms()
    sim = on_roads(monkeypatch, builder, **LONG)
    scene = Scene(sim)
    scene.car(1, arms[EAST].inbound[0], 60.0, 8.0, following=ways[EAST, SOUTH])
    scene.car(2, arms[WEST].inbound[0], 60.0 - apart_m, 8.0, following=ways[WEST, NORTH])
    scene.apply()
    out = {1: arms[SOUTH].outbound[0], 2: arms[NORTH].outbound[0]}
    assert len(when_through(sim, out, 30.0)) == 2


@pytest.mark.parametrize("seed", range(6))
def test_cars_from_all_sides_that_turn_all_ways_get_through(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Three cars on each arm, among them trucks that are longer than the room between two paths."""
    builder, arms, ways = four_arms()
    sim = on_roads(monkeypatch, builder, **LONG)
    scene, rng = Scene(sim), np.random.default_rng(seed)
    out, slot = {}, 1
    for arm in range(4):
        s = 80.0 - float(rng.uniform(0.0, 6.0))
        for _ in range(3):
            to = (arm + int(rng.integers(1, 4))) % 4
            long = 8.0 if rng.random() < 0.3 else 4.5
            scene.car(slot, arms[arm].inbound[0], s, 5.0, following=ways[arm, to], length=long)
            out[slot] = arms[to].outbound[0]
            slot += 1
            s -= 14.0
    scene.apply()
    assert len(when_through(sim, out, 90.0)) == len(out)


@pytest.mark.parametrize("inside", [True, False])
def test_who_stands_and_waits_does_not_count_as_coming(monkeypatch: pytest.MonkeyPatch, inside: bool) -> None:
    """Somebody stands before the path of a left turner, who has to yield to him if he comes."""
    builder, arms, ways = four_arms()
    sim = on_roads(monkeypatch, builder, **LONG)
    left, ahead = ways[EAST, SOUTH], ways[WEST, EAST]
    conflict = conflict_of(sim, left, ahead)
    assert conflict["yields"] == 1
    scene = Scene(sim)
    scene.car(1, arms[EAST].inbound[0], 60.0, 8.0, following=left)
    lane, s = (ahead, float(conflict["other_begin"]) - HALF_M - 1.0) if inside else (arms[WEST].inbound[0], 75.0)
    scene.car(2, lane, s, 0.0, following=arms[EAST].outbound[0] if inside else ahead, kind=tables.OBSTACLE)
    scene.apply()
    assert when_through(sim, {1: arms[SOUTH].outbound[0]}, 15.0)


def two_streets() -> tuple[RoadBuilder, int, int, tuple[int, int], tuple[int, int]]:
    """A road north that crosses two lanes, 4 m apart, after 10 and 14 m of the junction; it yields to both."""
    builder = RoadBuilder("two")
    before = builder.lane(np.array([[0.0, -110.0], [0.0, -10.0]]), LIMIT_MPS)
    inside = builder.lane(np.array([[0.0, -10.0], [0.0, 18.0]]), LIMIT_MPS, junction=True)
    builder.follow(before, inside)
    builder.follow(inside, builder.lane(np.array([[0.0, 18.0], [0.0, 90.0]]), LIMIT_MPS))
    found = []
    for y, sign in ((0.0, 1.0), (4.0, -1.0)):
        main = builder.lane(np.array([[-110.0 * sign, y], [-10.0 * sign, y]]), LIMIT_MPS)
        across = builder.lane(np.array([[-10.0 * sign, y], [10.0 * sign, y]]), LIMIT_MPS, junction=True)
        builder.follow(main, across)
        builder.follow(across, builder.lane(np.array([[10.0 * sign, y], [90.0 * sign, y]]), LIMIT_MPS))
        builder.give_way(inside, to=across)
        found.append((main, across))
    own = builder.lane(np.array([[40.0, -80.0], [90.0, -80.0]]), LIMIT_MPS)
    builder.route((own,), start_s=10.0, end_s=40.0)
    return builder, before, inside, found[0], found[1]


def test_nobody_waits_on_the_path_of_those_he_yields_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cars come on the far lane only: who waits for them waits before the near one, or crosses both at once."""
    builder, before, inside, (_, near), (main, far) = two_streets()
    sim = on_roads(monkeypatch, builder, **LONG)
    scene = Scene(sim)
    scene.car(1, before, 60.0, 8.0, following=inside)
    for k in range(5):
        scene.car(2 + k, main, 80.0 - 18.0 * k, 6.0, following=far, desire=0.6)
    scene.apply()
    base = int(sim.core.bank.arrays.maps["lane"][sim.core.world.episodes["map"][0]])
    conflict = conflict_of(sim, inside, near)
    stood, passed = [], False
    for _ in range(400):
        drive(sim)
        assert not len(overlapping(sim.core.world.agents))
        me = sim.core.world.agents[0, 1]
        passed |= bool(me["lane"] == base + inside and me["y"] > 12.0)
        if me["v"] < 0.1 and not passed:
            stood.append(float(me["s"]) if me["lane"] == base + inside else float(me["s"]) - 100.0)
    assert stood and max(stood) + HALF_M < conflict["begin"]
    assert passed


def test_a_path_near_the_junctions_edge_is_seen_from_afar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other lane crosses within the first 2 m of the own lane in the junction."""
    builder = RoadBuilder("edge")
    before = builder.lane(np.array([[0.0, -100.0], [0.0, -2.5]]), LIMIT_MPS)
    inside = builder.lane(np.array([[0.0, -2.5], [0.0, 10.0]]), LIMIT_MPS, junction=True)
    builder.follow(before, inside)
    across = builder.lane(np.array([[-10.0, 0.0], [10.0, 0.0]]), LIMIT_MPS, junction=True)
    builder.give_way(inside, to=across)
    own = builder.lane(np.array([[40.0, -80.0], [90.0, -80.0]]), LIMIT_MPS)
    builder.route((own,), start_s=10.0, end_s=40.0)
    sim = on_roads(monkeypatch, builder, **LONG)
    scene = Scene(sim)
    scene.car(1, before, 75.0, 8.0, following=inside)
    scene.car(2, across, 10.0, 0.0, kind=tables.OBSTACLE)
    scene.apply()
    begin = float(conflict_of(sim, inside, across)["begin"])
    assert begin < HALF_M
    core = sim.core
    assert barrier(core.bank.arrays, core.world, 0, 1, 0.0) == pytest.approx(22.5 + begin - HALF_M - WAIT_M, abs=1e-3)


def test_at_a_stop_on_all_sides_cars_go_in_the_order_in_which_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """All go straight on: each path crosses two others, and that from the opposite side does not touch it."""
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)):
        builder, arms, ways = four_arms(Control.STOP)
        sim = on_roads(monkeypatch, builder, **LONG)
        scene = Scene(sim)
        for k, arm in enumerate(order):
            s = builder.lanes[arms[arm].inbound[0]].length_m - 12.0 - 12.0 * k
            scene.car(1 + arm, arms[arm].inbound[0], s, 5.0, following=ways[arm, (arm + 2) % 4])
        scene.apply()
        out = {1 + arm: arms[(arm + 2) % 4].outbound[0] for arm in range(4)}
        through = when_through(sim, out, 60.0)
        for first, second in itertools.combinations(order, 2):
            assert (second - first) % 2 == 0 or through[1 + first] < through[1 + second], (order, through)


def test_a_car_that_cannot_go_does_not_hold_up_those_who_came_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one at a stop on all sides never sets off: the others wait for their turn, and go after a while."""
    builder, arms, ways = four_arms(Control.STOP)
    sim = on_roads(monkeypatch, builder, **LONG)
    scene = Scene(sim)
    length = builder.lanes[arms[EAST].inbound[0]].length_m
    scene.car(1, arms[EAST].inbound[0], length - 5.0, 0.0, following=ways[EAST, WEST], kind=tables.OBSTACLE, wait=60.0)
    scene.car(2, arms[SOUTH].inbound[0], length - 20.0, 5.0, following=ways[SOUTH, NORTH])
    scene.apply()
    assert 15.0 < when_through(sim, {2: arms[NORTH].outbound[0]}, 60.0)[2] < 40.0


def three_lanes() -> RoadBuilder:
    builder = RoadBuilder("three")
    lanes = [builder.lane(np.array([[0.0, -3.5 * k], [400.0, -3.5 * k]]), LIMIT_MPS) for k in range(3)]
    builder.beside(lanes[0], lanes[1])
    builder.beside(lanes[1], lanes[2])
    own = builder.lane(np.array([[0.0, 80.0], [60.0, 80.0]]), LIMIT_MPS)
    builder.route((own,), start_s=20.0, end_s=50.0)
    return builder


def test_two_cars_do_not_change_to_the_same_place_from_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind slow cars on both outer lanes; the two decide in the same steps, since their slots are 10 apart."""
    sim = on_roads(monkeypatch, three_lanes(), agents=24, **LONG)
    scene = Scene(sim)
    for slot, lane in ((2, 0), (12, 2)):
        scene.car(slot, lane, 100.0, 8.0)
        scene.car(slot + 1, lane, 120.0, 3.0, desire=0.3)
    scene.apply()
    changed: list[Array] = []
    for _ in range(100):
        drive(sim)
        assert not len(overlapping(sim.core.world.agents))
        changed.append(np.abs(sim.core.world.agents["y"][0, [2, 12]] + 3.5) < 1.0)
    assert np.any(changed, axis=0).any()


@pytest.mark.parametrize("cuts", [(28.0,), (14.0, 14.0), (13.0, 1.0, 14.0)])
def test_lanes_that_follow_each_other_are_in_no_conflict(cuts: tuple[float, ...]) -> None:
    """A junction that is crossed over several lanes: only with the road across, whatever the cuts."""
    builder = RoadBuilder("cut")
    before = builder.lane(np.array([[-100.0, 0.0], [0.0, 0.0]]), LIMIT_MPS)
    x, last, own = 0.0, before, []
    for length in cuts:
        own.append(builder.lane(np.array([[x, 0.0], [x + length, 0.0]]), LIMIT_MPS, junction=True))
        builder.follow(last, own[-1])
        x, last = x + length, own[-1]
    across = builder.lane(np.array([[14.0, -20.0], [14.0, 20.0]]), LIMIT_MPS, junction=True)
    builder.route((before, *own), start_s=5.0)
    world = maps.finish(builder)
    assert set(world.conflicts["other"].tolist()) <= {across, *own}
    for lane in own:
        row = world.lanes[lane]
        assert world.conflicts["other"][row["conflict"] : row["conflict"] + row["conflicts"]].tolist() in ([], [across])
