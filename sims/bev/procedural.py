"""Procedural roads: each family maps a random generator to a `RoadBuilder`, about 200 m across."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from robotrl.sims.driving.roads.lanes import LANE_WIDTH_M, Control, JunctionTurn, Points, RoadBuilder, headings, shifted

W = LANE_WIDTH_M


class Road(NamedTuple):
    """Lanes of a two-way road; each direction is ordered from the inner (left) to the outer (right) lane."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]


class Arm(NamedTuple):
    """Road at a junction."""

    inbound: tuple[int, ...]
    """Lanes towards the junction, inner lane first."""
    outbound: tuple[int, ...]
    angle: float
    """Heading from the junction outwards, rad."""


def path(pose: tuple[float, float, float], parts: Sequence[tuple[float, float]]) -> Points:
    """Points, 1 m apart, of a curve of consecutive arcs.

    Args:
        pose: x, y in m and heading in rad at the start.
        parts: (length in m, curvature in 1/m) of each arc, left positive.
    """
    x, y, yaw = pose
    out = [(x, y)]
    for length, curvature in parts:
        count = max(math.ceil(length), 1)
        step = length / count
        for _ in range(count):
            half = 0.5 * step * curvature
            chord = step if abs(half) < 1e-9 else step * math.sin(half) / half
            x, y = x + chord * math.cos(yaw + half), y + chord * math.sin(yaw + half)
            yaw += 2 * half
            out.append((x, y))
    return np.array(out)


def bend(start: tuple[float, float, float], end: tuple[float, float, float]) -> Points:
    """Cubic Bezier curve between two poses (x, y, heading) that approximates a circular arc."""
    p0, p3 = np.array(start[:2]), np.array(end[:2])
    turn = math.remainder(end[2] - start[2], 2 * math.pi)
    reach = float(np.linalg.norm(p3 - p0))
    # handle length of a circular arc of that angle; a third of the distance for straight on
    share = 1 / 3 if abs(turn) < 0.1 else 4 / 3 * math.tan(abs(turn) / 4) / (2 * math.sin(abs(turn) / 2))
    p1 = p0 + reach * share * np.array([math.cos(start[2]), math.sin(start[2])])
    p2 = p3 - reach * share * np.array([math.cos(end[2]), math.sin(end[2])])
    u = np.linspace(0.0, 1.0, max(math.ceil(reach * 1.5), 4))[:, None]
    return (1 - u) ** 3 * p0 + 3 * (1 - u) ** 2 * u * p1 + 3 * (1 - u) * u**2 * p2 + u**3 * p3


def two_way(builder: RoadBuilder, line: Points, forward: int, backward: int, speed: float, change: bool = True) -> Road:
    """Add a two-way road along a line: forward lanes to its right, backward lanes to its left."""
    ahead = tuple(builder.lane(shifted(line, -(i + 0.5) * W), speed) for i in range(forward))
    back = tuple(builder.lane(shifted(line, (i + 0.5) * W)[::-1], speed) for i in range(backward))
    for side in (ahead, back):
        for left, right in itertools.pairwise(side):
            builder.beside(left, right, change)
    return Road(ahead, back)


def pose(builder: RoadBuilder, lane: int, at: int) -> tuple[float, float, float]:
    """Pose (x, y, heading) at a lane's start (0) or end (-1)."""
    points = builder.lanes[lane].points
    return float(points[at][0]), float(points[at][1]), float(headings(points)[at])


def connect(builder: RoadBuilder, source: int, target: int, speed: float) -> int:
    """Add a lane through a junction, from the end of one lane to the start of another."""
    start, end = pose(builder, source, -1), pose(builder, target, 0)
    turned = math.remainder(end[2] - start[2], 2 * math.pi)
    turn = JunctionTurn.LEFT if turned > 0.5 else JunctionTurn.RIGHT if turned < -0.5 else JunctionTurn.STRAIGHT
    limit = speed if turn == JunctionTurn.STRAIGHT else min(speed, 7.0 if turn == JunctionTurn.LEFT else 5.0)
    lane = builder.lane(bend(start, end), limit, junction=True, turn=turn)
    builder.follow(source, lane)
    builder.follow(lane, target)
    return lane


