"""Ego vehicle: motion, localization on the route, leading road user, collisions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import BRAKE_MPS2, bicycle, boxes_overlap, wrap
from robotrl.sims.driving.roads.levels import LEVEL_M
from robotrl.sims.driving.traffic.following import leader, on_route, passes_line
from robotrl.sims.driving.traffic.heights import ego_height, hides, passes_over, surface_at
from robotrl.sims.driving.traffic.right_of_way import barrier
from robotrl.sims.driving.world import Maps, WorldState

SUBSTEPS = 2
"""Number of collision checks per control step."""
BEHIND, AHEAD = 3, 8
"""Number of route points searched behind and ahead of the last one; a car at 30 m/s passes three per step."""
HIT_NONE, HIT_VEHICLE, HIT_PEDESTRIAN, HIT_STATIC = 0, 1, 2, 3


@kernel
def acceleration(action: float, throttle: float) -> float:
    """Acceleration, m/s^2, for an acceleration action of -1 to 1."""
    return action * throttle if action >= 0.0 else action * BRAKE_MPS2


@kernel
def near(world: WorldState, e: int, reach_m: float) -> bool:
    """True if a road user's bounding circle is within `reach_m` of the ego's."""
    ego, agents = world.egos[e], world.agents[e]
    own = 0.5 * (agents[0].length + agents[0].width)
    for slot in range(1, len(agents)):
        other = agents[slot]
        dx, dy = other.x - ego.x, other.y - ego.y
        reach = own + 0.5 * (other.length + other.width) + reach_m
        if dx * dx + dy * dy < reach * reach:
            return True
    return False


@kernel
def touching(maps: Maps, world: WorldState, e: int, back_s: float) -> tuple[int, int]:
    """Collision of the ego with another road user: kind (`HIT_...`) and slot.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        back_s: time, s, by which the others' positions are extrapolated back.
    """
    ego, agents = world.egos[e], world.agents[e]
    me = agents[0]
    half_length, half_width = 0.5 * me.length, 0.5 * me.width
    radius = half_length + half_width
    for slot in range(1, len(agents)):
        other = agents[slot]
        if other.kind == 0:
            continue
        dx = other.x - other.v * other.cos * back_s - ego.x
        dy = other.y - other.v * other.sin * back_s - ego.y
        reach = radius + 0.5 * (other.length + other.width)
        if (
            dx * dx + dy * dy < reach * reach
            and boxes_overlap(
                dx,
                dy,
                ego.cos,
                ego.sin,
                half_length,
                half_width,
                other.cos,
                other.sin,
                0.5 * other.length,
                0.5 * other.width,
            )
            and not passes_over(maps, world, e, other, 0.0)
        ):
            if other.kind == tables.PEDESTRIAN:
                return HIT_PEDESTRIAN, slot
            return (HIT_STATIC if other.kind == tables.OBSTACLE else HIT_VEHICLE), slot
    return HIT_NONE, -1


@kernel
def touches_parked(maps: Maps, world: WorldState, e: int) -> bool:
    """True if the ego overlaps a parked car."""
    ego, me = world.egos[e], world.agents[e, 0]
    half_length, half_width = 0.5 * me.length, 0.5 * me.width
    row = maps.maps[world.episodes[e].map]
    for k in range(row.parked, row.parked + row.parkeds):
        box = maps.parked[k]
        dx, dy = box.x - ego.x, box.y - ego.y
        reach = half_length + half_width + 0.5 * (box.length + box.width)
        if dx * dx + dy * dy < reach * reach and boxes_overlap(
            dx, dy, ego.cos, ego.sin, half_length, half_width, box.cos, box.sin, 0.5 * box.length, 0.5 * box.width
        ):
            return True
    return False


@kernel
def move(
    maps: Maps, world: WorldState, e: int, steer: float, accel: float, throttle: float, dt: float
) -> tuple[int, int]:
    """Move the ego by a control step; returns the collision kind (`HIT_...`) and slot, -1 for a parked car."""
    ego = world.egos[e]
    rate = acceleration(accel, throttle)
    part = dt / SUBSTEPS
    before, yaw = ego.v, ego.yaw
    # no car approaches the ego faster than 40 m/s
    watch = near(world, e, (40.0 + before) * dt)
    hit, slot = HIT_NONE, -1
    for k in range(SUBSTEPS):
        ego.x, ego.y, ego.yaw, ego.v = bicycle(ego.x, ego.y, ego.yaw, ego.v, steer, rate, part)
        ego.cos, ego.sin = math.cos(ego.yaw), math.sin(ego.yaw)
        if hit == HIT_NONE and watch:
            hit, slot = touching(maps, world, e, (SUBSTEPS - 1 - k) * part)
    # a static object cannot be crossed within half a step, so one check at the end suffices
    if hit == HIT_NONE and touches_parked(maps, world, e):
        hit = HIT_STATIC
    ego.a = (ego.v - before) / dt
    ego.yaw_rate = wrap(ego.yaw - yaw) / dt
    ego.steer, ego.accel = steer, accel
    return hit, slot


@kernel
def locate(maps: Maps, world: WorldState, e: int) -> None:
    """Localize the ego on its route and lanes, and write it to slot 0 for the other road users."""
    ego, me = world.egos[e], world.agents[e, 0]
    route = maps.routes[world.episodes[e].route]
    low, high = max(ego.index - BEHIND, 0), min(ego.index + AHEAD, route.count - 1)
    best, at = 1.0e18, low
    for i in range(low, high + 1):
        p = maps.route_points[route.first + i]
        dx, dy = ego.x - p.x, ego.y - p.y
        square = dx * dx + dy * dy
        if square < best:
            best, at = square, i
    p = maps.route_points[route.first + at]
    dx, dy = ego.x - p.x, ego.y - p.y
    u = min(max(dx * p.cos + dy * p.sin, -1.0), 1.0)
    ego.index = at
    ego.progress = min(max(at + u, 0.0), route.length)
    ego.d = dy * p.cos - dx * p.sin
    c, s = ego.cos * p.cos + ego.sin * p.sin, ego.sin * p.cos - ego.cos * p.sin
    ego.psi = math.atan2(s, c)
    # the route point's lane may end, or not yet have begun, between the point and the ego
    near_by, ahead = p, u
    if p.lane_s + u > maps.lanes[p.lane].length and at + 1 < route.count:
        near_by, ahead = maps.route_points[route.first + at + 1], u - 1.0
    elif p.lane_s + u < 0.0 and at > 0:
        near_by, ahead = maps.route_points[route.first + at - 1], u + 1.0
    lane_number, aside = near_by.lane, ego.d + near_by.lane_left
    lane = maps.lanes[lane_number]
    along = min(max(near_by.lane_s + ahead, 0.0), lane.length)
    # across the line to a neighbour: the ego is on that lane
    while aside > 0.5 * lane.width and lane.beside_left >= 0:
        beside = maps.lanes[lane.beside_left]
        aside -= 0.5 * (lane.width + beside.width)
        along *= beside.length / lane.length
        lane_number, lane = lane.beside_left, beside
    while aside < -0.5 * lane.width and lane.beside_right >= 0:
        beside = maps.lanes[lane.beside_right]
        aside += 0.5 * (lane.width + beside.width)
        along *= beside.length / lane.length
        lane_number, lane = lane.beside_right, beside
    ego.lane, ego.lane_s, ego.lane_d = lane_number, along, aside
    ego.outside = 1 if ego.d > p.left or ego.d < -p.right else 0
    me.x, me.y, me.cos, me.sin = ego.x, ego.y, ego.cos, ego.sin
    me.v, me.a = ego.v, ego.a
    if me.lane != lane_number and passes_line(maps, me.lane, lane_number):
        me.wait = 0.0
    me.lane, me.s, me.d = lane_number, along, aside
    me.next = following(maps, world, e, at, lane)


@kernel
def put_ego(
    maps: Maps, world: WorldState, e: int, x: float, y: float, yaw: float, v: float, length: float, width: float
) -> None:
    """Put the ego at the beginning of its route: pose (m, rad), speed (m/s) and size (m)."""
    ego, me = world.egos[e], world.agents[e, 0]
    ego.x, ego.y, ego.yaw, ego.v = x, y, yaw, v
    ego.cos, ego.sin = math.cos(ego.yaw), math.sin(ego.yaw)
    ego.a = ego.steer = ego.accel = ego.yaw_rate = 0.0
    ego.index, ego.progress, ego.best = 0, 0.0, 0.0
    ego.off, ego.stopped = 0.0, -1.0
    me.kind, me.length, me.width = tables.CAR, length, width
    locate(maps, world, e)


@kernel
def count_wait(maps: Maps, world: WorldState, e: int, dt: float) -> None:
    """Count how long the ego has stood at a sign's line or before others' path, as for the other cars."""
    if world.agents[e, 0].v < 0.3:
        barrier(maps, world, e, 0, dt)


@kernel
def following(maps: Maps, world: WorldState, e: int, at: int, lane: Any) -> int:
    """Successor of the ego's lane on its route, or the first successor if the route contains none."""
    if lane.nexts == 0:
        return -1
    number, _ = on_route(maps, world, e, lane, at + 1)
    return number


