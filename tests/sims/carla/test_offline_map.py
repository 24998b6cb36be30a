"""Maps read by us and by CARLA's own parser, without a server: every lane, junction, way and drawn cell of each."""

import functools
import heapq
import itertools
import math
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

import tests.kits.xodr_kit as kit
from benchmarks.maps.kinds import KINDS
from robotrl.errors import ConfigError
from robotrl.sims.driving import tables
from robotrl.sims.driving.opendrive import reader
from robotrl.sims.driving.opendrive.lanes import NARROW_M
from robotrl.sims.driving.roads import maps
from robotrl.sims.driving.roads.lane_index import LaneIndex, lane_index, lanes_near, match_agents
from robotrl.sims.driving.roads.lanes import NONE, RoadBuilder, headings
from robotrl.sims.driving.roads.planner import RoutePlanner, route_length_m

carla = pytest.importorskip(
    "carla", reason="could not import 'carla': CARLA's client library exists for Python to 3.12 on x86-64 Linux"
)

Key = tuple[int, int, int]
"""Road, section and lane of a waypoint of CARLA's."""
STEP_M = 0.5
OFF_M = 0.05
"""Distance of centre lines, and difference of widths, that count as equal."""
TURNED_RAD = 0.08
"""Difference of headings that counts as equal; the first chord of a turn of 2.4 m radius differs by 0.07."""


def osm(nodes: dict[int, tuple[float, float]], *ways: str) -> str:
    """An OpenStreetMap text with nodes at these places, m, near the equator."""
    places = "".join(
        kit.tag("node", id=i, lat=f"{y / 111320:.8f}", lon=f"{x / 111320:.8f}", version=1)
        for i, (x, y) in nodes.items()
    )
    bounds = kit.tag("bounds", minlat=-0.01, minlon=-0.01, maxlat=0.01, maxlon=0.01)
    return '<?xml version="1.0"?>' + kit.tag("osm", bounds, places, *ways, version=0.6)


def way(own: int, nodes: list[int], **tags: object) -> str:
    inside = "".join(kit.tag("nd", ref=n) for n in nodes)
    return kit.tag("way", inside, *(kit.tag("tag", k=k, v=v) for k, v in tags.items()), id=own, version=1)


PLUS = {1: (-100, 0), 2: (0, 0), 3: (100, 0), 4: (0, -100), 5: (0, 100)}
RING = {i: (40 * math.cos(i * math.pi / 6), 40 * math.sin(i * math.pi / 6)) for i in range(12)}
GRID = {10 * i + j: (80.0 * i, 80.0 * j) for i in (1, 2, 3) for j in (1, 2, 3)}
ONE_WAY = {"highway": "primary", "oneway": "yes", "lanes": 2}
STREETS = {
    "osm-crossing": osm(PLUS, way(1, [1, 2, 3], highway="residential"), way(2, [4, 2, 5], highway="residential")),
    "osm-wide-crossing": osm(
        PLUS, way(1, [1, 2, 3], highway="primary", lanes=4), way(2, [4, 2, 5], highway="secondary", lanes=2)
    ),
    "osm-t": osm(PLUS, way(1, [1, 2, 3], highway="secondary", lanes=2), way(2, [4, 2], highway="residential")),
    "osm-ring": osm(
        {**RING, 20: (120.0, 0.0), 21: (-120.0, 0.0)},
        way(1, [*range(12), 0], highway="tertiary", junction="roundabout", oneway="yes"),
        way(2, [20, 0], highway="tertiary"),
        way(3, [21, 6], highway="tertiary"),
    ),
    "osm-one-way-grid": osm(
        GRID,
        *(way(i, [10 * i + j for j in (1, 2, 3)][:: 1 if i % 2 else -1], **ONE_WAY) for i in (1, 2, 3)),
        *(way(10 + j, [10 * i + j for i in (1, 2, 3)][:: 1 if j % 2 else -1], **ONE_WAY) for j in (1, 2, 3)),
    ),
}


