"""Car following: order of cars on the lanes, leaders, the Intelligent Driver Model (IDM), choice of the next lane.

Cars have lane coordinates: position along and offset aside. Each env keeps its slots sorted by lane and position, so
that the leader is next in order; the order hardly changes between steps. IDM: Treiber, Hennecke and Helbing 2000.
"""

from __future__ import annotations

import math
from typing import Any

from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import uniform
from robotrl.sims.driving.world import Maps, WorldState

ACCEL, BRAKE = 1.5, 2.0
"""Maximum acceleration and comfortable deceleration of IDM, m/s^2."""
GAP_M = 2.0
"""Standstill gap of IDM."""
PULL_OUT_M = 8.0
"""Additional gap to an obstacle on a lane with a neighbour, enough to pull out."""
HARDEST = 6.0
"""Maximum deceleration, m/s^2."""
VIEW_M = 60.0
"""Look-ahead distance of cars."""
KEY = 131072.0
"""Sort key factor, m, longer than any lane: a slot's key is lane * KEY + s."""
ABSENT = 1.0e15
"""Sort key of a slot that is empty or not on a lane."""


@kernel
def idm(v: float, wanted: float, gap: float, closing: float, headway: float) -> float:
    """Acceleration of the Intelligent Driver Model, m/s^2.

    a (1 - (v / v0)^4 - (s* / s)^2) with s* = s0 + v T + v dv / (2 sqrt(a b)).

    Args:
        v: own speed, m/s.
        wanted: v0, desired speed, m/s, above 0.
        gap: s, bumper to bumper, m.
        closing: dv, own speed minus the leader's, m/s.
        headway: T, s.
    """
    ratio = v / wanted
    free = ratio * ratio
    desired = GAP_M + max(v * headway + v * closing / (2.0 * math.sqrt(ACCEL * BRAKE)), 0.0)
    near = desired / max(gap, 0.1)
    return max(ACCEL * (1.0 - free * free - near * near), -HARDEST)


@kernel
def halt(v: float, wanted: float, ahead: float, headway: float) -> float:
    """Acceleration, m/s^2, for stopping at a line `ahead` m on.

    IDM with its standstill gap of 2 m, but with braking limited to slightly more than stopping at the line requires:
    IDM alone brakes too hard for an obstacle that appears late.
    """
    needed = v * v / (2.0 * max(ahead, 0.1))
    return max(idm(v, wanted, max(ahead + GAP_M - 0.5, 0.1), v, headway), -1.25 * needed - 0.5)


@kernel
def empty(me: Any) -> None:
    """Clear a slot."""
    me.kind, me.lane, me.next, me.walk = 0, -1, -1, -1
    me.s = me.d = me.rest = me.v = me.a = me.wait = me.hold = 0.0
    me.x = me.y = 1.0e6
    me.cos, me.sin, me.length, me.width = 1.0, 0.0, 0.1, 0.1
    me.desire, me.headway = 1.0, 1.5
    me.seed = me.turns = me.reckless = me.hit = 0


@kernel
def place(agent: Any) -> float:
    """Sort key of a slot."""
    return agent.lane * KEY + agent.s if agent.lane >= 0 else ABSENT


@kernel
def sort(world: WorldState, e: int) -> None:
    """Update the order of an env by insertion sort, since the order hardly changes in a step."""
    agents, order, places = world.agents[e], world.order[e], world.places[e]
    n = len(order)
    for k in range(n):
        places[order[k]] = place(agents[order[k]])
    for k in range(1, n):
        slot = order[k]
        key = places[slot]
        j = k - 1
        while j >= 0 and places[order[j]] > key:
            order[j + 1] = order[j]
            j -= 1
        order[j + 1] = slot


@kernel
def first_after(world: WorldState, e: int, key: float) -> int:
    """Index in the order of the first slot with a sort key above `key`; the number of slots if there is none."""
    order, places = world.order[e], world.places[e]
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if places[order[middle]] > key:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def beside(one: Any, other: Any) -> bool:
    """True if two users of a lane are far enough apart laterally to pass each other."""
    return abs(one.d - other.d) > 0.5 * (one.width + other.width) + 0.2


@kernel
def leader(maps: Maps, world: WorldState, e: int, slot: int, at: int) -> tuple[int, float]:
    """Leading road user of a slot: its slot (-1 if none) and the gap to it, m.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        slot: slot of the follower.
        at: index of `slot` in the order.
    """
    agents, order = world.agents[e], world.order[e]
    me = agents[slot]
    n = len(order)
    for k in range(at + 1, n):
        other = agents[order[k]]
        if other.lane != me.lane or other.s - me.s > VIEW_M:
            break
        if not beside(me, other):
            return order[k], other.s - me.s - 0.5 * (me.length + other.length)
    base = maps.lanes[me.lane].length - me.s
    lane = me.next
    for _ in range(3):
        if lane < 0 or base > VIEW_M:
            break
        k = first_after(world, e, lane * KEY - 0.5)
        while k < n:
            other = agents[order[k]]
            if other.lane != lane:
                break
            if not beside(me, other):
                return order[k], base + other.s - 0.5 * (me.length + other.length)
            k += 1
        base += maps.lanes[lane].length
        lane = maps.lanes[lane].next[0]
    return -1, tables.FAR


@kernel
def wanted_speed(maps: Maps, me: Any) -> float:
    """Desired speed, m/s: the driver's fraction of the limit, and that of the next lane when it is reached."""
    lane = maps.lanes[me.lane]
    wanted = lane.speed * me.desire
    if me.next >= 0:
        after = maps.lanes[me.next].speed * me.desire
        if after < wanted:
            wanted = min(wanted, math.sqrt(after * after + 2.0 * ACCEL * max(lane.length - me.s, 0.0)))
    return max(wanted, 0.5)


@kernel
def choose_next(maps: Maps, me: Any) -> None:
    """Draw the successor that a car takes at the end of its lane."""
    lane = maps.lanes[me.lane]
    if lane.nexts == 0:
        me.next = -1
        return
    me.turns += 1
    me.next = lane.next[min(int(uniform(me.seed, me.turns) * lane.nexts), lane.nexts - 1)]


@kernel
def pose(maps: Maps, me: Any) -> None:
    """Compute a car's pose in the plane from its lane, position and offset."""
    lane = maps.lanes[me.lane]
    u = me.s * lane.per_m
    i = min(max(int(u), 0), lane.count - 2)
    u -= i
    a, b = maps.points[lane.first + i], maps.points[lane.first + i + 1]
    c, s = a.cos + u * (b.cos - a.cos), a.sin + u * (b.sin - a.sin)
    # one Newton step of the inverse square root: between points 1 m apart the sum of squares is near 1
    norm = 1.5 - 0.5 * (c * c + s * s)
    c, s = c * norm, s * norm
    me.x = a.x + u * (b.x - a.x) - me.d * s
    me.y = a.y + u * (b.y - a.y) + me.d * c
    me.cos, me.sin = c, s
