"""Right of way: lights, signs, conflicts at junctions, pedestrians on crosswalks, merging lanes."""

from __future__ import annotations

import math
from typing import Any

from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.traffic.following import BRAKE, GAP_M, style_of, way_on, way_start
from robotrl.sims.driving.traffic.heights import hides
from robotrl.sims.driving.world import Maps, WorldState

NOTICE_M = 30.0
"""Distance from a junction from which cars take it into account."""
COMING_S = 7.0
"""Arrival time at the junction, s, within which other cars have to be yielded to."""
SETS_OFF = 1.2
"""Assumed acceleration, m/s^2, in the estimate of a yielding car's crossing time; a little below ACCEL."""
SPARE_S = 0.8
"""Time between a yielding car that has crossed and the nose of the next one to come."""
PATIENCE_S = 30.0
"""Waiting time at the end of a ramp after which a car takes any gap that forces nobody to brake hard."""
IMPATIENT_S = 5.0
"""Waiting time at a junction after which a car that crosses goes before those who can still stop comfortably."""
LETS_MPS = 3.0
"""Speed from which on a car lets those pass first who have set out across its way."""
GOES_MPS2 = 0.3
"""Acceleration from which on a car goes, instead of coming nearer to wait."""
HALF_M = 2.25
"""Half the length of a car that is not on the junction yet."""
SETS_OUT_M = 4.0
"""Distance before a junction within which a car that goes has set out."""
BEYOND_M = 12.0
"""Distance behind its line from which a light or sign is taken into account if its lane is longer; the lane's end is
otherwise."""
WAITING_M = 3.0
"""Distance from a sign's line, or from others' path, within which a car that stands waits there."""
STANDS_MPS = 0.1
"""Speed below which a car does not count as coming: it has just decided to wait."""
WAIT_M = 1.5
"""Distance before others' path at which a car waits for them."""
NOSE_M = 0.5
"""Distance before others' path within which the nose of a car counts as in it."""
APART_S = 0.5
"""Time before a car reaches a conflict in which another one has left it."""
TAIL_M = 0.25
"""Distance behind others' path that the tail of a car must have before it has left that path."""
TURN_S = 20.0
"""Waiting time at a stop sign after which a car goes before others who stand there for longer."""
GREEN, YELLOW, RED = 0, 1, 2
MEETS_M = 100.0
"""Distance up to which the ego meets a car: traffic that its speed is compared with."""
SIMILAR = 0.7
"""Share of the higher of two limits from which the lower one is similar."""


@kernel
def light(maps: Maps, world: WorldState, e: int, group: int) -> tuple[int, float]:
    """Present state of a light and its remaining time, s. Lights are numbered within the map."""
    episode = world.episodes[e]
    signal = maps.signals[maps.maps[episode.map].signal + group]
    t = (episode.time + episode.offset - signal.start) % signal.cycle
    if t < signal.green:
        return GREEN, signal.green - t
    if t < signal.green + signal.yellow:
        return YELLOW, signal.green + signal.yellow - t
    return RED, signal.cycle - t


@kernel
def meets(maps: Maps, world: WorldState, e: int, other: Any, limit: float, own_limit: float) -> bool:
    """True if a car belongs to the traffic around the ego: near, on its level, and under a similar speed limit."""
    ego = world.egos[e]
    dx, dy = other.x - ego.x, other.y - ego.y
    if dx * dx + dy * dy > MEETS_M * MEETS_M or min(limit, own_limit) < SIMILAR * max(limit, own_limit):
        return False
    return not hides(maps, world, e, other)