def arm(builder: RoadBuilder, angle: float, radius: float, length: float, lanes: int, speed: float) -> Arm:
    """Add a straight two-way road at a junction at the origin."""
    c, s = math.cos(angle), math.sin(angle)
    line = path((radius * c, radius * s, angle), [(length, 0.0)])
    road = two_way(builder, line, lanes, lanes, speed)
    return Arm(road.backward, road.forward, angle)


def crossing(builder: RoadBuilder, arms: Sequence[Arm], speed: float) -> dict[tuple[int, int], list[int]]:
    """Connect all arms of a junction and return the lanes from arm i to arm j.

    With two lanes the inner one leads straight on and left, the outer one straight on and right.
    """
    found: dict[tuple[int, int], list[int]] = {}
    for i, source in enumerate(arms):
        for j, target in enumerate(arms):
            if i == j:
                continue
            turned = math.remainder(target.angle - source.angle + math.pi, 2 * math.pi)
            pairs = list(zip(source.inbound, target.outbound, strict=False))
            if turned > 0.5:
                pairs = pairs[:1]
            elif turned < -0.5:
                pairs = [(source.inbound[-1], target.outbound[-1])]
            found[i, j] = [connect(builder, a, b, speed) for a, b in pairs]
    return found


def routes_through(builder: RoadBuilder, arms: Sequence[Arm], lanes: dict[tuple[int, int], list[int]]) -> None:
    """Add a route for every connection through a junction."""
    for (source, _), ways in lanes.items():
        for way in ways:
            inbound = next(a for a in arms[source].inbound if way in builder.lanes[a].next)
            builder.route((inbound, way, builder.lanes[way].next[0]), start_s=20.0)


# families


def straight(rng: np.random.Generator) -> RoadBuilder:
    """Street with parked cars and a crosswalk, one or two lanes each way."""
    builder = RoadBuilder("straight")
    lanes, speed = int(rng.integers(1, 3)), float(rng.uniform(8.0, 13.9))
    length = float(rng.uniform(230.0, 280.0))
    road = two_way(builder, path((0.0, 0.0, 0.0), [(length, 0.0)]), lanes, lanes, speed)
    at = float(rng.uniform(0.45, 0.6)) * length
    edge = lanes * W + 1.0
    builder.crosswalk((at, -edge), (at, edge))
    # beside the outer lane, clear of it; none where a car would hide the crosswalk
    for s in np.arange(30.0, length - 20.0, 9.0):
        if abs(s - at) > 8.0 and rng.random() < 0.35:
            builder.park(road.forward[-1], float(s), -(W / 2 + 1.15))
    for lane in road.forward:
        builder.route((lane,), start_s=15.0, end_s=length - 10.0)
    return builder


def curve(rng: np.random.Generator) -> RoadBuilder:
    """Winding road, one lane each way."""
    builder = RoadBuilder("curve")
    parts: list[tuple[float, float]] = [(40.0, 0.0)]
    side = 1 if rng.random() < 0.5 else -1
    for _ in range(int(rng.integers(2, 4))):
        radius, angle = float(rng.uniform(22.0, 60.0)), float(rng.uniform(0.6, 1.5))
        parts += [(radius * angle, side / radius), (float(rng.uniform(10.0, 30.0)), 0.0)]
        side = -side
    parts.append((40.0, 0.0))
    line = path((0.0, 0.0, float(rng.uniform(-math.pi, math.pi))), parts)
    road = two_way(builder, line, 1, 1, float(rng.uniform(7.0, 10.0)))
    builder.route(road.forward, start_s=12.0)
    builder.route(road.backward, start_s=12.0)
    return builder


