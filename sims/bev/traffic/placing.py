"""Room for a road user that is put on the road."""

from __future__ import annotations

import math
from typing import Any

from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import boxes_overlap
from robotrl.sims.driving.traffic.following import VIEW_M, way_on, way_start
from robotrl.sims.driving.traffic.heights import are_apart
from robotrl.sims.driving.world import Maps, WorldState

LINE_M = 150.0
"""Distance within which a stop line ahead limits the speed that a car starts with."""


@kernel
def too_close(behind: Any, ahead: Any, way: float) -> bool:
    """True if a car could not keep from the one ahead of it, `way` m from centre to centre."""
    gap = way - 0.5 * (behind.length + ahead.length)
    return gap < 3.0 + 0.6 * behind.v + max(behind.v * behind.v - ahead.v * ahead.v, 0.0) / 6.0


@kernel
def way_to(maps: Maps, world: WorldState, e: int, slot: int, other: Any) -> float:
    """Distance, m, along a road user's way to one on a further lane before a junction; FAR if it is not there."""
    me = world.agents[e, slot]
    base, number, walked = maps.lanes[me.lane].length - me.s, me.next, way_start(world, e, slot)
    while number >= 0 and base < VIEW_M and maps.lanes[number].junction < 0:
        if number == other.lane:
            return base + other.s
        base += maps.lanes[number].length
        number, walked = way_on(maps, world, e, slot, number, walked)
    return tables.FAR


@kernel
def clear(maps: Maps, world: WorldState, e: int, slot: int, upto: int) -> bool:
    """True if a newly placed car is clear of the ego, the slots before `upto` and parked cars."""
    agents = world.agents[e]
    me = agents[slot]
    for k in range(upto):
        other = agents[k]
        if other.kind == 0 or k == slot:
            continue
        if other.lane == me.lane and me.lane >= 0:
            behind, ahead = (me, other) if me.s < other.s else (other, me)
            if too_close(behind, ahead, ahead.s - behind.s):
                return False
        elif me.lane >= 0 and other.lane >= 0:
            far = way_to(maps, world, e, slot, other)
            if far < tables.FAR and too_close(me, other, far):
                return False
            far = way_to(maps, world, e, k, me)
            if far < tables.FAR and too_close(other, me, far):
                return False
        dx, dy = other.x - me.x, other.y - me.y
        if (
            dx * dx + dy * dy < 400.0
            and boxes_overlap(
                dx,
                dy,
                me.cos,
                me.sin,
                0.5 * me.length + 0.5,
                0.5 * me.width + 0.1,
                other.cos,
                other.sin,
                0.5 * other.length + 0.5,
                0.5 * other.width + 0.1,
            )
            and not are_apart(maps, world, e, me, other)
        ):
            return False
    row = maps.maps[world.episodes[e].map]
    for k in range(row.parked, row.parked + row.parkeds):
        box = maps.parked[k]
        dx, dy = box.x - me.x, box.y - me.y
        if dx * dx + dy * dy < 400.0 and boxes_overlap(
            dx, dy, me.cos, me.sin, 0.5 * me.length, 0.5 * me.width, box.cos, box.sin, 0.5 * box.length, 0.5 * box.width
        ):
            return False
    return True


@kernel
def line_on_way(maps: Maps, world: WorldState, e: int, slot: int) -> float:
    """Distance, m, from a road user's centre to the first stop line of its way, on its lane or ahead; FAR without."""
    me = world.agents[e, slot]
    base, number, walked = -me.s, me.lane, way_start(world, e, slot)
    while number >= 0 and base < LINE_M:
        lane = maps.lanes[number]
        if lane.stop >= 0.0:
            return base + lane.stop
        base += lane.length
        if number == me.lane:
            number = me.next
        else:
            number, walked = way_on(maps, world, e, slot, number, walked)
    return tables.FAR


@kernel
def stoppable(maps: Maps, world: WorldState, e: int, slot: int, v: float) -> float:
    """Speed, at most `v`, at which a car whose next lane is chosen can stop at the first stop line of its way."""
    line = line_on_way(maps, world, e, slot)
    if line >= tables.FAR:
        return v
    return min(v, math.sqrt(2.0 * 2.0 * max(line - 0.5 * world.agents[e, slot].length - 0.5, 0.0)))
