"""Roads on different levels: nobody meets, sees or drives on what lies above or below; ramps stay one road."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests.kits.xodr_kit as kit
from robotrl.sims.driving import tables
from robotrl.sims.driving.captions import facts
from robotrl.sims.driving.judge import will_touch
from robotrl.sims.driving.opendrive import reader
from robotrl.sims.driving.roads import maps
from robotrl.sims.driving.roads.lanes import RoadBuilder
from robotrl.sims.driving.traffic.heights import ego_height
from tests.kits.bev_kit import Array, Scene, drive, make

HIGH, LOW = 8.0, 1.0
"""Height of a bridge above a road, m; and of a road that crosses it on its own level."""


def climbs(*parts: tuple[float, float, float]) -> str:
    """<elevationProfile> of parts (s, height, slope)."""
    return kit.tag("elevationProfile", *(kit.tag("elevation", s=s, a=a, b=b, c=0, d=0) for s, a, b in parts))


def both_ways() -> str:
    return kit.section(0, [kit.lane(1)], [kit.lane(-1)])


def bridge(height: float) -> str:
    """A road along x at height 0, and one along y that crosses it at the origin; 400 m each, not linked."""
    below = kit.road(1, 400, kit.piece(0, -200, 0, 0, 400), both_ways(), inside=climbs((0, 0, 0)))
    above = kit.road(2, 400, kit.piece(0, 0, -200, math.pi / 2, 400), both_ways(), inside=climbs((0, height, 0)))
    return kit.document(below, above)


def sim_on(folder: Path, text: str, **options: Any) -> Any:
    """One env, whose ego drives the lane of road 1 along x; nobody else is there."""
    path = folder / "bridge.xodr"
    path.write_text(text)
    given = {"obs": "both", "agents": 8, "threads": 1, "routes": 4, "route_length_m": 380.0}
    sim = make(1, map=str(path), **{**given, **options})
    begin(sim)
    return sim


def begin(sim: Any) -> None:
    """A new episode on road 1, with the ego alone."""
    sim.reset(options={"state_ids": [0]})
    arrays = sim.core.bank.arrays
    first = [arrays.route_points[row["first"]] for row in arrays.routes]
    (own,) = (i for i, p in enumerate(first) if p["cos"] > 0.99 and p["x"] < 0)
    scene = Scene(sim)
    scene.clear()
    scene["episodes/route"] = own
    scene.apply()


def lane_along_y(sim: Any) -> int:
    """Lane of the other road, northwards; counted within the map."""
    arrays = sim.core.bank.arrays
    return next(i for i, lane in enumerate(arrays.lanes) if arrays.points[lane["first"]]["sin"] > 0.99)


def events_of(out: Any) -> set[str]:
    return {name for name, bit in tables.EVENTS.items() if int(out.info["events"][0]) & bit}


def put(sim: Any, progress: float, v: float = 8.0, d: float = 0.0, other_s: float | None = None) -> Any:
    """The ego on its route, and a standing car on the other road; gives the observations."""
    begin(sim)
    scene = Scene(sim)
    scene.ego(progress, v, d)
    if other_s is not None:
        scene.car(1, lane_along_y(sim), other_s)
    return scene.apply()


@pytest.fixture(scope="module")
def sims(tmp_path_factory: pytest.TempPathFactory) -> dict[float, Any]:
    """By the height of the other road."""
    return {h: sim_on(tmp_path_factory.mktemp("bridge"), bridge(h)) for h in (HIGH, LOW)}


# the middle of the other road's lane is 1.75 m right of the crossing: the ego's route begins at x = -195


@pytest.mark.parametrize(("height", "found"), [(HIGH, set()), (LOW, {"vehicle"})])
def test_who_drives_below_a_bridge_hits_nobody_on_it(sims: dict[float, Any], height: float, found: set[str]) -> None:
    put(sims[height], 195.0, other_s=198.0)
    assert events_of(drive(sims[height])) == found


@pytest.mark.parametrize(("height", "seen"), [(HIGH, False), (LOW, True)])
def test_who_is_on_another_level_is_not_observed(sims: dict[float, Any], height: float, seen: bool) -> None:
    sim = sims[height]
    obs = put(sim, 180.0, v=8.0, other_s=198.0)
    assert bool(obs["agents_mask"][0].any()) == seen
    assert (float(obs["scalars"][0, 38]) < 1.0) == seen  # the first conflict
    # vehicles of the raster besides the ego
    vehicles = obs["bev"][0, :, :, 5].numpy() > 0
    rows = np.flatnonzero(vehicles.any(axis=1))
    assert (rows.min() < 40) == seen
    assert (facts(sim.core)[0, 0] < 6.0) == seen  # time to collision, s
    put(sim, 185.0, v=8.0, other_s=198.0)
    assert will_touch(sim.core.bank.arrays, sim.core.world, 0, 1.6) == seen


@pytest.mark.parametrize(("height", "seen"), [(HIGH, False), (LOW, True)])
def test_lanes_and_surface_of_another_level_are_not_observed(sims: dict[float, Any], height: float, seen: bool) -> None:
    obs = put(sims[height], 190.0)
    lanes = obs["lanes"][0][obs["lanes_mask"][0] > 0].numpy()
    across = np.abs(lanes[:, 3] - lanes[:, 1]) > np.abs(lanes[:, 2] - lanes[:, 0])
    assert across.any() == seen
    # 12 m left of the ego and 5 m ahead: on the other road only
    road = obs["bev"][0, :, :, 0].numpy() > 0
    row = round(96 * (1 - 100 / 256)) - 10
    assert road[row, 48] and road[row, 48 - 24] == seen


@pytest.mark.parametrize(("height", "found"), [(HIGH, {"off_road"}), (LOW, set())])
def test_the_shadow_of_a_bridge_is_no_road(sims: dict[float, Any], height: float, found: set[str]) -> None:
    """10 m left of the route, below or on the other road."""
    put(sims[height], 195.0, v=0.0, d=10.0)
    assert events_of(drive(sims[height])) == found


def test_a_flat_map_with_heights_has_no_levels() -> None:
    with_heights, without = reader.parse(bridge(0.0), "x"), reader.parse(bridge(0.0).replace("elevation", "other"), "x")
    found = []
    for builder in (with_heights, without):
        builder.route([0])
        found.append(maps.finish(builder))
    assert all(len(one.levels.bits) == 0 for one in found)
    for name in ("lanes", "points", "conflicts", "tile", "segments", "nearest", "route_points"):
        np.testing.assert_array_equal(getattr(found[0], name), getattr(found[1], name))


def test_a_surface_in_levels_has_each_level_where_they_cross() -> None:
    builder = reader.parse(bridge(HIGH), "x")
    builder.route([0])
    road = maps.finish(builder)
    row, column = (int((0.0 - low) / 0.5) for low in (road.origin[1], road.origin[0]))
    first, count = road.levels.blocks[row // 32, column // 32]
    cell = row % 32 * 32 + column % 32
    heights = road.levels.lowest + 0.1 * road.levels.heights[first : first + count, cell].astype(float)
    assert sorted(heights) == [0.0, HIGH]
    assert (road.levels.bits[first : first + count, cell] & tables.DRIVABLE).all()
    assert road.levels.grade == 0.0


def ramp() -> str:
    """A road along x that climbs by 6 % from x = -100 to x = 100, and one at height 0 that crosses it at x = 150."""
    up = kit.road(
        1, 400, kit.piece(0, -200, 0, 0, 400), both_ways(), inside=climbs((0, 0, 0), (100, 0, 0.06), (300, 12, 0))
    )
    across = kit.road(2, 400, kit.piece(0, 150, -200, math.pi / 2, 400), both_ways(), inside=climbs((0, 0, 0)))
    return kit.document(up, across)


def test_a_ramp_is_one_road(tmp_path: Path) -> None:
    sim = sim_on(tmp_path, ramp(), routes=4)
    arrays, world = sim.core.bank.arrays, sim.core.world
    assert arrays.maps[0]["levels"] == 1 and arrays.maps[0]["grade"] == pytest.approx(12 / 400)
    scene = Scene(sim)
    # route begins 5 m along the road; the other car is 50 m ahead on the ramp, 3 m higher, in the oncoming lane
    scene.ego(145.0, 8.0)
    oncoming = next(i for i, lane in enumerate(arrays.lanes) if arrays.points[lane["first"]]["cos"] < -0.99)
    scene.car(1, oncoming, 400.0 - 200.0)
    obs = scene.apply()
    assert ego_height(arrays, world, 0, 0.0) == pytest.approx(3.0, abs=0.01)
    assert ego_height(arrays, world, 0, 50.0) == pytest.approx(6.0, abs=0.01)
    assert obs["agents_mask"][0, 0] == 1.0
    # all of the road ahead in the picture is road, as far as it reaches
    road = obs["bev"][0, :, :, 0].numpy() > 0
    assert road[:, 48].all()
    # off the ramp's edge it is off the road
    put(sim, 145.0, v=0.0, d=-8.0)
    assert events_of(drive(sim)) == {"off_road"}


def loop() -> str:
    """A road that turns left by 270 degrees and crosses itself at the origin, at heights 0 and 8; one way."""
    turn = 75 * math.pi
    pieces = [
        kit.piece(0, -150, 0, 0, 200),
        kit.piece(200, 50, 0, 0, turn, kit.tag("arc", curvature=0.02)),
        kit.piece(200 + turn, 0, 50, -math.pi / 2, 200),
    ]
    lanes = kit.section(0, right=[kit.lane(-1)])
    return kit.document(
        kit.road(1, 400 + turn, pieces, lanes, inside=climbs((0, 0, 0), (160, 0, 8 / 200), (360, 8, 0)))
    )


def test_a_road_that_crosses_itself_does_not_meet_itself(tmp_path: Path) -> None:
    path = tmp_path / "loop.xodr"
    path.write_text(loop())
    with pytest.warns(UserWarning, match="fewer than one"):
        sim = make(1, map=str(path), routes=1, route_length_m=600.0, obs="vector", agents=8, threads=1)
    sim.reset(options={"state_ids": [0]})
    scene = Scene(sim)
    scene.clear()
    # the lane is 1.75 m right of the road: it crosses itself near (-1.75, -1.75); there s = 148 and about 480
    points = sim.core.bank.arrays.points
    above = int(np.argmin(np.hypot(points["x"] + 1.75, points["y"] + 1.75) + 1e3 * (np.arange(len(points)) < 300)))
    lane = sim.core.bank.arrays.lanes[0]
    scene.car(1, 0, float(above * lane["spacing"]))
    scene.ego(130.0, 8.0)
    obs = scene.apply()
    assert obs["agents_mask"][0].sum() == 0.0
    scene.ego(143.0, 8.0)
    scene.apply()
    assert events_of(drive(sim)) == set()
    # above, behind the standing car, it is met
    scene.ego(float(above * lane["spacing"]) - 5.0 - 4.7, 8.0)
    scene.apply()
    found: set[str] = set()
    for _ in range(5):
        found |= events_of(drive(sim))
    assert found == {"vehicle"}


def crossing(height: float) -> RoadBuilder:
    """Two lanes in junctions that cross, the second at a height."""
    builder = RoadBuilder("junctions")
    for points, z in (([(-20, 0), (20, 0)], 0.0), ([(0, -20), (0, 20)], height)):
        builder.lane(np.array(points, float), 10.0, junction=True, heights_m=np.full(2, z))
    builder.route([0])
    return builder


@pytest.mark.parametrize(("height", "conflicts"), [(5.0, 0), (2.5, 0), (1.0, 2), (-5.0, 0)])
def test_junctions_above_one_another_do_not_conflict(height: float, conflicts: int) -> None:
    assert len(maps.finish(crossing(height)).conflicts) == conflicts


def test_a_crosswalk_belongs_to_the_lanes_of_its_level() -> None:
    builder = RoadBuilder("walk")
    for z in (0.0, 6.0):
        builder.lane(np.array([(-50.0, 0.0), (50.0, 0.0)]), 10.0, heights_m=np.full(2, z))
    builder.crosswalk((0.0, -4.0), (0.0, 4.0), 3.0, 6.0)
    builder.route([0])
    road = maps.finish(builder)
    assert road.lanes["crossings"].tolist() == [0, 1]
    assert road.walks["z"].tolist() == [6.0]


def test_heights_of_lanes_are_those_of_the_road() -> None:
    builder = reader.parse(ramp(), "x")
    heights: Array = builder.lanes[0].heights_m if builder.lanes[0].heights_m is not None else np.zeros(0)
    x = builder.lanes[0].points[:, 0]
    np.testing.assert_allclose(heights, np.clip(0.06 * (x + 100), 0.0, 12.0), atol=0.06)
    assert all(lane.heights_m is None for lane in reader.parse(kit.crossroads(), "x").lanes)
