"""Speed that the driving score asks of the ego: that of the traffic around, where road and others allow it."""

from __future__ import annotations

import math
from typing import Any

from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.traffic.right_of_way import barrier, merging, parting
from robotrl.sims.driving.world import Maps, WorldState

ASKED = 0.9
"""Share of the limit that is asked for at most: speedometers may show 10 % more than one drives (UNECE R39)."""
FOLLOWS_M, FOLLOWS_S = 3.0, 3.0
"""Distance at standstill, and time gap, of a car that follows another one."""
PULLS_AWAY_MPS = 1.0
"""Speed by which a car ahead is faster that does not hold up the ego."""
WAITS_M = 3.0
"""Distance from the point to stop at of a car that waits there."""
COMFORT_MPS2 = 2.0
"""Largest lateral acceleration in bends, and deceleration before them."""
AHEAD_M, STEP_M = 40, 2
"""Length of the way ahead whose bends and limits count, and distance of the points on it."""


@kernel
def road_speed(maps: Maps, world: WorldState, e: int, pace: float) -> float:
    """Speed, m/s, at a fraction `pace` of the limit, reduced for the bends and limits ahead of the ego."""
    ego = world.egos[e]
    route = maps.routes[world.episodes[e].route]
    wanted = pace * maps.route_points[route.first + ego.index].speed
    for k in range(0, AHEAD_M, STEP_M):
        i = ego.index + k
        if i >= route.count:
            break
        p = maps.route_points[route.first + i]
        bend = math.sqrt(COMFORT_MPS2 / max(abs(p.curvature), 1e-3))
        wanted = min(wanted, math.sqrt(min(bend, pace * p.speed) ** 2 + 2.0 * 1.5 * k))
    return wanted


@kernel
def is_held(maps: Maps, world: WorldState, e: int) -> bool:
    """True if the ego follows somebody, or waits, as for a light, a sign, people or those who go first.

    Who comes nearer to the point to stop at waits, too, where it would have to brake at 0.5 m/s^2 or more.
    """
    ego = world.egos[e]
    if ego.leader >= 0 and world.agents[e, ego.leader].kind != tables.OBSTACLE and follows(ego, ego.gap, ego.leader_v):
        return True
    if barrier(maps, world, e, 0, 0.0) < WAITS_M + ego.v * ego.v:
        return True
    # who turns off may stand with the tail still on the ego's way; who comes in from beside is ahead at the end
    gap, v = parting(maps, world, e, 0)
    if follows(ego, gap, v):
        return True
    gap, v = merging(maps, world, e, 0)
    return follows(ego, gap, v)


@kernel
def follows(ego: Any, gap: float, v: float) -> bool:
    """True if the ego cannot drive faster behind somebody `gap` m ahead of it, who drives at `v` m/s."""
    return gap < FOLLOWS_M + FOLLOWS_S * ego.v and v < ego.v + PULLS_AWAY_MPS