def lane_change(rng: np.random.Generator) -> RoadBuilder:
    """One-way road of three lanes; the route makes one or two lane changes."""
    builder = RoadBuilder("lane-change")
    bow = float(rng.uniform(-1 / 300, 1 / 300))
    length = float(rng.uniform(280.0, 320.0))
    road = two_way(builder, path((0.0, 0.0, 0.0), [(length, bow)]), 3, 0, float(rng.uniform(11.0, 16.0)))
    left, middle, right = road.forward
    for lanes in ((left, middle), (middle, right), (right, middle), (middle, left), (left, middle, right)):
        builder.route(lanes, start_s=15.0)
    return builder


def merge(rng: np.random.Generator) -> RoadBuilder:
    """On-ramp that merges into a two-lane road; routes on the ramp and on the road."""
    builder = RoadBuilder("merge")
    speed, joint = float(rng.uniform(10.0, 14.0)), float(rng.uniform(60.0, 80.0))
    before = two_way(builder, path((-110.0, 0.0, 0.0), [(110.0, 0.0)]), 2, 0, speed).forward
    after = two_way(builder, path((joint, 0.0, 0.0), [(120.0, 0.0)]), 2, 0, speed).forward
    for source, target in zip(before, after, strict=True):
        connect(builder, source, target, speed)
    # the ramp comes from the right and runs beside the road before it merges
    angle = float(rng.uniform(0.2, 0.4))
    aside = path((0.0, -2.5 * W, math.pi), [(8.0, 0.0), (angle * 60.0, 1 / 60.0), (50.0, 0.0)])[::-1]
    ramp = builder.lane(aside, min(speed, 10.0))
    lane = builder.lane(bend(pose(builder, ramp, -1), pose(builder, after[-1], 0)), speed, junction=True)
    builder.follow(ramp, lane)
    builder.follow(lane, after[-1])
    builder.stop(ramp, Control.YIELD)
    builder.route((ramp, lane, after[-1]), start_s=12.0)
    for source, target in zip(before, after, strict=True):
        builder.route((source, builder.lanes[source].next[0], target), start_s=30.0)
    return builder


def roundabout(rng: np.random.Generator) -> RoadBuilder:
    """Single-lane roundabout with three or four roads; traffic in the circle has the right of way."""
    builder = RoadBuilder("roundabout")
    count, radius = int(rng.integers(3, 5)), float(rng.uniform(13.0, 18.0))
    turn, speed = float(rng.uniform(0.0, 2 * math.pi)), float(rng.uniform(8.0, 11.0))
    angles = [turn + 2 * math.pi * i / count + float(rng.uniform(-0.12, 0.12)) for i in range(count)]
    arms = [arm(builder, a, radius + 14.0, 80.0, 1, speed) for a in angles]
    # angle from each road at which cars enter and leave the circle
    beside = math.asin(min(9.0 / radius, 0.62))
    slow = 6.0

    def arc(start: float, end: float) -> int:
        line = path(
            (radius * math.cos(start), radius * math.sin(start), start + math.pi / 2),
            [(radius * (end - start), 1 / radius)],
        )
        return builder.lane(line, slow, junction=True)

    past = [arc(a - beside, a + beside) for a in angles]
    between: list[int] = []
    for i, a in enumerate(angles):
        following = angles[(i + 1) % count]
        following += 2 * math.pi if following < a else 0.0
        between.append(arc(a + beside, following - beside))
    enter: list[int] = []
    leave: list[int] = []
    for i, a in enumerate(arms):
        into = builder.lane(bend(pose(builder, a.inbound[0], -1), pose(builder, between[i], 0)), slow, junction=True)
        out = builder.lane(bend(pose(builder, past[i], 0), pose(builder, a.outbound[0], 0)), slow, junction=True)
        builder.follow(a.inbound[0], into)
        builder.follow(into, between[i])
        builder.follow(past[i], between[i])
        builder.follow(out, a.outbound[0])
        builder.stop(a.inbound[0], Control.YIELD)
        enter.append(into)
        leave.append(out)
    for i in range(count):
        after = (i + 1) % count
        builder.follow(between[i], leave[after], past[after])
    for i in range(count):
        for rounds in range(1, count):
            way = [arms[i].inbound[0], enter[i], between[i]]
            for k in range(1, rounds):
                way += [past[(i + k) % count], between[(i + k) % count]]
            end = (i + rounds) % count
            builder.route((*way, leave[end], arms[end].outbound[0]), start_s=20.0)
    return builder