@kernel
def claim(maps: Maps, world: WorldState, e: int) -> None:
    """Record for each junction lane the cars on it and the next car to arrive, for cars that must yield."""
    agents, claims, walking = world.agents[e], world.claims[e], world.walking[e]
    for j in range(len(claims)):
        c = claims[j]
        c.rear = c.front = c.waited = -1.0
        c.distance = tables.FAR
    for w in range(len(walking)):
        walking[w] = 0
    episode = world.episodes[e]
    own_limit = maps.route_points[maps.routes[episode.route].first + world.egos[e].index].speed
    total, count, around, near = 0.0, 0, 0.0, 0
    for slot in range(len(agents)):
        me = agents[slot]
        if me.kind == tables.PEDESTRIAN and me.walk >= 0 and me.wait <= 0.0:
            walking[me.walk] = 1
        if me.lane < 0:
            continue
        lane = maps.lanes[me.lane]
        if me.kind == tables.CAR and slot > 0:
            total += me.v
            count += 1
            if meets(maps, world, e, me, lane.speed, own_limit):
                around += me.v
                near += 1
        if lane.junction >= 0:
            c = claims[lane.junction]
            if c.rear < 0.0 or me.s < c.rear:
                c.rear, c.rear_v, c.rear_length = me.s, me.v, me.length
            if me.s > c.front:
                c.front, c.front_v, c.front_length, c.front_a = me.s, me.v, me.length, me.a
        ahead, number, walked = lane.length - me.s, me.next, way_start(world, e, slot)
        if lane.control == 2 and me.wait >= 1.0 and number >= 0 and maps.lanes[number].junction >= 0:
            c = claims[maps.lanes[number].junction]
            c.waited = max(c.waited, me.wait if me.v < 0.3 else tables.FAR)
        if number < 0 or ahead >= NOTICE_M + COMING_S * me.v or held_at(maps, world, e, slot, me.lane, -me.s):
            continue
        while number >= 0 and ahead < NOTICE_M + COMING_S * me.v:
            following = maps.lanes[number]
            if following.junction >= 0:
                c = claims[following.junction]
                if ahead < c.distance:
                    c.distance, c.v, c.a, c.slot = ahead, me.v, me.a, slot
            elif held_at(maps, world, e, slot, number, ahead):
                break
            ahead += following.length
            number, walked = way_on(maps, world, e, slot, number, walked)
    episode.map_v = total / count if count else -1.0
    episode.traffic_v = around / near if near else -1.0


@kernel
def held_at(maps: Maps, world: WorldState, e: int, slot: int, number: int, ahead: float) -> bool:
    """True if a road user `ahead` m before a lane is held at its line: by a red light, or standing at a sign."""
    me, lane = world.agents[e, slot], maps.lanes[number]
    if lane.control == 1 and -ahead < lane.stop and me.reckless == 0:
        state, _ = light(maps, world, e, lane.group)
        return state == RED
    return lane.control >= 2 and me.v < 0.3 and -ahead < lane.stop and slot > 0


