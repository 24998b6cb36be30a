"""Room for a road user that is put on the road."""

from __future__ import annotations

import math
from typing import Any

from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import boxes_overlap
from robotrl.sims.driving.traffic.heights import are_apart
from robotrl.sims.driving.world import Maps, WorldState


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
            gap = ahead.s - behind.s - 0.5 * (me.length + other.length)
            if gap < 3.0 + 0.6 * behind.v + max(behind.v * behind.v - ahead.v * ahead.v, 0.0) / 6.0:
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
def stoppable(lane: Any, me: Any, v: float) -> float:
    """Speed, at most `v`, at which a car can stop at its lane's stop line."""
    if lane.stop < 0.0:
        return v
    return min(v, math.sqrt(2.0 * 2.0 * max(lane.stop - me.s - 0.5 * me.length - 0.5, 0.0)))