@kernel
def look_ahead(maps: Maps, world: WorldState, e: int) -> None:
    """Find the leading road user of the ego: a vehicle on the lanes of its route, or a pedestrian in its path."""
    ego, agents, order = world.egos[e], world.agents[e], world.order[e]
    me = agents[0]
    # the others have moved since the sort, so the ego's place in the order is found by slot
    at = 0
    for k in range(len(order)):
        if order[k] == 0:
            at = k
            break
    ego.leader, ego.gap = leader(maps, world, e, 0, at)
    ego.leader_v = agents[ego.leader].v if ego.leader >= 0 else 0.0
    for slot in range(1, len(agents)):
        other = agents[slot]
        if (other.kind == tables.PEDESTRIAN or other.kind == tables.OBSTACLE) and other.lane < 0:
            dx, dy = other.x - ego.x, other.y - ego.y
            ahead = dx * ego.cos + dy * ego.sin
            # predicted lateral position of a pedestrian when the ego arrives
            aside = dy * ego.cos - dx * ego.sin
            drift = (other.v * (other.sin * ego.cos - other.cos * ego.sin)) * min(ahead / max(ego.v, 2.0), 2.0)
            width = 0.5 * (me.width + other.width) + 0.4
            if ahead > 0.0 and (abs(aside) < width or abs(aside + drift) < width or aside * (aside + drift) < 0.0):
                gap = ahead - 0.5 * (me.length + other.length)
                if gap < ego.gap and not hides(maps, world, e, other):
                    ego.leader, ego.gap, ego.leader_v = slot, gap, 0.0


