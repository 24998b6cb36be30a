"""Inputs of the traffic network: what a car knows of itself, its lines and the road users around it, in its frame."""

from __future__ import annotations

from typing import Any

from robotrl.sims.bev.traffic.lane_changes import CHANGE_EVERY, ROOM_M
from robotrl.sims.bev.traffic.learned.layout import (
    LINE,
    LINES,
    LINES_AT,
    MASK_AT,
    NEAREST,
    NEIGHBOR,
    OWN,
    SEEN,
)
from robotrl.sims.bev.traffic.pedestrians import is_crossed
from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.traffic.following import (
    VIEW_M,
    ahead_on,
    behind_on,
    drawn,
    wanted_speed,
    way_on,
    way_start,
)
from robotrl.sims.driving.traffic.heights import are_apart
from robotrl.sims.driving.world import Maps, WorldState

SPEED, LENGTH, SHORT, ACROSS = 15.0, 50.0, 10.0, 20.0
"""Scales of speeds (m/s), long and short distances and distances aside (m)."""
NEAR_M, FURTHER_M = 10.0, 25.0
"""Distances ahead at which a line's curvature is observed."""
CURVATURE_M = 5.0
"""Distance over which curvature is taken."""
STOPS_M = 20.0
"""Distance before the end of a lane within which a car does not change lanes, unless its lane ends."""
OWN_INPUTS, NEIGHBOR_INPUTS, LINE_INPUTS = len(OWN), len(NEIGHBOR), len(LINE)


@kernel
def line_point(
    maps: Maps, world: WorldState, e: int, slot: int, number: int, s: float
) -> tuple[float, float, float, float, float]:
    """Point `s` m along a lane and the lanes that a car takes after it: x, y, cos, sin, lane width; straight beyond.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        slot: slot of the car.
        number: its lane, or one beside it.
        s: m from the lane's beginning.
    """
    me, lane = world.agents[e, slot], maps.lanes[number]
    if s > lane.length:
        after, walked = -1, way_start(world, e, slot)
        if number == me.lane:
            after = me.next
        elif lane.nexts > 0:
            # as it will draw when it is there
            walked += 1
            after = lane.next[drawn(me, walked, lane.nexts)]
        while after >= 0 and s > lane.length:
            s -= lane.length
            lane = maps.lanes[after]
            after, walked = way_on(maps, world, e, slot, after, walked)
    u = s * lane.per_m
    i = min(max(int(u), 0), lane.count - 2)
    u -= i
    a, b = maps.points[lane.first + i], maps.points[lane.first + i + 1]
    if u > 1.0:
        beyond = (u - 1.0) * lane.spacing
        return b.x + beyond * b.cos, b.y + beyond * b.sin, b.cos, b.sin, lane.width
    x, y = a.x + u * (b.x - a.x), a.y + u * (b.y - a.y)
    c, n = a.cos + u * (b.cos - a.cos), a.sin + u * (b.sin - a.sin)
    norm = 1.5 - 0.5 * (c * c + n * n)
    return x, y, c * norm, n * norm, lane.width