def _arms(builder: RoadBuilder, rng: np.random.Generator, lanes: int, speed: float, count: int) -> list[Arm]:
    radius = 8.0 + lanes * W
    turn = float(rng.uniform(0.0, 2 * math.pi))
    return [
        arm(builder, turn + k * math.pi / 2 + float(rng.uniform(-0.1, 0.1)), radius, 95.0, lanes, speed)
        for k in range(count)
    ]


def signaled(rng: np.random.Generator) -> RoadBuilder:
    """Four-way crossing with lights: opposite roads share a phase, left turns yield to oncoming cars."""
    builder = RoadBuilder("signal")
    speed = float(rng.uniform(8.0, 13.9))
    arms = _arms(builder, rng, int(rng.integers(1, 3)), speed, 4)
    lanes = crossing(builder, arms, speed)
    green = float(rng.uniform(9.0, 14.0))
    # 3 s yellow and 2 s all-red after each phase
    builder.cycle_s = 2 * (green + 5.0)
    phases = [builder.signal(0.0, green), builder.signal(green + 5.0, green)]
    for i, one in enumerate(arms):
        for lane in one.inbound:
            builder.stop(lane, Control.LIGHT, phases[i % 2])
        if rng.random() < 0.5:
            _crosswalk_at(builder, one)
    routes_through(builder, arms, lanes)
    return builder


def unsignaled(rng: np.random.Generator) -> RoadBuilder:
    """Crossing of three or four roads; the minor ones have a stop or yield sign."""
    builder = RoadBuilder("crossing")
    speed = float(rng.uniform(8.0, 11.0))
    arms = _arms(builder, rng, 1, speed, int(rng.integers(3, 5)))
    lanes = crossing(builder, arms, speed)
    sign = Control.STOP if rng.random() < 0.6 else Control.YIELD
    for i in range(1, len(arms), 2):
        builder.stop(arms[i].inbound[0], sign)
    if rng.random() < 0.5:
        _crosswalk_at(builder, arms[int(rng.integers(0, len(arms)))])
    routes_through(builder, arms, lanes)
    return builder


def _crosswalk_at(builder: RoadBuilder, one: Arm) -> None:
    """Add a crosswalk on an arm beyond its stop line, 1 to 4 m from the junction."""
    c, s = math.cos(one.angle), math.sin(one.angle)
    x, y, _ = pose(builder, one.outbound[0], 0)
    # the road's centre is half a lane to the left of its first outbound lane
    x, y = x - s * W / 2 + 4.5 * c, y + c * W / 2 + 4.5 * s
    half = len(one.outbound) * W + 1.0
    builder.crosswalk((x + s * half, y - c * half), (x - s * half, y + c * half))
    for lane in one.inbound:
        at = builder.lanes[lane]
        at.stop_s = max(at.length_m - 7.5, 0.0) if at.stop_s >= 0 else at.stop_s


FAMILIES: dict[str, Callable[[np.random.Generator], RoadBuilder]] = {
    "straight": straight,
    "curve": curve,
    "lane-change": lane_change,
    "merge": merge,
    "roundabout": roundabout,
    "signal": signaled,
    "crossing": unsignaled,
}
"""Road families by name."""


def layout(family: str, seed: int) -> RoadBuilder:
    """Build the roads of a family for a layout seed."""
    return FAMILIES[family](np.random.default_rng([list(FAMILIES).index(family), seed]))
