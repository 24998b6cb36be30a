"""Heights of road users and of the surface, on maps where lanes lie above one another.

Heights are looked up where they are compared: road users keep none, and other maps (`levels` of `tables.MAP` is 0) pay
nothing.
"""

from __future__ import annotations

from typing import Any

from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.roads.levels import BLOCK, EMPTY, HEIGHT_M, LAYER_CELLS, LEVEL_M
from robotrl.sims.driving.world import Maps, WorldState

UNKNOWN = -1.0e9
"""Height of who is on no lane and no crosswalk; it counts as on every level."""


@kernel
def height_on(maps: Maps, number: int, s: float) -> float:
    """Height of a lane at `s` m along, m."""
    lane = maps.lanes[number]
    u = s * lane.per_m
    i = min(max(int(u), 0), lane.count - 2)
    u = min(max(u - i, 0.0), 1.0)
    here, there = maps.heights[lane.first + i], maps.heights[lane.first + i + 1]
    return here + u * (there - here)


@kernel
def height_of(maps: Maps, row: Any, user: Any, ahead: float) -> float:
    """Height of a road user after `ahead` more meters, m; `UNKNOWN` off the lanes."""
    if user.lane >= 0:
        length = maps.lanes[user.lane].length
        if user.s + ahead > length and user.next >= 0:
            return height_on(maps, user.next, user.s + ahead - length)
        return height_on(maps, user.lane, user.s + ahead)
    if user.kind == tables.PEDESTRIAN and user.walk >= 0:
        return maps.walks[row.walk + user.walk].z
    return UNKNOWN


@kernel
def ego_height(maps: Maps, world: WorldState, e: int, ahead: float) -> float:
    """Height of the ego's route `ahead` m from the ego, m; before its beginning the route goes on as it began."""
    route = maps.routes[world.episodes[e].route]
    at = world.egos[e].index + ahead
    i = min(max(int(at), 0), route.count - 1)
    p = maps.route_points[route.first + i]
    z = height_on(maps, p.lane, p.lane_s)
    if at < 0.0:
        q = maps.route_points[route.first + min(5, route.count - 1)]
        z += at * (height_on(maps, q.lane, q.lane_s) - z) / min(5, route.count - 1)
    return z


@kernel
def differ(one: float, other: float, by_m: float) -> bool:
    """True if two heights differ by more; unknown ones do not."""
    return one > UNKNOWN and other > UNKNOWN and abs(one - other) > by_m


@kernel
def passes_over(maps: Maps, world: WorldState, e: int, other: Any, t: float) -> bool:
    """True if a road user is on another level than the ego when both have driven on for `t` s."""
    row = maps.maps[world.episodes[e].map]
    if row.levels == 0:
        return False
    return differ(ego_height(maps, world, e, world.egos[e].v * t), height_of(maps, row, other, other.v * t), LEVEL_M)


@kernel
def hidden(maps: Maps, world: WorldState, e: int, z: float, ahead: float, left: float) -> bool:
    """True if a place at height `z` m, `ahead` m before the ego and `left` m aside, is on another level.

    Roads that rise no more than the map's steepest one count as on the ego's level aside of its route.
    """
    row = maps.maps[world.episodes[e].map]
    return row.levels == 1 and differ(ego_height(maps, world, e, ahead), z, LEVEL_M + row.grade * abs(left))


@kernel
def hides(maps: Maps, world: WorldState, e: int, other: Any) -> bool:
    """True if a road user is on another level than the ego's road beside it."""
    row = maps.maps[world.episodes[e].map]
    if row.levels == 0:
        return False
    ego = world.egos[e]
    dx, dy = other.x - ego.x, other.y - ego.y
    z = height_of(maps, row, other, 0.0)
    return hidden(maps, world, e, z, dx * ego.cos + dy * ego.sin, dy * ego.cos - dx * ego.sin)


@kernel
def are_apart(maps: Maps, world: WorldState, e: int, one: Any, other: Any) -> bool:
    """True if two road users are on different levels now."""
    row = maps.maps[world.episodes[e].map]
    return row.levels == 1 and differ(height_of(maps, row, one, 0.0), height_of(maps, row, other, 0.0), LEVEL_M)


@kernel
def misses(maps: Maps, row: Any, user: Any, ahead: float, z: float) -> bool:
    """True if a road user is on another level than a place at height `z` m when it gets there, `ahead` m on."""
    return row.levels == 1 and differ(height_of(maps, row, user, max(ahead, 0.0)), z, LEVEL_M)


@kernel
def surface_at(maps: Maps, row: Any, r: int, c: int, z: float, within_m: float) -> int:
    """Surface bits of a cell on the level at height `z` m; 0 if none is as near.

    Args:
        maps: all maps.
        row: `tables.MAP` record of a map with levels.
        r: row of the cell, inside the map.
        c: its column.
        z: height, m.
        within_m: largest difference from it.
    """
    at = row.block + 2 * ((r // BLOCK) * row.block_columns + c // BLOCK)
    first, count = maps.blocks[at], maps.blocks[at + 1]
    cell = (r % BLOCK) * BLOCK + c % BLOCK
    bits, least = 0, within_m
    for k in range(count):
        i = (row.layer + first + k) * LAYER_CELLS + cell
        height = maps.layer_heights[i]
        if height != EMPTY:
            gap = abs(row.lowest + HEIGHT_M * height - z)
            if gap <= least:
                least, bits = gap, int(maps.layer_bits[i])
    return bits
