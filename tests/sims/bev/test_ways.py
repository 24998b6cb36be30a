"""Road users look along their way by distance, over as many lanes as it has: lights, followers, limits, conflicts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.maps import xodr
from benchmarks.maps.kinds import KINDS
from robotrl.sims.driving import tables
from robotrl.sims.driving.opendrive import reader
from robotrl.sims.driving.roads import maps, routes
from robotrl.sims.driving.roads.lanes import Control, RoadBuilder
from robotrl.sims.driving.traffic.right_of_way import barrier
from tests.kits.bev_kit import EGO_HALF_M, Array, Scene, drive, on_roads, overlapping

LONG = {"limit_s": 3600.0, "blocked_s": 1e6}
LIMIT_MPS = 14.0
CUTS = [(200.0,), (195.0, 5.0), (199.0, 1.0), (160.0, *(1.0,) * 40), (150.0, 20.0, 0.5, 20.0, 9.5), (180.0, 4.0, 16.0)]
"""Lengths of the lanes of 200 m of road before a junction: differing limits, say, keep them apart."""


def chain(builder: RoadBuilder, lengths: Sequence[float], y: float = 0.0, x: float = 0.0, **rest: Any) -> list[int]:
    """Lanes along x that follow each other."""
    found: list[int] = []
    for long in lengths:
        found.append(builder.lane(np.array([[x, y], [x + long, y]]), LIMIT_MPS, **rest))
        if len(found) > 1:
            builder.follow(found[-2], found[-1])
        x += long
    return found


def aside(builder: RoadBuilder) -> RoadBuilder:
    """With a lane of its own for the ego, far away."""
    own = builder.lane(np.array([[0.0, 180.0], [60.0, 180.0]]), LIMIT_MPS)
    builder.route((own,), start_s=20.0, end_s=50.0)
    return builder


def red_light(cuts: Sequence[float], after: Sequence[float] = (20.0,)) -> tuple[RoadBuilder, list[int]]:
    """200 m of road, a red light 1 m before its end, a junction."""
    builder = RoadBuilder("light")
    before = chain(builder, cuts)
    inside = chain(builder, after, x=200.0, junction=True)
    beyond = chain(builder, (100.0,), x=200.0 + sum(after))
    builder.follow(before[-1], inside[0])
    builder.follow(inside[-1], beyond[0])
    builder.cycle_s = 1e6
    left = 199.0
    for lane in before:
        if left <= builder.lanes[lane].length_m:
            builder.stop(lane, Control.LIGHT, builder.signal(9e5, 10.0), s=left)
            break
        left -= builder.lanes[lane].length_m
    return aside(builder), before


def place(builder: RoadBuilder, x: float, y: float) -> tuple[int, float, int]:
    """Lane at a place of a road along x, position along it, and the lane that follows; counted in the map."""
    for i, lane in enumerate(builder.lanes):
        if abs(lane.points[0, 1] - y) < 0.1 and lane.points[0, 0] <= x < lane.points[-1, 0]:
            return i, x - float(lane.points[0, 0]), lane.next[0] if lane.next else -1
    raise AssertionError("no lane there")


def ride(sim: Any, seconds: float) -> list[Array]:
    """x of all road users in each step."""
    found = []
    for _ in range(int(10 * seconds)):
        drive(sim)
        found.append(sim.core.world.agents["x"][0].copy())
        assert not len(overlapping(sim.core.world.agents))
    return found


@pytest.mark.parametrize("cuts", CUTS)
def test_a_red_light_is_seen_over_as_many_lanes_as_there_are(
    monkeypatch: pytest.MonkeyPatch, cuts: tuple[float, ...]
) -> None:
    stops = []
    for lengths in (cuts, CUTS[0]):
        builder, _ = red_light(lengths)
        sim = on_roads(monkeypatch, builder, **LONG)
        scene = Scene(sim)
        for slot, x in enumerate((150.0, 120.0, 60.0), 1):
            lane, s, after = place(builder, x, 0.0)
            scene.car(slot, lane, s, 13.0 if x < 140 else 6.0, following=after)
        scene.apply()
        stops.append(np.array(ride(sim, 40.0))[:, 1:4])
    assert stops[0][-1][0] + 2.25 < 199.0 and stops[0][-1][0] > 194.0
    assert (np.diff(stops[0][-1]) < -4.5).all()
    # the same ride, whatever the lanes; a light counts from a point that the end of its lane moves by 1 m
    np.testing.assert_allclose(stops[0], stops[1], atol=1.0)


@pytest.mark.parametrize("cuts", CUTS)
def test_who_stands_ahead_is_seen_over_as_many_lanes_as_there_are(
    monkeypatch: pytest.MonkeyPatch, cuts: tuple[float, ...]
) -> None:
    builder = RoadBuilder("queue")
    chain(builder, (*cuts, 100.0))
    sim = on_roads(monkeypatch, aside(builder), **LONG)
    scene = Scene(sim)
    for slot, (x, v, desire) in enumerate(((210.0, 0.0, 0.0), (140.0, 13.0, 1.0)), 1):
        lane, s, after = place(builder, x, 0.0)
        scene.car(slot, lane, s, v, following=after, desire=desire)
    scene["agents/kind"][:, 1] = tables.OBSTACLE
    scene.apply()
    last = ride(sim, 25.0)[-1]
    assert 205.5 - 3.5 < last[2] < 205.5


def test_a_limit_ahead_is_kept_over_short_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = []
    for cuts in ((153.0, 100.0), (150.0, 2.0, 1.0, 100.0)):
        builder = RoadBuilder("limit")
        builder.lanes[chain(builder, cuts)[-1]].speed_mps = 5.0
        sim = on_roads(monkeypatch, aside(builder), **LONG)
        scene = Scene(sim)
        scene.car(1, 0, 20.0, 13.0, following=1)
        scene.apply()
        agent = sim.core.world.agents[0, 1]
        for _ in range(250):
            drive(sim)
            agent = sim.core.world.agents[0, 1]
            if agent["x"] > 153.0:
                break
        assert agent["x"] > 153.0
        speeds.append(float(agent["v"]))
    assert speeds[0] == pytest.approx(speeds[1], abs=1e-3) and speeds[0] < 6.5


@pytest.mark.parametrize("cuts", [(200.0,), (197.0, 3.0), (160.0, *(1.0,) * 40)])
@pytest.mark.parametrize("inside", [(20.0,), (8.0, 12.0)])
def test_who_gives_way_sees_who_comes_over_short_lanes(
    monkeypatch: pytest.MonkeyPatch, cuts: tuple[float, ...], inside: tuple[float, ...]
) -> None:
    builder = RoadBuilder("crossing")
    before, way = chain(builder, cuts), chain(builder, inside, x=200.0, junction=True)
    builder.follow(before[-1], way[0])
    builder.follow(way[-1], chain(builder, (100.0,), x=200.0 + sum(inside))[0])
    minor = builder.lane(np.array([[210.0, -100.0], [210.0, -10.0]]), LIMIT_MPS)
    across = builder.lane(np.array([[210.0, -10.0], [210.0, 10.0]]), LIMIT_MPS, junction=True)
    beyond = builder.lane(np.array([[210.0, 10.0], [210.0, 90.0]]), LIMIT_MPS)
    builder.follow(minor, across)
    builder.follow(across, beyond)
    builder.stop(minor, Control.YIELD)
    sim = on_roads(monkeypatch, aside(builder), **LONG)
    scene = Scene(sim)
    lane, s, after = place(builder, 150.0, 0.0)
    scene.car(1, lane, s, 13.0, following=after)
    scene.car(2, minor, 80.0, 1.0, following=across)
    scene.apply()
    arrived = [next(k for k, agents in enumerate(rows) if agents) for rows in zip(*(
        (bool(x[1] > 215.0), bool(y > 0.0)) for x, y in _both(sim, 15.0)
    ), strict=True)]  # fmt: skip
    assert arrived[0] < arrived[1]


def _both(sim: Any, seconds: float) -> list[tuple[Array, float]]:
    found = []
    for _ in range(int(10 * seconds)):
        drive(sim)
        assert not len(overlapping(sim.core.world.agents))
        found.append((sim.core.world.agents["x"][0].copy(), float(sim.core.world.agents["y"][0, 2])))
    return found


def ending(solid: bool = False) -> RoadBuilder:
    """Two lanes of which the right one ends after 150 m."""
    builder = RoadBuilder("ending")
    left, right = chain(builder, (150.0,)) + chain(builder, (150.0,), y=-3.5)
    builder.beside(left, right, not solid)
    builder.follow(left, chain(builder, (250.0,), x=150.0)[0])
    return aside(builder)


def test_cars_leave_a_lane_that_ends_for_the_one_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, ending(), **LONG)
    assert sim.core.bank.arrays.lanes["ends"][:2].tolist() == [0, 1]
    scene = Scene(sim)
    for k in range(4):
        scene.car(1 + k, 0, 100.0 - 20.0 * k, 8.0, following=2)
        scene.car(5 + k, 1, 105.0 - 20.0 * k, 8.0)
    scene.apply()
    seen = np.zeros(9, bool)
    for _ in range(400):
        drive(sim)
        agents = sim.core.world.agents[0]
        assert not len(overlapping(sim.core.world.agents))
        seen |= agents["lane"][:9] == 2
        assert ((agents["lane"] != 1) | (agents["s"] + agents["length"] / 2 <= 150.0)).all()
    assert seen[1:].all()


def test_a_lane_that_ends_behind_a_solid_line_leads_out_of_the_map() -> None:
    assert maps.finish(ending(solid=True)).lanes["ends"][:2].tolist() == [0, 0]


def test_a_way_over_short_lanes_follows_the_egos_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork behind two lanes of 1 m: who stands on the other branch does not stop the ego."""
    builder = RoadBuilder("fork")
    before = chain(builder, (100.0, 1.0, 1.0))
    straight = chain(builder, (100.0,), x=102.0)
    off = builder.lane(np.array([[102.0, 0.0], [142.0, -40.0]]), LIMIT_MPS)
    builder.follow(before[-1], off, straight[0])
    builder.route((*before, straight[0]), start_s=5.0)
    builder.route((*before, off), start_s=5.0)
    for route, seen in ((0, False), (1, True)):
        sim = on_roads(monkeypatch, builder, route=route, **LONG)
        scene = Scene(sim)
        scene.ego(80.0, 5.0)
        scene.car(1, off, 20.0, desire=0.0)
        scene.apply()
        drive(sim)
        assert (sim.core.world.egos["leader"][0] == 1) == seen


