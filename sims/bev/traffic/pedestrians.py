"""Pedestrians: on crosswalks, and those whom a scenario makes cross the street; reactions of drivers to the latter."""

from __future__ import annotations

import math
from typing import Any

from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import uniform
from robotrl.sims.driving.traffic.heights import misses
from robotrl.sims.driving.traffic.right_of_way import NOTICE_M
from robotrl.sims.driving.world import Maps, WorldState

PATIENCE_S = 20.0
"""Time that a pedestrian waits in vain at a crosswalk before it sets out in front of those who stand."""
ASKS_S = 0.5
"""Time after which a pedestrian who had to wait looks again."""
STANDS_MPS = 0.3
OCCLUDED = 2
"""Event in which a pedestrian runs into the street: `scenarios.ScenarioEvent.OCCLUDED_PEDESTRIAN`."""


@kernel
def runs_into_street(world: WorldState, e: int, me: Any) -> float:
    """Distance, m, from the front bumper to a pedestrian sent across by the scenario; FAR without."""
    episode = world.episodes[e]
    if episode.event != OCCLUDED or episode.phase == 0:
        return tables.FAR
    person = world.agents[e, episode.target]
    dx, dy = person.x - me.x, person.y - me.y
    ahead, aside = dx * me.cos + dy * me.sin, dy * me.cos - dx * me.sin
    comes = aside * (person.sin * me.cos - person.cos * me.sin) < 0.0
    if person.v > 0.0 and 0.0 < ahead < NOTICE_M and abs(aside) < (8.0 if comes else 1.5):
        return max(ahead - 0.5 * me.length - 1.5, 0.0)
    return tables.FAR


@kernel
def is_crossed(world: WorldState, e: int, me: Any) -> bool:
    """True if a pedestrian sent across by the scenario is still on the street near by, or waits between lanes."""
    episode = world.episodes[e]
    if episode.event != OCCLUDED or episode.phase == 0:
        return False
    person = world.agents[e, episode.target]
    return person.s < person.rest and math.hypot(person.x - me.x, person.y - me.y) < NOTICE_M


@kernel
def free_to_walk(maps: Maps, world: WorldState, e: int, walk: Any, waited_s: float) -> bool:
    """True if no driver would have to brake hard for a pedestrian who enters a crosswalk now.

    After `PATIENCE_S` of waiting those who stand before the crosswalk, or behind it, are taken to wait for the
    pedestrian: otherwise both could wait for each other.
    """
    agents, row = world.agents[e], maps.maps[world.episodes[e].map]
    x, y = 0.5 * (walk.x0 + walk.x1), 0.5 * (walk.y0 + walk.y1)
    reach = 0.5 * math.hypot(walk.x1 - walk.x0, walk.y1 - walk.y0)
    for slot in range(len(agents)):
        other = agents[slot]
        if other.kind != tables.PEDESTRIAN and (other.lane >= 0 or slot == 0):
            dx, dy = x - other.x, y - other.y
            ahead = dx * other.cos + dy * other.sin
            aside = abs(dy * other.cos - dx * other.sin)
            comes = -6.0 < ahead < 6.0 + reach + 1.5 * other.v + other.v * other.v / (2.0 * 2.5) and aside < reach
            clear_m = abs(ahead) - 0.5 * (other.length + walk.width)
            if waited_s >= PATIENCE_S and other.v < STANDS_MPS and clear_m > 0.0:
                continue
            if comes and not misses(maps, row, other, ahead, walk.z):
                return False
    return True


@kernel
def stops_for(world: WorldState, e: int, person: Any) -> bool:
    """True if a crossing pedestrian must wait for a road user other than the ego, or for anyone standing in the way."""
    agents = world.agents[e]
    for slot in range(len(agents)):
        other = agents[slot]
        if other.kind == 0 or other.kind == tables.PEDESTRIAN or (slot == 0 and other.v > 0.5):
            continue
        dx, dy = person.x - other.x, person.y - other.y
        ahead, aside = dx * other.cos + dy * other.sin, dy * other.cos - dx * other.sin
        comes = aside * (person.sin * other.cos - person.cos * other.sin) < 0.0
        # do not stop if already in its way
        half, beside = 0.5 * other.length + 0.6, abs(aside) - 0.5 * other.width
        reach = half + 0.5 * other.v + other.v * other.v / (2.0 * 4.0)
        if comes and -half < ahead < reach and 0.35 < beside < 1.2:
            return True
    return False


@kernel
def stroll(maps: Maps, world: WorldState, e: int, slot: int, dt: float) -> None:
    """Advance a pedestrian by one step: wait at the kerb, cross, wait on the other side."""
    me = world.agents[e, slot]
    if me.walk < 0:
        # triggered by the scenario: straight ahead to the other side
        goes = world.episodes[e].phase == 1 and me.s < me.rest and not stops_for(world, e, me)
        me.v = me.desire if goes else 0.0
        me.s += me.v * dt
        me.x += me.v * me.cos * dt
        me.y += me.v * me.sin * dt
        return
    walk = maps.walks[maps.maps[world.episodes[e].map].walk + me.walk]
    dx, dy = walk.x1 - walk.x0, walk.y1 - walk.y0
    length = math.hypot(dx, dy)
    me.v = 0.0
    if me.wait > 0.0:
        me.wait -= dt
        if me.wait <= 0.0 and not free_to_walk(maps, world, e, walk, me.hold):
            me.wait = ASKS_S
            me.hold += ASKS_S
    else:
        me.v = me.desire
        me.hold = 0.0
        me.s += me.v * dt
        if me.s >= length:
            me.s, me.v = 0.0, 0.0
            me.turns += 1
            me.wait = 3.0 + 15.0 * uniform(me.seed, me.turns)
    # the direction alternates with the number of crossings so far
    forth = me.turns % 2 == 0
    u = me.s / length if forth else 1.0 - me.s / length
    sign = 1.0 if forth else -1.0
    me.cos, me.sin = sign * dx / length, sign * dy / length
    me.x, me.y = walk.x0 + u * dx - me.d * dy / length, walk.y0 + u * dy + me.d * dx / length