def widening() -> str:
    """Two lanes of which the outer one grows out of the inner one's side, goes on and ends; one lane the other way."""
    grows, shrinks = kit.cubic("width", 0, 0, 0, 0.0065625, -0.000109375), kit.cubic("width", 0, 3.5, -0.0875)
    sections = [
        kit.section(0, [kit.lane(1, after=1)], [kit.lane(-1, after=-1)]),
        kit.section(
            40, [kit.lane(1, before=1, after=1)], [kit.lane(-1, before=-1, after=-1), kit.lane(-2, grows, after=-2)]
        ),
        kit.section(
            80, [kit.lane(1, before=1, after=1)], [kit.lane(-1, before=-1, after=-1), kit.lane(-2, before=-2, after=-2)]
        ),
        kit.section(
            140, [kit.lane(1, before=1, after=1)], [kit.lane(-1, before=-1, after=-1), kit.lane(-2, shrinks, before=-2)]
        ),
        kit.section(180, [kit.lane(1, before=1)], [kit.lane(-1, before=-1)]),
    ]
    shapes: kit.Shapes = [(("line", ()), 60.0), (("spiral", (0.0, 0.01)), 40.0), (("arc", (0.01,)), 120.0)]
    line, text = kit.chained(shapes, 5.0, -7.0, 0.4)
    return kit.document(kit.road(1, line.length, text, sections))


DOCUMENTS = {
    "straight": lambda: kit.document(kit.straight()),
    "many-lanes": lambda: kit.document(kit.straight(length=120.0, right=[kit.lane(-i) for i in (1, 2, 3, 4)])),
    "widening": widening,
    "curves": kit.cornu_and_more,
    "crossroads": kit.crossroads,
    "t-junction": lambda: kit.crossroads(arms=3),
    **{
        name: KINDS[name]
        for name in ("opening-lane", "ending-lane", "wide-lights", "roundabout", "limits", "wide-straight")
    },
    **{name: functools.partial(lambda text: carla.Osm2Odr.convert(text), text) for name, text in STREETS.items()},
}


class Place(NamedTuple):
    """A waypoint of CARLA's in our frame, and our places near it."""

    waypoint: object
    x: float
    y: float
    yaw: float
    ours: dict[int, tuple[float, float, float]]
    """Lane to distance, heading difference, and position along it."""
    lane: int
    """Our lane for it."""


class Both(NamedTuple):
    """A map as both read it."""

    builder: RoadBuilder
    theirs: object
    index: LaneIndex
    places: dict[Key, list[Place]]
    """By lane of CARLA's, in driving direction, where it is wide enough for a car."""


@functools.cache
def both(name: str) -> Both:
    text = DOCUMENTS[name]()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* skipped to (junctions|lanes) that do not exist")
        builder = reader.parse(text, name)
    theirs, index = carla.Map(name, text), lane_index(builder)
    places: dict[Key, list[Place]] = {}
    for waypoint in theirs.generate_waypoints(STEP_M):
        assert waypoint.lane_type == carla.LaneType.Driving
        at = waypoint.transform
        x, y, yaw = at.location.x, -at.location.y, -math.radians(at.rotation.yaw)
        near = {
            place.lane: (place.distance_m, turned(builder, place.lane, place.s_m, yaw), place.s_m)
            for place in lanes_near(index, (x, y), yaw, OFF_M)
            if builder.lanes[place.lane].junction == waypoint.is_junction
        }
        key = (waypoint.road_id, waypoint.section_id, waypoint.lane_id)
        if waypoint.lane_width >= NARROW_M:
            places.setdefault(key, []).append(Place(waypoint, x, y, yaw, near, NONE))
    for row in places.values():
        row.sort(key=lambda place: place.waypoint.s * -math.copysign(1.0, place.waypoint.lane_id))
    return Both(builder, theirs, index, {key: list(numbered(row)) for key, row in places.items()})


def numbered(row: list[Place]) -> Iterator[Place]:
    """Our lanes for the places of one of theirs: of the lanes near as many places on as can be, the nearest."""
    while row:
        count, common = 1, set(row[0].ours)
        while count < len(row) and common & set(row[count].ours):
            common &= set(row[count].ours)
            count += 1
        ours = min(common, key=lambda n: sum(place.ours[n][0] for place in row[:count]), default=NONE)
        yield from (place._replace(lane=ours) for place in row[:count])
        row = row[count:]


def on_lane(places: dict[Key, list[Place]]) -> dict[int, list[Place]]:
    """Places on each of our lanes, in driving direction."""
    found: dict[int, list[Place]] = {}
    for row in places.values():
        for place in row:
            found.setdefault(place.lane, []).append(place)
    return {n: sorted(row, key=lambda place: place.ours[n][2] if n != NONE else 0.0) for n, row in found.items()}


def turned(builder: RoadBuilder, lane: int, s: float, yaw: float) -> float:
    """Heading less that of a lane's centre, interpolated between its points, rad."""
    points, length = builder.lanes[lane].points, builder.lanes[lane].length_m
    there = np.interp(s, np.linspace(0.0, length, len(points)), np.unwrap(headings(points)))
    return float((yaw - there + math.pi) % (2 * math.pi) - math.pi)


