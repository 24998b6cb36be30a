"""Surroundings of the ego on a large map: where its road users are, so that as many are near as on a small one.

A map of one's own with more lanes than `spots.LOCAL_M` has spots on them, by cell of its grid. Road users start on
spots within reach of the ego; who falls behind it, or drives away, comes in again within reach but out of sight, mostly
ahead. The reach is as far as there are as many lanes as on the procedural roads.
"""

from __future__ import annotations

import math
from typing import Any

from robotrl.sims.bev.traffic.lane_changes import HOLD_S
from robotrl.sims.bev.traffic.placing import clear, stoppable
from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import uniform
from robotrl.sims.driving.roads.spots import SPOT_M
from robotrl.sims.driving.traffic.following import choose_next, pose
from robotrl.sims.driving.world import Maps, WorldState

LANES_M = 800.0
"""Length of lanes within reach of the ego; the mean of the procedural roads."""
LEAST_M, MOST_M, GROWS_M = 80.0, 400.0, 16.0
"""Smallest and largest reach, and the steps by which it grows."""
BEYOND_M = 20.0
"""Distance beyond the reach at which a road user leaves."""
UNSEEN_M = 64.0
"""Distance from the ego from which somebody may appear; it sees 60 m far."""
PER_WALK = 2
"""Number of pedestrians at each crosswalk."""


@kernel
def spots_within(maps: Maps, row: Any, x: float, y: float, reach: float) -> int:
    """Number of spots in the grid cells within `reach` m of a point in x and in y."""
    c0, c1 = cells(x - row.x0, reach, row.grid_cell, row.grid_columns)
    r0, r1 = cells(y - row.y0, reach, row.grid_cell, row.grid_rows)
    count = 0
    for r in range(r0, r1 + 1):
        at = row.cell_spot + r * row.grid_columns
        count += int(maps.cell_spots[at + c1 + 1]) - int(maps.cell_spots[at + c0])
    return count


@kernel
def cells(at: float, reach: float, size: float, count: int) -> tuple[int, int]:
    """First and last of `count` cells of a size that are within reach, along an axis."""
    low, high = int(max(at - reach, 0.0) / size), int(max(at + reach, 0.0) / size)
    return min(low, count - 1), min(high, count - 1)


@kernel
def spot_at(maps: Maps, row: Any, x: float, y: float, reach: float, k: int) -> int:
    """Index of the k-th of the spots that `spots_within` counts."""
    c0, c1 = cells(x - row.x0, reach, row.grid_cell, row.grid_columns)
    r0, r1 = cells(y - row.y0, reach, row.grid_cell, row.grid_rows)
    for r in range(r0, r1 + 1):
        at = row.cell_spot + r * row.grid_columns
        first, end = int(maps.cell_spots[at + c0]), int(maps.cell_spots[at + c1 + 1])
        if k < end - first:
            return row.spot + first + k
        k -= end - first
    return row.spot


@kernel
def reach_of(maps: Maps, row: Any, x: float, y: float) -> float:
    """Distance from a point within which there are `LANES_M` of lanes, `LEAST_M` to `MOST_M`."""
    reach = LEAST_M
    # a circle covers pi / 4 of the square around it
    while reach < MOST_M and SPOT_M * spots_within(maps, row, x, y, reach) * math.pi / 4.0 < LANES_M:
        reach += GROWS_M
    return reach


@kernel
def take_spot(maps: Maps, world: WorldState, e: int, me: Any, share: float) -> float:
    """Put a car or cyclist on one of the spots around the ego, drawn by `share` (0 to 1); its distance from the ego."""
    ego, episode = world.egos[e], world.episodes[e]
    row = maps.maps[episode.map]
    count = spots_within(maps, row, ego.x, ego.y, episode.reach)
    if count == 0:
        return tables.FAR
    at = share * count
    k = min(int(at), count - 1)
    spot = maps.spots[spot_at(maps, row, ego.x, ego.y, episode.reach, k)]
    me.lane = spot.lane
    half = 0.5 * me.length + 0.5
    me.s, long = spot.s + (at - k - 0.5) * SPOT_M, maps.lanes[spot.lane].length
    me.s = min(max(me.s, half), long - half) if long > 2.0 * half else min(max(me.s, 0.0), long)
    pose(maps, me)
    return math.hypot(me.x - ego.x, me.y - ego.y)