@kernel
def room(maps: Maps, world: WorldState, e: int, slot: int, lane: int, before: float, s: float, reach: float) -> float:
    """Distance, m, to the point where a car must wait for others at a junction; FAR if its path is free.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        slot: slot of the car.
        lane: its lane in the junction.
        before: distance to the lane's start, m; 0 on it.
        s: position along the lane, m; 0 before it.
        reach: distance, m, within which conflicts on the car's own lane end that it takes into account.
    """
    me, style = world.agents[e, slot], style_of(world, e, slot)
    claims = world.claims[e]
    row = maps.lanes[lane]
    half, at, inside = 0.5 * me.length, s - before, False
    in_turn = before > 0.0 and me.wait >= 1.0 and takes_turns(maps, row)
    for k in range(row.conflict, row.conflict + row.conflicts):
        conflict = maps.conflicts[k]
        if at > conflict.begin - half:
            inside = inside or at - half < conflict.end
            continue
        if before == 0.0 and conflict.end - s >= reach:
            continue
        other = maps.lanes[conflict.other]
        c = claims[other.junction]
        if c.rear < 0.0 and c.distance >= tables.FAR and not in_turn:
            continue
        way = conflict.begin - at - half
        there = max(takes_s(way, me.v), way / row.speed)
        behind = conflict.other_end + TAIL_M + 0.5 * c.rear_length
        on_it = c.rear >= 0.0 and c.rear < behind
        # who is in the conflict has priority, even if it should have yielded, unless it will have left in time
        stays = on_it and (behind - c.rear) / max(c.rear_v, 0.5) > there - APART_S
        taken = stays and c.front + 0.5 * c.front_length > conflict.other_begin - NOSE_M
        if not taken and in_turn:
            taken = on_it or c.waited >= tables.FAR or (c.waited > me.wait and me.wait < TURN_S)
        if not taken and conflict.yields == 0 and me.v > LETS_MPS:
            taken = sets_out(conflict, c, there)
        if not taken and conflict.yields == 1:
            if stays and c.front <= conflict.other_begin and c.front_v >= STANDS_MPS:
                far = conflict.other_begin - c.front - 0.5 * c.front_length
                taken = comes(me, style, row, conflict, at, inside, far, c.front_v, c.front_a)
            if not taken and c.distance < tables.FAR and c.slot != slot and c.v >= STANDS_MPS:
                far = conflict.other_begin + c.distance - HALF_M
                taken = comes(me, style, row, conflict, at, inside, far, c.v, c.a)
        if taken:
            # conflicts are in order along the lane
            return kept_clear(maps, world, e, me, row, at, k)
    return tables.FAR


@kernel
def takes_s(way: float, v: float) -> float:
    """Time, s, in which a car at speed `v` m/s that sets off covers `way` m; 0 for a way behind it."""
    return (math.sqrt(v * v + 2.0 * SETS_OFF * max(way, 0.0)) - v) / SETS_OFF


@kernel
def sets_out(conflict: Any, c: Any, mine_s: float) -> bool:
    """True if a car that gives way at a conflict has set out across it, is there first, and not gone in time.

    Args:
        conflict: the conflict, in which the other lane gives way.
        c: claim of the other lane.
        mine_s: time, s, after which the own car reaches the conflict.
    """
    if c.rear >= 0.0 and c.front_a > GOES_MPS2:
        way, v, length = conflict.other_begin - c.front, c.front_v, c.front_length
    elif c.rear < 0.0 and c.distance < SETS_OUT_M and c.a > GOES_MPS2:
        way, v, length = conflict.other_begin + c.distance, c.v, 2.0 * HALF_M
    else:
        return False
    way -= 0.5 * length
    across = conflict.other_end - conflict.other_begin + length
    return way > 0.0 and takes_s(way, v) < mine_s < takes_s(way + across, v) + 0.5


@kernel
def comes(
    me: Any, style: Any, row: Any, conflict: Any, at: float, inside: bool, way: float, v: float, a: float
) -> bool:
    """True if a car must let another one pass that comes to a conflict of their lanes.

    Args:
        me: the car.
        style: its driving style.
        row: its lane in the junction.
        conflict: the conflict, ahead of it.
        at: its position along the lane, m; below 0 before it.
        inside: whether it is on others' path.
        way: distance of the other one's nose from the conflict, m.
        v: speed of the other one, m/s, above 0.
        a: acceleration of the other one, m/s^2.
    """
    merges = conflict.merges == 1
    if inside or (me.wait > IMPATIENT_S and not merges):
        # who is on others' path, or has waited, goes before those who can still stop, and who will
        reaction = 1.0 if v > LETS_MPS else takes_s(conflict.begin - at - 0.5 * me.length, me.v)
        stops = v * reaction + v * v / (2.0 * BRAKE) + GAP_M
        if inside:
            return way < stops
        if way >= stops * style.accepted_gap:
            return False
    # time, s, until the own tail has left the conflict
    own = conflict.end - at + me.length
    clear = max(takes_s(own, me.v), own / row.speed) + SPARE_S
    # it suffices to reach the merge point first; after a long wait a smaller gap is accepted
    patience = style.accepted_gap * (max(1.0 - me.wait / PATIENCE_S, 0.3) if merges else 1.0)
    coming = takes_s(way, v) if a > GOES_MPS2 and v < LETS_MPS else way / max(v, 1.0)
    if merges:
        clear -= (conflict.other_end - conflict.other_begin) / max(v, 1.0)
    return coming < patience * clear