maps_of_all = pytest.mark.parametrize("name", list(DOCUMENTS))


@maps_of_all
def test_each_lane_of_theirs_is_one_of_ours_in_place_heading_width_and_junction(name):
    builder, _, _, places = both(name)
    lanes = on_lane(places)
    assert sorted(lanes) == list(range(len(builder.lanes)))
    for number, row in lanes.items():
        lane = builder.lanes[number]
        varies = lane.widths_m is not None
        along = np.linspace(0.0, lane.length_m, len(lane.points))
        for place in row:
            far, off, s = place.ours[number]
            # their heading is that of the reference line, which a lane that widens leaves
            assert far < OFF_M and abs(off) < (0.12 if varies or name == "curves" else TURNED_RAD), (
                number,
                far,
                off,
                s,
            )
            width = float(np.interp(s, along, lane.widths_m)) if lane.widths_m is not None else lane.width_m
            assert place.waypoint.lane_width == pytest.approx(width, abs=OFF_M)
            assert place.waypoint.is_junction == lane.junction


@maps_of_all
def test_our_centre_lines_lie_on_theirs(name):
    builder, _, _, places = both(name)
    for number, row in on_lane(places).items():
        theirs = np.array([(place.x, place.y) for place in row])
        # their waypoints stop short of the end of a lane by less than a step
        ours = builder.lanes[number].points
        a, b = theirs[:-1], theirs[1:]
        rel = ours[:, None] - a[None]
        u = np.clip((rel * (b - a)).sum(2) / np.maximum(((b - a) ** 2).sum(1), 1e-9), 0, 1)
        far = np.linalg.norm(rel - u[..., None] * (b - a), axis=2).min(1)
        ends = np.minimum(np.linalg.norm(ours - theirs[0], axis=1), np.linalg.norm(ours - theirs[-1], axis=1))
        assert (far[ends > 2 * STEP_M] < OFF_M).all() and (far < 2 * STEP_M).all(), (number, far.max())


@maps_of_all
def test_what_follows_what_is_the_same(name):
    builder, _, _, places = both(name)
    ours = {(i, n) for i, lane in enumerate(builder.lanes) for n in lane.next}
    listed = set()
    for key, row in places.items():
        listed |= {(a.lane, b.lane) for a, b in itertools.pairwise(row) if a.lane != b.lane}
        for after in row[-1].waypoint.next(1.0):
            there = (after.road_id, after.section_id, after.lane_id)
            if there != key and there in places:
                first = min(places[there], key=lambda place: abs(place.waypoint.s - after.s))
                # in the next section a lane of ours may go on
                if first.lane != row[-1].lane:
                    listed.add((row[-1].lane, first.lane))
    assert ours == listed


@maps_of_all
def test_a_car_at_a_waypoint_is_on_its_lane(name):
    builder, _, index, places = both(name)
    rows = [place for row in places.values() for place in row]
    cars = np.zeros(len(rows), tables.AGENT)
    for car, place in zip(cars, rows, strict=True):
        car["kind"], car["x"], car["y"] = tables.CAR, place.x, place.y
        car["cos"], car["sin"] = math.cos(place.yaw), math.sin(place.yaw)
    match_agents(cars, np.zeros(1, tables.MAP)[0], index)
    for car, place in zip(cars, rows, strict=True):
        # where lanes part or meet, it is one that is as near
        assert (
            car["lane"] == place.lane
            or (builder.lanes[place.lane].junction and int(car["lane"]) in place.ours)
            or (car["lane"] in builder.lanes[place.lane].next or place.lane in builder.lanes[car["lane"]].next)
        )
        assert abs(car["d"]) < OFF_M
    wrong = sum(car["lane"] != place.lane for car, place in zip(cars, rows, strict=True))
    assert wrong <= 0.1 * len(rows)


@maps_of_all
def test_junction_lanes_are_those_of_their_junctions(name):
    builder, _, _, places = both(name)
    found: dict[int, set[int]] = {}
    for row in places.values():
        junction = row[0].waypoint.get_junction()
        if junction is not None:
            found.setdefault(junction.id, set()).update(place.lane for place in row)
    assert set().union(*found.values()) == {i for i, lane in enumerate(builder.lanes) if lane.junction}


def length(row: list[Place], *ends: object) -> float:
    """Length of a line of waypoints, m, from the first to the last of the row, or on to the ends."""
    line = [place.waypoint.transform.location for place in row]
    line = [*ends[:1], *line, *ends[1:]]
    return sum(a.distance(b) for a, b in itertools.pairwise(line))


