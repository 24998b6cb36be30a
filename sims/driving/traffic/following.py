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
def style_of(world: WorldState, e: int, slot: int) -> Any:
    """Driving style of a slot, `tables.POPULATION`: the population's for a car of the traffic, else moderate."""
    if slot > 0 and world.agents[e, slot].kind == tables.CAR:
        return world.populations[world.episodes[e].population]
    return world.populations[0]


@kernel
def idm(v: float, wanted: float, gap: float, closing: float, headway: float) -> float:
    """Acceleration of the Intelligent Driver Model, m/s^2, of a moderate driver; see `styled_idm`."""
    return idm_with(v, wanted, gap, closing, headway, ACCEL, BRAKE, GAP_M)


@kernel
def styled_idm(v: float, wanted: float, gap: float, closing: float, headway: float, style: Any) -> float:
    """Acceleration of the Intelligent Driver Model, m/s^2, of a driver with a style, `tables.POPULATION`."""
    return idm_with(v, wanted, gap, closing, headway, style.accel_mps2, style.brake_mps2, style.standstill_gap_m)


@kernel
def idm_with(
    v: float, wanted: float, gap: float, closing: float, headway: float, accel: float, brake: float, standstill: float
) -> float:
    """Acceleration of the Intelligent Driver Model, m/s^2.

    a (1 - (v / v0)^4 - (s* / s)^2) with s* = s0 + v T + v dv / (2 sqrt(a b)).

    Args:
        v: own speed, m/s.
        wanted: v0, desired speed, m/s, above 0.
        gap: s, bumper to bumper, m.
        closing: dv, own speed minus the leader's, m/s.
        headway: T, s.
        accel: a, maximum acceleration, m/s^2.
        brake: b, comfortable deceleration, m/s^2.
        standstill: s0, gap at standstill, m.
    """
    ratio = v / wanted
    free = ratio * ratio
    desired = standstill + max(v * headway + v * closing / (2.0 * math.sqrt(accel * brake)), 0.0)
    near = desired / max(gap, 0.1)
    return max(accel * (1.0 - free * free - near * near), -HARDEST)


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
    me.s = me.d = me.rest = me.v = me.a = me.wait = me.hold = me.plan = 0.0
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
    lane, walked = me.next, way_start(world, e, slot)
    while lane >= 0 and base <= VIEW_M:
        k = first_after(world, e, lane * KEY - 0.5)
        while k < n:
            other = agents[order[k]]
            if other.lane != lane:
                break
            if not beside(me, other):
                return order[k], base + other.s - 0.5 * (me.length + other.length)
            k += 1
        base += maps.lanes[lane].length
        lane, walked = way_on(maps, world, e, slot, lane, walked)
    return -1, tables.FAR


@kernel
def way_start(world: WorldState, e: int, slot: int) -> int:
    """State of a walk along a road user's way, at its next lane: draws made, of the ego the route point behind it."""
    return world.egos[e].index if slot == 0 else world.agents[e, slot].turns


@kernel
def way_on(maps: Maps, world: WorldState, e: int, slot: int, number: int, walked: int) -> tuple[int, int]:
    """Lane that a road user will take after a lane of its way beyond its own, and the state of the walk after it.

    The ego follows its route. The others draw a successor when they enter a lane (`choose_next`), from numbers that are
    known before. Road users that draw none, since they are told of by a server, are taken to follow the first one.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        slot: slot of the road user.
        number: lane of its way, its next one or one after that.
        walked: state of the walk at that lane, see `way_start`.
    """
    lane = maps.lanes[number]
    if lane.nexts == 0:
        return -1, walked
    if slot == 0:
        return on_route(maps, world, e, lane, walked)
    me = world.agents[e, slot]
    if lane.nexts == 1 or me.seed == 0:
        return lane.next[0], walked + 1
    return lane.next[drawn(me, walked + 1, lane.nexts)], walked + 1