@kernel
def observe_curvature(
    maps: Maps, world: WorldState, e: int, slot: int, number: int, s: float, out: Any, at: int
) -> None:
    """Write a line's curvature `NEAR_M` and `FURTHER_M` after `s` m, left positive."""
    cos, sin = 1.0, 0.0
    for k in range(4):
        ahead = (NEAR_M if k < 2 else FURTHER_M) + (CURVATURE_M if k % 2 == 1 else 0.0)
        _, _, c, n, _ = line_point(maps, world, e, slot, number, s + ahead)
        if k % 2 == 1:
            out[at + k // 2] = SHORT * (cos * n - sin * c) / CURVATURE_M
        cos, sin = c, n


@kernel
def share(value: float, most: float) -> float:
    """Part of a distance in its range of view, 0 to 1."""
    return min(max(value, 0.0), most) / most


@kernel
def beside_of(maps: Maps, me: Any, line: int) -> int:
    """Lane of a line: the car's own (0), the one on its left (1) or right (2); -1 without."""
    lane = maps.lanes[me.lane]
    if line == 0:
        return me.lane
    return lane.left if line == 1 else lane.right


@kernel
def offset_of(maps: Maps, me: Any, line: int, target: int) -> float:
    """Offset of a car from the center of a line, m, left positive."""
    if line == 0:
        return me.d
    width = 0.5 * (maps.lanes[me.lane].width + maps.lanes[target].width)
    return me.d - width if line == 1 else me.d + width


@kernel
def may_change(maps: Maps, world: WorldState, e: int, slot: int, line: int, stands: bool) -> bool:
    """True if a car may change to the lane on its left (1) or right (2) now: when the rule-based cars may decide to."""
    me, episode = world.agents[e, slot], world.episodes[e]
    lane = maps.lanes[me.lane]
    if (episode.steps + slot) % CHANGE_EVERY != 0 or me.hold > 0.0 or lane.junction >= 0:
        return False
    if lane.ends > 0:
        if lane.ends != line:
            return False
    elif lane.length - me.s <= STOPS_M or (me.v <= 1.0 and not stands):
        return False
    return beside_of(maps, me, line) >= 0 and not is_crossed(world, e, me)


@kernel
def observe_lines(
    maps: Maps, world: WorldState, e: int, slot: int, far: float, closing: float, stands: bool, out: Any
) -> None:
    """Write the inputs and the mask of a car's lines.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        slot: slot of the car.
        far: gap to its leader, m; FAR without.
        closing: own speed minus the leader's, m/s; 0 without.
        stands: whether the leader is an obstacle that stands.
        out: (INPUT,).
    """
    agents = world.agents[e]
    me = agents[slot]
    for line in range(LINES):
        at, target = LINES_AT + line * LINE_INPUTS, beside_of(maps, me, line)
        out[MASK_AT + line] = 0.0
        for k in range(LINE_INPUTS):
            out[at + k] = 0.0
        if line > 0 and not may_change(maps, world, e, slot, line, stands):
            continue
        there = maps.lanes[target]
        s = me.s * there.length / maps.lanes[me.lane].length
        gap, nearing, obstacle = far, closing, stands
        if line > 0:
            gap, nearing, obstacle = tables.FAR, 0.0, False
            k, way = ahead_on(maps, world, e, target, s)
            if k >= 0:
                gap, nearing = way - 0.5 * (me.length + agents[k].length), me.v - agents[k].v
                obstacle = agents[k].kind == tables.OBSTACLE
        behind, gaining = tables.FAR, 0.0
        k, way = behind_on(maps, world, e, target, s, slot)
        if k >= 0:
            behind, gaining = way - 0.5 * (me.length + agents[k].length), agents[k].v - me.v
        if line > 0 and min(gap, behind) < ROOM_M:
            continue  # somebody is beside
        out[MASK_AT + line] = 1.0
        out[at] = offset_of(maps, me, line, target) / SHORT
        out[at + 1] = there.speed * me.desire / SPEED
        out[at + 2] = share(gap, VIEW_M)
        out[at + 3] = nearing / SHORT
        out[at + 4] = share(behind, VIEW_M)
        out[at + 5] = gaining / SHORT
        observe_curvature(maps, world, e, slot, target, s, out, at + 6)
        out[at + 8] = share(there.length - s, VIEW_M) if there.ends > 0 else 1.0
        out[at + 9] = 1.0 if obstacle else 0.0


@kernel
def observe_neighbors(maps: Maps, world: WorldState, e: int, slot: int, out: Any) -> None:
    """Write the road users nearest to a car, nearest first."""
    agents = world.agents[e]
    me, first = agents[slot], OWN_INPUTS
    for k in range(first, SEEN):
        out[k] = 0.0
    count = 0
    # while they are found, x and y of a row hold the squared distance and the slot
    for other_slot in range(len(agents)):
        other = agents[other_slot]
        if other.kind == 0 or other_slot == slot:
            continue
        dx, dy = other.x - me.x, other.y - me.y
        square = dx * dx + dy * dy
        if square > VIEW_M * VIEW_M:
            continue
        if count == NEAREST and square >= out[first + (NEAREST - 1) * NEIGHBOR_INPUTS]:
            continue
        if are_apart(maps, world, e, me, other):
            continue
        k = count if count < NEAREST else NEAREST - 1
        while k > 0 and out[first + (k - 1) * NEIGHBOR_INPUTS] > square:
            out[first + k * NEIGHBOR_INPUTS] = out[first + (k - 1) * NEIGHBOR_INPUTS]
            out[first + k * NEIGHBOR_INPUTS + 1] = out[first + (k - 1) * NEIGHBOR_INPUTS + 1]
            k -= 1
        out[first + k * NEIGHBOR_INPUTS] = square
        out[first + k * NEIGHBOR_INPUTS + 1] = other_slot
        count = min(count + 1, NEAREST)
    for k in range(count):
        at = first + k * NEIGHBOR_INPUTS
        other = agents[int(out[at + 1])]
        dx, dy = other.x - me.x, other.y - me.y
        out[at] = (dx * me.cos + dy * me.sin) / LENGTH
        out[at + 1] = (dy * me.cos - dx * me.sin) / ACROSS
        out[at + 2] = other.cos * me.cos + other.sin * me.sin
        out[at + 3] = other.sin * me.cos - other.cos * me.sin
        out[at + 4] = other.v / SPEED
        out[at + 5] = other.length / SHORT


@kernel
def observe_car(
    maps: Maps,
    world: WorldState,
    e: int,
    slot: int,
    ahead: int,
    gap: float,
    joining: float,
    joining_v: float,
    closed: float,
    out: Any,
) -> None:
    """Write the input of a car for the traffic network.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        slot: slot of the car.
        ahead: slot of its leader, -1 without.
        gap: gap to it, m; FAR without.
        joining: gap to a car on a lane that merges or parts, m; FAR without.
        joining_v: its speed, m/s.
        closed: distance from its front to where its way is closed, m; FAR if it is open.
        out: (INPUT,).
    """
    me = world.agents[e, slot]
    lane = maps.lanes[me.lane]
    stands = ahead >= 0 and world.agents[e, ahead].kind == tables.OBSTACLE
    speed = world.agents[e, ahead].v if ahead >= 0 else 0.0
    closing = me.v - speed if ahead >= 0 else 0.0
    out[0] = me.v / SPEED
    out[1] = me.a / 5.0
    out[2] = wanted_speed(maps, world, e, slot) / SPEED
    out[3] = 0.5 * me.headway
    out[4] = 0.5 * (me.d - me.rest)
    out[5] = 1.0 if lane.junction >= 0 else 0.0
    out[6] = min(max(closed, -2.0), VIEW_M) / VIEW_M
    out[7] = share(gap, VIEW_M)
    out[8] = speed / SPEED
    out[9] = closing / SHORT
    out[10] = 1.0 if stands else 0.0
    out[11] = share(joining, VIEW_M)
    out[12] = joining_v / SPEED
    out[13] = me.length / SHORT
    out[14] = min(me.wait, 10.0) / 10.0
    out[15] = share(lane.length - me.s, VIEW_M) if lane.ends > 0 else 1.0
    out[16] = min(0.1 * me.v * me.v / max(closed, 0.5), 2.0)
    out[17] = min(0.2 * gap / max(me.v, 1.0), 1.0)
    out[18] = min(0.1 * max(closing, 0.0) * max(closing, 0.0) / max(gap, 0.5), 2.0)
    observe_neighbors(maps, world, e, slot, out)
    observe_lines(maps, world, e, slot, gap, closing, stands, out)