def edges(theirs, places: dict[Key, list[Place]]) -> dict[Key, list[tuple[Key, float]]]:
    """Topology of CARLA's: to each lane those that follow, with its own length; a dead end leads to none."""
    out: dict[Key, list[tuple[Key, float]]] = {}
    for begin, end in theirs.get_topology():
        key = (begin.road_id, begin.section_id, begin.lane_id)
        if begin.lane_width < NARROW_M:
            continue  # ours begins where it is wide enough
        after = (end.road_id, end.section_id, end.lane_id)
        ways = out.setdefault(key, [])
        if after != key:
            ways.append((after, length(places[key], begin.transform.location, end.transform.location)))
    return out


def shortest(graph: dict[Key, list[tuple[Key, float]]], start: Key) -> dict[Key, float]:
    best, heap = {start: 0.0}, [(0.0, start)]
    while heap:
        cost, here = heapq.heappop(heap)
        if cost == best[here]:
            for after, length in graph.get(here, ()):
                if cost + length < best.get(after, math.inf):
                    best[after] = cost + length
                    heapq.heappush(heap, (cost + length, after))
    return best


@maps_of_all
def test_planned_routes_are_the_shortest_ways_over_their_topology(name):
    builder, theirs, _, places = both(name)
    graph = edges(theirs, places)
    planner = RoutePlanner(builder, change_cost_m=math.inf)
    entered = {after for ways in graph.values() for after, _ in ways}
    starts = sorted(set(graph) - entered) or sorted(graph)[:4]
    goals = [key for key in sorted(places) if not places[key][0].waypoint.is_junction and len(places[key]) > 4]
    compared = 0
    for start in starts:
        lengths = shortest(graph, start)
        for goal in goals:
            a, b = places[start][1], places[goal][-2]
            if start == goal:
                continue
            points, yaws = [(a.x, a.y), (b.x, b.y)], [a.yaw, b.yaw]
            if goal not in lengths:
                with pytest.raises(ConfigError, match="no way leads there"):
                    planner.plan(points, yaws)
                continue
            choice = planner.plan(points, yaws)
            assert (choice.lanes[0], choice.lanes[-1]) == (a.lane, b.lane)
            # from the second waypoint of the first lane to the last but one of the last
            way_m = lengths[goal] - length(places[start][:2]) + length(places[goal][:-1])
            assert route_length_m(builder, choice) == pytest.approx(way_m, rel=0.01, abs=STEP_M)
            compared += 1
    assert compared or name in ("straight", "many-lanes", "limits")


@maps_of_all
def test_the_drawn_surface_is_where_they_have_road(name):
    builder, theirs, *_ = both(name)
    longest = max(range(len(builder.lanes)), key=lambda i: builder.lanes[i].length_m)
    builder.routes.clear()
    builder.route((longest,), 0.0, builder.lanes[longest].length_m)
    world = maps.finish(builder)
    ours = (world.tile & tables.DRIVABLE) > 0

    def road(row: float, column: float) -> bool:
        x, y = world.origin[0] + column * maps.CELL_M, world.origin[1] + row * maps.CELL_M
        found = theirs.get_waypoint(carla.Location(x, -y, 0.0), False, carla.LaneType.Driving)
        if found is None:
            return False
        # they take what lies up to half a lane before or behind a dead end for road
        at, ahead = found.transform.location, found.transform.get_forward_vector()
        return abs((x - at.x) * ahead.x + (-y - at.y) * ahead.y) < 0.3

    near = ours.copy()
    for _ in range(2):
        wide = np.pad(near, 1)
        near = wide[1:-1, 1:-1] | wide[2:, 1:-1] | wide[:-2, 1:-1] | wide[1:-1, 2:] | wide[1:-1, :-2]
    # a cell is drawn where any part of it is road; one that an edge runs along, to within 2 cm, may be or not
    inner, outer = ([-m, 0.25, 0.5, 0.75, 1.0 + m] for m in (-0.04, 0.04))
    hits = np.zeros_like(ours)
    for row, column in np.argwhere(near):
        marks = outer if ours[row, column] else inner
        hits[row, column] = road(row + 0.5, column + 0.5) or any(
            road(row + i, column + j) for i in marks for j in marks
        )
    # farther away there is none
    rows, columns = (np.arange(2, size, 4) for size in ours.shape)
    assert not any(road(r + 0.5, c + 0.5) for r in rows for c in columns if not near[r, c])
    assert (ours & hits).sum() / (ours | hits).sum() >= 0.95