@kernel
def takes_turns(maps: Maps, row: Any) -> bool:
    """True if all lanes that a junction lane conflicts with begin at a stop sign, as it does itself."""
    if row.origin < 0 or maps.lanes[row.origin].control != 2:
        return False
    for k in range(row.conflict, row.conflict + row.conflicts):
        origin = maps.lanes[maps.conflicts[k].other].origin
        if origin < 0 or maps.lanes[origin].control != 2:
            return False
    return True


@kernel
def kept_clear(maps: Maps, world: WorldState, e: int, me: Any, row: Any, at: float, taken: int) -> float:
    """Distance, m, to the point where a car waits for those in a conflict, without standing on others' path.

    Paths of those who are held by a red light do not count.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        me: the car.
        row: its lane in the junction.
        at: its position along the lane, m; below 0 before it.
        taken: number of the conflict.
    """
    half = 0.5 * me.length
    found = maps.conflicts[taken].begin - at - half - WAIT_M
    for k in range(taken - 1, row.conflict - 1, -1):
        conflict = maps.conflicts[k]
        point = conflict.begin - at - half - WAIT_M
        apart = at + found - half >= conflict.end or at + found + half <= conflict.begin
        # nor where it is too late to stop
        if apart or at > conflict.begin - half or me.v * me.v > 3.0 * BRAKE * max(point, 0.5):
            continue
        origin = maps.lanes[conflict.other].origin
        if origin >= 0 and maps.lanes[origin].control == 1:
            state, _ = light(maps, world, e, maps.lanes[origin].group)
            if state == RED:
                continue
        found = min(found, point)
    return found


@kernel
def merging(maps: Maps, world: WorldState, e: int, slot: int) -> tuple[float, float]:
    """Gap to and speed of a car on a merging lane that is closer to the merge point; FAR without."""
    me = world.agents[e, slot]
    gap, v = tables.FAR, 0.0
    base, number, walked = -me.s, me.lane, way_start(world, e, slot)
    while number >= 0 and base < NOTICE_M and maps.lanes[number].junction >= 0:
        row = maps.lanes[number]
        left = base + row.length
        for k in range(row.conflict, row.conflict + row.conflicts):
            conflict = maps.conflicts[k]
            if conflict.merges == 0:
                continue
            other = maps.lanes[conflict.other]
            c = world.claims[e, other.junction]
            if c.rear >= 0.0:
                ahead = left - (other.length - c.rear)
                if (
                    ahead > 0.0
                    and c.rear > conflict.other_begin - 4.0
                    and ahead - 0.5 * (me.length + c.rear_length) < gap
                ):
                    gap, v = ahead - 0.5 * (me.length + c.rear_length), c.rear_v
                ahead = left - (other.length - c.front)
                if (
                    ahead > 0.0
                    and c.front > conflict.other_begin - 4.0
                    and ahead - 0.5 * (me.length + c.front_length) < gap
                ):
                    gap, v = ahead - 0.5 * (me.length + c.front_length), c.front_v
        base = left
        if number == me.lane:
            number = me.next
        else:
            number, walked = way_on(maps, world, e, slot, number, walked)
    return gap, v