@kernel
def share_off_road(maps: Maps, world: WorldState, e: int) -> float:
    """Fraction of the ego's box off the drivable surface, from 3 by 5 sample points."""
    ego, me = world.egos[e], world.agents[e, 0]
    row = maps.maps[world.episodes[e].map]
    z = ego_height(maps, world, e, 0.0) if row.levels == 1 else 0.0
    off = 0
    for i in range(5):
        u = (i - 2) * 0.25 * me.length
        for j in range(3):
            w = (j - 1) * 0.5 * me.width
            x, y = ego.x + u * ego.cos - w * ego.sin, ego.y + u * ego.sin + w * ego.cos
            if not (on_road(maps, row, x, y) if row.levels == 0 else on_level(maps, row, x, y, z)):
                off += 1
    return off / 15.0


@kernel
def on_road(maps: Maps, row: Any, x: float, y: float) -> bool:
    """True if a point is on the map's drivable surface."""
    # in CUDA math.floor returns a float
    r, c = np.int64(math.floor((y - row.y0) / row.cell)), np.int64(math.floor((x - row.x0) / row.cell))
    if r < 0 or c < 0 or r >= row.rows or c >= row.columns:
        return False
    return maps.tiles[row.tile + r * row.columns + c] & tables.DRIVABLE != 0


@kernel
def on_level(maps: Maps, row: Any, x: float, y: float, z: float) -> bool:
    """True if a point is on the drivable surface at height `z` m, of a map with levels."""
    r, c = np.int64(math.floor((y - row.y0) / row.cell)), np.int64(math.floor((x - row.x0) / row.cell))
    if r < 0 or c < 0 or r >= row.rows or c >= row.columns:
        return False
    return surface_at(maps, row, int(r), int(c), z, LEVEL_M) & tables.DRIVABLE != 0