@kernel
def enter_nearby(maps: Maps, world: WorldState, e: int, slot: int) -> None:
    """Let a car that has left come in again out of sight, mostly ahead of the ego, if the spot drawn has room."""
    me, ego = world.agents[e, slot], world.egos[e]
    me.turns += 1
    far = take_spot(maps, world, e, me, uniform(me.seed, me.turns))
    if me.lane < 0:
        return
    ahead = (me.x - ego.x) * ego.cos + (me.y - ego.y) * ego.sin
    lane = maps.lanes[me.lane]
    me.d = me.rest
    turn = me.turns
    choose_next(maps, me)
    me.v = stoppable(maps, world, e, slot, lane.speed * me.desire)
    me.wait, me.hold = 0.0, HOLD_S
    pose(maps, me)
    seen = far < UNSEEN_M or far > world.episodes[e].reach or (ahead < 0.0 and turn % 4 > 0)
    if seen or not clear(maps, world, e, slot, len(world.agents[e])):
        leave(me)
        me.turns = turn


@kernel
def leave(me: Any) -> None:
    """Remove a car from the road until there is room for it somewhere."""
    me.lane, me.v, me.a, me.plan = -1, 0.0, 0.0, 0.0
    me.x = me.y = 1.0e6


@kernel
def is_beyond(world: WorldState, e: int, x: float, y: float) -> bool:
    """True if a place is too far from the ego for the road users around it."""
    ego, far = world.egos[e], world.episodes[e].reach + BEYOND_M
    return (x - ego.x) * (x - ego.x) + (y - ego.y) * (y - ego.y) > far * far


@kernel
def nearest_walk(maps: Maps, world: WorldState, e: int, beyond: float) -> tuple[int, float]:
    """Crosswalk nearest to the ego of those farther than `beyond` m, and its distance; -1 without."""
    row, ego = maps.maps[world.episodes[e].map], world.egos[e]
    found, least = -1, 1.0e9
    for k in range(row.walks):
        walk = maps.walks[row.walk + k]
        far = math.hypot(0.5 * (walk.x0 + walk.x1) - ego.x, 0.5 * (walk.y0 + walk.y1) - ego.y)
        if beyond < far < least:
            found, least = k, far
    return found, least


@kernel
def move_on(maps: Maps, world: WorldState, e: int, slot: int) -> None:
    """Let a pedestrian at a crosswalk far from the ego wait at one that it comes to, if there is one with room."""
    agents, me = world.agents[e], world.agents[e, slot]
    row, ego = maps.maps[world.episodes[e].map], world.egos[e]
    here = maps.walks[row.walk + me.walk]
    if not is_beyond(world, e, 0.5 * (here.x0 + here.x1), 0.5 * (here.y0 + here.y1)):
        return
    found, far = nearest_walk(maps, world, e, UNSEEN_M)
    while found >= 0 and far < world.episodes[e].reach:
        walk = maps.walks[row.walk + found]
        ahead = (0.5 * (walk.x0 + walk.x1) - ego.x) * ego.cos + (0.5 * (walk.y0 + walk.y1) - ego.y) * ego.sin
        others = 0
        for k in range(1, len(agents)):
            others += agents[k].kind == tables.PEDESTRIAN and agents[k].walk == found
        if ahead > 0.0 and others < PER_WALK:
            me.turns += 1
            me.walk, me.s, me.hold = found, 0.0, 0.0
            me.wait = 0.5 + 12.0 * uniform(me.seed, me.turns)
            return
        found, far = nearest_walk(maps, world, e, far)