@kernel
def parting(maps: Maps, world: WorldState, e: int, slot: int) -> tuple[float, float]:
    """Gap to and speed of a car on a diverging lane whose tail is still on the shared part; FAR without."""
    me = world.agents[e, slot]
    gap, v = tables.FAR, 0.0
    base, own, walked = -me.s, me.lane, way_start(world, e, slot)
    while own >= 0 and base <= NOTICE_M + 2.0 * me.v:
        row = maps.lanes[own]
        if row.junction >= 0 and row.origin >= 0 and -base <= row.part:
            origin = maps.lanes[row.origin]
            for k in range(origin.nexts):
                number = origin.next[k]
                other = maps.lanes[number]
                if number == own or other.junction < 0:
                    continue
                c = world.claims[e, other.junction]
                if c.rear >= 0.0 and c.rear - 0.5 * c.rear_length < other.part and base + c.rear > 0.0:
                    found = base + c.rear - 0.5 * (me.length + c.rear_length)
                    if found < gap:
                        gap, v = found, c.rear_v
        base += row.length
        if own == me.lane:
            own = me.next
        else:
            own, walked = way_on(maps, world, e, slot, own, walked)
    return gap, v


@kernel
def barrier(maps: Maps, world: WorldState, e: int, slot: int, dt: float) -> float:
    """Distance, m, from the front bumper to the next point to stop at: for a light, sign, pedestrian or traffic.

    The car looks along its way as far as it needs to stop, over as many lanes as that takes.
    """
    me = world.agents[e, slot]
    if me.reckless == 1:
        return tables.FAR
    half, yellow_brake = 0.5 * me.length, style_of(world, e, slot).yellow_brake_mps2
    reach = NOTICE_M + me.v * me.v / (2.0 * BRAKE)
    found, sign, entered = tables.FAR, tables.FAR, False
    base, number, walked = -me.s, me.lane, way_start(world, e, slot)
    while number >= 0 and base < reach:
        lane = maps.lanes[number]
        # beyond a junction people are noticed later
        seen = tables.FAR if number == me.lane else NOTICE_M if entered else reach
        for k in range(lane.crossing, lane.crossing + lane.crossings):
            crossing = maps.crossings[k]
            way = base + crossing.begin
            if world.walking[e, crossing.walk] == 1 and half - 1.0 < way < seen:
                found = min(found, way - half - 1.0)
        line = base + lane.stop - half
        if lane.control > 0 and line >= -1.0 and min(base + lane.length, line + BEYOND_M) < reach:
            if lane.control == 1:
                state, _ = light(maps, world, e, lane.group)
                if state == RED or (state == YELLOW and line > me.v * me.v / (2.0 * yellow_brake)):
                    return min(found, line)
            else:
                if line < WAITING_M and me.v < 0.3:
                    me.wait += dt
                if lane.control == 2 and me.wait < 1.0:
                    return min(found, line)
                sign = min(sign, line)
        if lane.junction >= 0:
            into = room(maps, world, e, slot, number, max(base, 0.0), max(-base, 0.0), reach)
            if into < WAITING_M and me.v < 0.3 and sign >= tables.FAR:
                me.wait += dt
            # with a sign wait at its line; at a green light, or inside, advance to the others' path
            if into < tables.FAR and not entered:
                into = min(into, sign)
            found = min(found, into)
            entered = True
        base += lane.length
        if number == me.lane:
            number = me.next
        else:
            number, walked = way_on(maps, world, e, slot, number, walked)
    return found


@kernel
def walk_at(maps: Maps, row: Any, x: float, y: float) -> int:
    """Crosswalk of a map, `row`, at a place, counted within the map; -1 without."""
    for k in range(row.walks):
        walk = maps.walks[row.walk + k]
        dx, dy = walk.x1 - walk.x0, walk.y1 - walk.y0
        length = math.hypot(dx, dy)
        if length < 1e-3:
            continue
        along = ((x - walk.x0) * dx + (y - walk.y0) * dy) / length
        aside = ((y - walk.y0) * dx - (x - walk.x0) * dy) / length
        if 0.0 <= along <= length and abs(aside) <= 0.5 * walk.width:
            return k
    return -1
