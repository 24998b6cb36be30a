"""Facts about the present scene: time to collision, light ahead, position in the lane; for captions and checks."""

from __future__ import annotations

import math
from typing import Any

from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.judge import touches_then
from robotrl.sims.driving.traffic.heights import passes_over
from robotrl.sims.driving.traffic.right_of_way import light
from robotrl.sims.driving.world import Maps, WorldState

HORIZON_S = 6.0
"""Largest time to collision that is looked for."""
TICK_S = 0.05
LIGHT_M = 30.0
"""Distance from the bumper up to which a light counts as ahead."""
NO_LIGHT = -1
ROUTE_M = 20
"""Distance ahead of the ego at which the route's side is looked at, m; points of a route are 1 m apart."""


@kernel
def time_to_touch(me: Any, ego: Any, other: Any, dx: float, dy: float, vx: float, vy: float, before_s: float) -> float:
    """Time until another box meets the ego's, from (dx, dy) m at (vx, vy) m/s relative to it; `before_s` at most."""
    reach = math.hypot(0.5 * me.length, 0.5 * me.width) + math.hypot(0.5 * other.length, 0.5 * other.width)
    far = reach + before_s * math.hypot(vx, vy)
    if dx * dx + dy * dy > far * far:
        return before_s
    t = 0.0
    while t < before_s:
        if touches_then(me, ego, other, dx + vx * t, dy + vy * t):
            return t
        t += TICK_S
    return before_s


@kernel
def time_to_collision(maps: Maps, world: WorldState, e: int) -> tuple[float, float, float]:
    """Time until the ego's box meets another road user's or a parked car's, if all keep speed and course.

    Unlike the reward's near-collision term it counts a standing ego, parked cars, and all directions.

    Returns:
        The time, s, `HORIZON_S` if there is none before; the direction, rad, of the other's center now, in the ego's
        frame, left positive; and the time without those whose centers are now behind the ego's.
    """
    ego, agents = world.egos[e], world.agents[e]
    me, row = agents[0], maps.maps[world.episodes[e].map]
    vx, vy = ego.v * ego.cos, ego.v * ego.sin
    soonest, before, nearest_x, nearest_y = HORIZON_S, HORIZON_S, 1.0, 0.0
    for slot in range(1, len(agents)):
        other = agents[slot]
        if other.kind == 0:
            continue
        dx, dy = other.x - ego.x, other.y - ego.y
        x, y = dx * ego.cos + dy * ego.sin, dy * ego.cos - dx * ego.sin
        limit = soonest if x < 0.0 else before
        t = time_to_touch(me, ego, other, dx, dy, other.v * other.cos - vx, other.v * other.sin - vy, limit)
        if t < limit and not passes_over(maps, world, e, other, t):
            if x >= 0.0:
                before = t
            if t < soonest:
                soonest, nearest_x, nearest_y = t, x, y
    for k in range(row.parked, row.parked + row.parkeds):
        box = maps.parked[k]
        dx, dy = box.x - ego.x, box.y - ego.y
        x, y = dx * ego.cos + dy * ego.sin, dy * ego.cos - dx * ego.sin
        limit = soonest if x < 0.0 else before
        t = time_to_touch(me, ego, box, dx, dy, -vx, -vy, limit)
        if t < limit and x >= 0.0:
            before = t
        if t < min(limit, soonest):
            soonest, nearest_x, nearest_y = t, x, y
    return soonest, math.atan2(nearest_y, nearest_x), before


@kernel
def light_ahead(maps: Maps, world: WorldState, e: int) -> int:
    """State of the light within `LIGHT_M` ahead of the bumper, see `right_of_way`; `NO_LIGHT` without one."""
    ego = world.egos[e]
    route = maps.routes[world.episodes[e].route]
    point = maps.route_points[route.first + ego.index]
    ahead = point.stop - ego.progress - 0.5 * world.agents[e, 0].length
    if point.control != 1 or ahead < 0.0 or ahead > LIGHT_M:
        return NO_LIGHT
    state, _ = light(maps, world, e, point.group)
    return state


@kernel
def route_aside(maps: Maps, world: WorldState, e: int) -> float:
    """Lateral position of the route `ROUTE_M` ahead in the ego's frame, m, left positive."""
    ego = world.egos[e]
    route = maps.routes[world.episodes[e].route]
    point = maps.route_points[route.first + min(ego.index + ROUTE_M, route.count - 1)]
    return (point.y - ego.y) * ego.cos - (point.x - ego.x) * ego.sin


@kernel
def scene_range(maps: Maps, world: WorldState, out: Any, low: int, high: int) -> None:
    """Facts of the envs from `low` to `high` into `out` (N, 8), columns `FACTS`."""
    for e in range(low, high):
        ego = world.egos[e]
        out[e, 0], out[e, 1], out[e, 7] = time_to_collision(maps, world, e)
        out[e, 2] = ego.v
        out[e, 3] = light_ahead(maps, world, e)
        out[e, 4] = ego.d
        out[e, 5] = ego.off
        out[e, 6] = route_aside(maps, world, e)


FACTS = (
    "ttc_s",
    "direction_rad",
    "speed_mps",
    "light",
    "route_offset_m",
    "off_road_share",
    "route_aside_m",
    "ttc_ahead_s",
)