@kernel
def on_route(maps: Maps, world: WorldState, e: int, lane: Any, index: int) -> tuple[int, int]:
    """Successor of a lane on the ego's route from point `index` on, with its point; else its first successor."""
    if lane.nexts > 1:
        route = maps.routes[world.episodes[e].route]
        for i in range(index, min(index + int(VIEW_M), route.count)):
            candidate = maps.route_points[route.first + i].lane
            for k in range(lane.nexts):
                if lane.next[k] == candidate:
                    return candidate, i
    return lane.next[0], index


@kernel
def drawn(me: Any, turn: int, count: int) -> int:
    """Which of `count` successors a car takes, at its draw number `turn`."""
    return min(int(uniform(me.seed, turn) * count), count - 1)


@kernel
def ahead_on(maps: Maps, world: WorldState, e: int, number: int, s: float) -> tuple[int, float]:
    """First road user after place `s` of a lane, or of those that follow it before a junction.

    Returns:
        Its slot, -1 without, and how far on it is, m.
    """
    agents, order = world.agents[e], world.order[e]
    base, k = -s, first_after(world, e, number * KEY + s)
    while True:
        if k < len(order) and agents[order[k]].lane == number:
            return order[k], base + agents[order[k]].s
        lane = maps.lanes[number]
        base += lane.length
        if lane.nexts == 0 or base > VIEW_M or maps.lanes[lane.next[0]].junction >= 0:
            return -1, tables.FAR
        number = lane.next[0]
        k = first_after(world, e, number * KEY - 0.5)


@kernel
def behind_on(maps: Maps, world: WorldState, e: int, number: int, s: float, slot: int) -> tuple[int, float]:
    """Last road user but `slot` before place `s` of a lane, or of those that lead to it alone from no junction.

    Returns:
        Its slot, -1 without, and how far back it is, m.
    """
    agents, order = world.agents[e], world.order[e]
    base, k = s, first_after(world, e, number * KEY + s) - 1
    while True:
        if k >= 0 and order[k] == slot:
            k -= 1
        if k >= 0 and agents[order[k]].lane == number:
            return order[k], base - agents[order[k]].s
        number = maps.lanes[number].before
        if number < 0 or base > VIEW_M:
            return -1, tables.FAR
        base += maps.lanes[number].length
        k = first_after(world, e, number * KEY + maps.lanes[number].length + 1.0) - 1


@kernel
def wanted_speed(maps: Maps, world: WorldState, e: int, slot: int) -> float:
    """Desired speed, m/s: the driver's fraction of the limit, and of those ahead by the time they are reached."""
    me = world.agents[e, slot]
    lane = maps.lanes[me.lane]
    wanted = lane.speed * me.desire
    ahead = max(lane.length - me.s, 0.0)
    number, walked = me.next, way_start(world, e, slot)
    while number >= 0 and wanted * wanted > 2.0 * ACCEL * ahead:
        after = maps.lanes[number].speed * me.desire
        if after < wanted:
            wanted = min(wanted, math.sqrt(after * after + 2.0 * ACCEL * ahead))
        ahead += maps.lanes[number].length
        number, walked = way_on(maps, world, e, slot, number, walked)
    return max(wanted, 0.5)


@kernel
def choose_next(maps: Maps, me: Any) -> None:
    """Draw the successor that a car takes at the end of its lane."""
    lane = maps.lanes[me.lane]
    if lane.nexts == 0:
        me.next = -1
        return
    me.turns += 1
    me.next = lane.next[drawn(me, me.turns, lane.nexts)]


@kernel
def passes_line(maps: Maps, before: int, after: int) -> bool:
    """True if who goes from one lane to another has a line behind and no junction ahead: its wait is over."""
    if before < 0:
        return True
    lane = maps.lanes[before]
    return maps.lanes[after].junction < 0 and (lane.control > 0 or lane.junction >= 0)


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