def test_the_line_of_a_short_lane_counts_for_the_ego(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuts in CUTS:
        builder, before = red_light(cuts)
        builder.routes.clear()
        beyond = next(i for i, lane in enumerate(builder.lanes) if lane.points[0, 0] == 220.0)
        inside = builder.lanes[before[-1]].next[0]
        builder.route((*before, inside, beyond), start_s=5.0)
        sim = on_roads(monkeypatch, builder, **LONG)
        scene = Scene(sim)
        scene.ego(150.0, 10.0)
        scene.apply()
        drive(sim)
        core = sim.core
        # its route begins 5 m along, half of it is 2.35 m long
        ahead = 194.0 - core.world.egos["progress"][0] - 2.35
        assert barrier(core.bank.arrays, core.world, 0, 0, 0.0) == pytest.approx(ahead, abs=0.1)
        point = core.bank.arrays.route_points[core.bank.arrays.routes[0]["first"] + 150]
        assert point["stop"] == pytest.approx(194.0, abs=0.1)


# files


def test_in_a_roundabout_who_enters_gives_way_with_and_without_priorities_in_the_file() -> None:
    for name in ("roundabout", "bare-roundabout"):
        builder = reader.parse(KINDS[name](), name)
        routes.pick_routes(builder, 1, 0, 60.0)
        world = maps.finish(builder)
        leads = {n: i for i, lane in enumerate(builder.lanes) for n in lane.next}
        ring = {i for i, lane in enumerate(builder.lanes) if not lane.junction and lane.length_m < 30}
        stays = {
            i for i, lane in enumerate(builder.lanes) if lane.junction and leads[i] in ring and lane.next[0] in ring
        }
        enters = {i for i, lane in enumerate(builder.lanes) if lane.junction and leads[i] not in ring}
        assert len(stays) == len(enters) == 4
        rows = [
            (i, row)
            for i in stays | enters
            for row in world.conflicts[world.lanes[i]["conflict"] :][: world.lanes[i]["conflicts"]]
            if row["merges"]
        ]
        assert len(rows) == 8
        assert all(bool(row["yields"]) == (i in enters) for i, row in rows)


def test_the_priority_of_a_file_goes_before_the_turn() -> None:
    """A main road that bends to the left in the junction, and a road that joins it straight on."""
    for stated in (True, False):
        town = xodr.Town()
        both = [xodr.section(0, [xodr.lane(1), xodr.lane(-1)])]
        town.add(xodr.Road(1, -100.0, 0.0, 0.0, 85.0, both))
        town.add(xodr.Road(2, 0.0, 15.0, np.pi / 2, 85.0, both))
        town.add(xodr.Road(3, 0.0, -100.0, np.pi / 2, 85.0, both))
        bends = town.connect(9, xodr.End(1, "end"), -1, xodr.End(2, "start"), -1)
        joins = town.connect(9, xodr.End(3, "end"), -1, xodr.End(2, "start"), -1)
        if stated:
            town.junction_part(9, xodr.tag("priority", high=bends, low=joins))
        builder = reader.parse(town.text(), "bend")
        routes.pick_routes(builder, 1, 0, 60.0)
        world = maps.finish(builder)
        first, second = (i for i, one in enumerate(builder.lanes) if one.junction)
        yields = [int(world.conflicts[world.lanes[i]["conflict"]]["yields"]) for i in (first, second)]
        assert yields == ([0, 1] if stated else [1, 0])


def test_straight_on_in_the_lane_beside_is_within_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = reader.parse(KINDS["wide-straight"](), "wide")
    inner = [i for i, lane in enumerate(builder.lanes) if abs(lane.points[0, 1] + 1.75) < 0.1]
    builder.route(inner, 5.0, 150.0)
    sim = on_roads(monkeypatch, builder, num_envs=3, **LONG)
    for at in (150.0, 205.0, 250.0):
        scene = Scene(sim)
        for e in range(3):
            scene.ego(at - 5.0, 8.0, d=-3.5 * e, env=[e])
        scene.apply()
        drive(sim)
        assert sim.core.world.egos["outside"].tolist() == [0, 0, 0]
        lanes = sim.core.world.egos["lane"] - sim.core.bank.arrays.maps[0]["lane"]
        assert len(set(lanes.tolist())) == 3


@pytest.mark.parametrize("name", list(KINDS))
def test_a_map_of_each_kind_is_read(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        builder = reader.parse(KINDS[name](), name)
    routes.pick_routes(builder, 2, 0, 120.0)
    world = maps.finish(builder)
    assert len(world.entries) and (world.lanes["width"] >= 2.0).all()


# the rule-based driver


def fork(turned_off: float) -> RoadBuilder:
    """100 m of road, from which a way goes straight on and another one bends to the left, over 30 m."""
    builder = RoadBuilder("fork")
    (before,) = chain(builder, (100.0,))
    (on,) = chain(builder, (30.0,), x=100.0, junction=True)
    (after,) = chain(builder, (100.0,), x=130.0)
    arc = np.linspace(0.0, np.pi / 2, 31)
    bend = np.stack([100.0 + turned_off * np.sin(arc), turned_off * (1 - np.cos(arc))], axis=1)
    left = builder.lane(bend, LIMIT_MPS, junction=True, bend_rad=np.pi / 2)
    away = builder.lane(bend[-1] + np.array([[0.0, 0.0], [0.0, 50.0]]), LIMIT_MPS)
    builder.follow(before, on, left)
    builder.follow(on, after)
    builder.follow(left, away)
    builder.route((before, on, after), start_s=20.0, end_s=90.0)
    return builder


def expert_ride(sim: Any, seconds: float) -> Array:
    """x of the ego in each step behind the rule-based driver, which collides with nobody; all others stand still."""
    others = sim.core.world.agents[0, 1:].copy()
    driver, started, found = sim.make_expert(mode="brisk"), torch.ones(sim.num_envs, dtype=torch.bool), []
    for _ in range(int(10 * seconds)):
        step = sim.step(driver.act(started))
        started = step.terminated | step.truncated
        assert not started.any(), sim.core.events
        sim.core.world.agents[0, 1:] = others
        found.append(float(sim.core.world.egos["x"][0]))
    return np.array(found)


def test_the_driver_waits_behind_the_tail_of_who_turns_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A car stands 8 m into the turn, as if it let others pass: its tail is still where the ego goes straight on."""
    sim = on_roads(monkeypatch, fork(16.0), **LONG)
    scene = Scene(sim)
    scene.ego(30.0, 8.0)
    scene.car(1, 3, 8.0, following=4)
    scene.apply()
    x = expert_ride(sim, 20.0)
    tail = 108.0 - 4.5 / 2 - EGO_HALF_M
    assert tail - 6.0 < x[-1] < tail and np.ptp(x[-30:]) < 0.5
    # once the tail has left the way, it goes on
    scene = Scene(sim)
    scene.car(1, 3, 20.0, following=4)
    scene.apply()
    assert expert_ride(sim, 6.0)[-1] > 115.0


@pytest.mark.parametrize("cuts", [(100.0,), (60.0, 40.0), (95.0, 5.0)])
def test_the_driver_waits_before_a_junction_until_it_can_change_lanes(
    monkeypatch: pytest.MonkeyPatch, cuts: Sequence[float]
) -> None:
    """The route goes on from the right lane; beside the ego trucks stand in a row, however the road is cut."""
    builder = RoadBuilder("two")
    left, right = chain(builder, cuts, y=3.5), chain(builder, cuts)
    for one, other in zip(left, right, strict=True):
        builder.beside(one, other)
    (inside,) = chain(builder, (20.0,), x=100.0, junction=True)
    (onwards,) = chain(builder, (20.0,), y=3.5, x=100.0, junction=True)
    (after,) = chain(builder, (100.0,), x=120.0)
    builder.follow(right[-1], inside)
    builder.follow(left[-1], onwards)
    builder.follow(inside, after)
    builder.route((*right, inside, after), start_s=10.0, end_s=90.0)
    sim = on_roads(monkeypatch, builder, **LONG)
    scene = Scene(sim)
    scene.ego(20.0, 8.0, d=3.5)
    for slot, x in enumerate(range(16, 100, 12), 1):
        lane, s, following = place(builder, float(x), 0.0)
        scene.car(slot, lane, s, length=10.0, following=following)
    scene.apply()
    x = expert_ride(sim, 20.0)
    # behind the last truck there is room only beyond the junction
    assert 85.0 < x[-1] < 100.0 - EGO_HALF_M and np.ptp(x[-30:]) < 0.5
    assert abs(float(sim.core.world.egos["y"][0]) - 3.5) < 0.5
    scene = Scene(sim)
    scene.clear()
    scene.apply()
    assert expert_ride(sim, 8.0)[-1] > 110.0 and abs(float(sim.core.world.egos["y"][0])) < 0.5
