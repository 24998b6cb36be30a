"""What the other road users do: car following, lane changes, lights and signs, giving way, crossing on foot.

Cars follow the Intelligent Driver Model (Treiber, Hennecke and Helbing 2000) and change lanes by MOBIL (Kesting,
Treiber and Helbing 2007). They live on lanes: way along, offset aside. Each env keeps its slots sorted by lane and way,
so that who drives ahead is the next in order, and the order hardly changes from step to step. Slot 0 is the ego: the
others see it like anyone else, and nothing here moves it.
"""

from __future__ import annotations

import math
from typing import Any

from robotrl.sims.bev import tables
from robotrl.sims.bev.geometry import uniform
from robotrl.sims.bev.jit import kernel
from robotrl.sims.bev.world import Maps, World

ACCEL, BRAKE = 1.5, 2.0
"""Maximum acceleration and comfortable deceleration of IDM, m/s^2."""
GAP_M = 2.0
"""Distance that IDM keeps at a standstill."""
HARDEST = 6.0
"""No car brakes harder, m/s^2."""
VIEW_M = 60.0
"""How far cars look ahead."""
NOTICE_M = 30.0
"""Distance from a junction at which cars begin to watch it."""
COMING_S = 7.0
"""Who would be at the junction within this time is given way to, s."""
SETS_OFF = 1.2
"""Acceleration counted on by who gives way and asks how long the crossing will take, m/s^2: a little below ACCEL."""
PATIENCE_S = 30.0
"""Who has waited so long at the end of a ramp takes any gap that forces nobody to brake hard."""
POLITENESS, GAIN, SAFE_BRAKE = 0.2, 0.15, 2.5
"""MOBIL: share of the others' gain, threshold and largest deceleration forced on the follower, m/s^2."""
CHANGE_EVERY = 10
"""Steps between two thoughts of changing lanes."""
HOLD_S = 4.0
"""Time after a change in which there is no other."""
SIDEWAYS_MPS = 1.2
"""Speed at which a lane change crosses over."""
UNDERWAY_MPS = 3.0
"""Below this speed a car crosses over in proportion to it, since it cannot go sideways."""
PULL_OUT_M = 8.0
"""Room kept, besides GAP_M, to what stands on a lane that has another beside it: enough to pull out."""
KEY = 4096.0
"""m: longer than any lane; a slot's place in the order is lane * KEY + s."""
ABSENT = 1.0e9
"""Place in the order of a slot that is empty or not on a lane."""
GREEN, YELLOW, RED = 0, 1, 2
OCCLUDED = 2
"""The event in which somebody runs into the street: `scenarios.Event.OCCLUDED_PEDESTRIAN`."""


@kernel
def light(maps: Maps, world: World, e: int, group: int) -> tuple[int, float]:
    """State of a light now, and the seconds that it will last. Lights are numbered within the map."""
    episode = world.episodes[e]
    signal = maps.signals[maps.maps[episode.map].signal + group]
    t = (episode.time + episode.offset - signal.start) % signal.cycle
    if t < signal.green:
        return GREEN, signal.green - t
    if t < signal.green + signal.yellow:
        return YELLOW, signal.green + signal.yellow - t
    return RED, signal.cycle - t


@kernel
def idm(v: float, wanted: float, gap: float, closing: float, headway: float) -> float:
    """Acceleration of the Intelligent Driver Model, m/s^2.

    a (1 - (v / v0)^4 - (s* / s)^2) with s* = s0 + v T + v dv / (2 sqrt(a b)).

    Args:
        v: own speed, m/s.
        wanted: v0, m/s, above 0.
        gap: s, bumper to bumper, m.
        closing: dv, own speed less the leader's, m/s.
        headway: T, s.
    """
    ratio = v / wanted
    free = ratio * ratio
    desired = GAP_M + max(v * headway + v * closing / (2.0 * math.sqrt(ACCEL * BRAKE)), 0.0)
    near = desired / max(gap, 0.1)
    return max(ACCEL * (1.0 - free * free - near * near), -HARDEST)


@kernel
def halt(v: float, wanted: float, ahead: float, headway: float) -> float:
    """Acceleration, m/s^2, towards a line to be stopped at `ahead` m on.

    IDM, which stands 2 m before what it follows, but it brakes no harder than the way to the line asks for, and a
    little: IDM takes fright at a standing thing that appears late.
    """
    needed = v * v / (2.0 * max(ahead, 0.1))
    return max(idm(v, wanted, max(ahead + GAP_M - 0.5, 0.1), v, headway), -1.25 * needed - 0.5)


@kernel
def place(agent: Any) -> float:
    """Of a slot in the order."""
    return agent.lane * KEY + agent.s if agent.lane >= 0 else ABSENT


@kernel
def sort(world: World, e: int) -> None:
    """Bring the order of an env up to date: insertion, since hardly anyone overtakes in a step."""
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
def first_after(world: World, e: int, key: float) -> int:
    """Number in the order of the first slot whose place is above `key`; the count of slots where there is none."""
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
    """Whether two users of a lane are so far apart sideways that they pass each other."""
    return abs(one.d - other.d) > 0.5 * (one.width + other.width) + 0.2


@kernel
def leader(maps: Maps, world: World, e: int, slot: int, at: int) -> tuple[int, float]:
    """The road user ahead: its slot, -1 without, and the gap to it, m.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        slot: who looks.
        at: number of `slot` in the order.
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
def claim(maps: Maps, world: World, e: int) -> None:
    """Write down for each lane in a junction who is on it and who comes first, for those who must give way."""
    agents, claims, walking = world.agents[e], world.claims[e], world.walking[e]
    for j in range(len(claims)):
        c = claims[j]
        c.rear = c.front = -1.0
        c.distance = tables.FAR
    for w in range(len(walking)):
        walking[w] = 0
    total, count = 0.0, 0
    for slot in range(len(agents)):
        me = agents[slot]
        if me.kind == tables.PEDESTRIAN and me.walk >= 0 and me.wait <= 0.0:
            walking[me.walk] = 1
        if me.lane < 0:
            continue
        if me.kind == tables.CAR and slot > 0:
            total += me.v
            count += 1
        lane = maps.lanes[me.lane]
        if lane.junction >= 0:
            c = claims[lane.junction]
            if c.rear < 0.0 or me.s < c.rear:
                c.rear, c.rear_v, c.rear_length = me.s, me.v, me.length
            if me.s > c.front:
                c.front, c.front_v, c.front_length = me.s, me.v, me.length
        if me.next >= 0:
            ahead = lane.length - me.s
            following = maps.lanes[me.next]
            if following.junction >= 0 and ahead < NOTICE_M + COMING_S * me.v:
                if lane.control == 1 and me.s < lane.stop and me.reckless == 0:
                    state, _ = light(maps, world, e, lane.group)
                    if state == RED:
                        continue
                if lane.control >= 2 and me.v < 0.3 and me.s < lane.stop and slot > 0:
                    continue
                c = claims[following.junction]
                if ahead < c.distance:
                    c.distance, c.v, c.slot = ahead, me.v, slot
    world.episodes[e].traffic_v = total / count if count else -1.0


@kernel
def room(maps: Maps, world: World, e: int, slot: int, lane: int, before: float, s: float) -> float:
    """Distance, m, to where a car must wait for others at a junction; FAR where its way is free.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        slot: who asks.
        lane: a lane in the junction.
        before: m to the lane's beginning, 0 on it.
        s: m along the lane, 0 before it.
    """
    me = world.agents[e, slot]
    claims = world.claims[e]
    found = tables.FAR
    row = maps.lanes[lane]
    for k in range(row.conflict, row.conflict + row.conflicts):
        conflict = maps.conflicts[k]
        half = 0.5 * me.length
        if s > conflict.begin - half or conflict.begin + before - s > found + 1.5 + half:
            continue
        other = maps.lanes[conflict.other]
        c = claims[other.junction]
        taken = c.rear >= 0.0 and c.rear < conflict.other_end + 2.5 and c.front > conflict.other_begin - 2.5
        if taken and conflict.yields == 0:
            # the first one in has it, also when it should have given way, unless it will be gone in time
            gone = (conflict.other_end + 2.5 - c.rear) / max(c.rear_v, 0.5)
            there = (before + conflict.begin - s - half) / max(me.v, 1.0)
            taken = gone > there - 0.5
        if not taken and conflict.yields == 1:
            # s until the own tail has left
            way = before + conflict.end - s + me.length
            clear = (math.sqrt(me.v * me.v + 2.0 * SETS_OFF * way) - me.v) / SETS_OFF
            clear = max(clear, way / row.speed) + 1.0
            # it is enough to be at the joint before them, and who has waited long makes do with less
            joint = conflict.other_end - conflict.other_begin if conflict.merges == 1 else 0.0
            patience = max(1.0 - me.wait / PATIENCE_S, 0.3) if conflict.merges == 1 else 1.0
            if c.rear >= 0.0 and c.front <= conflict.other_begin:
                v = max(c.front_v, 1.0)
                taken = (conflict.other_begin - c.front) / v < patience * (clear - joint / v)
            if not taken and c.distance < tables.FAR and c.slot != slot:
                v = max(c.v, 1.0)
                taken = (c.distance + conflict.other_begin) / v < patience * (clear - joint / v)
        if taken:
            found = min(found, before + conflict.begin - s - half - 1.5)
    return found


@kernel
def merging(maps: Maps, world: World, e: int, slot: int) -> tuple[float, float]:
    """Gap to and speed of a car on a lane that joins this one, and that is nearer to the joint; FAR without."""
    me = world.agents[e, slot]
    row = maps.lanes[me.lane]
    left = row.length - me.s
    gap, v = tables.FAR, 0.0
    for k in range(row.conflict, row.conflict + row.conflicts):
        conflict = maps.conflicts[k]
        if conflict.merges == 0:
            continue
        other = maps.lanes[conflict.other]
        c = world.claims[e, other.junction]
        if c.rear >= 0.0:
            ahead = left - (other.length - c.rear)
            if ahead > 0.0 and c.rear > conflict.other_begin - 4.0 and ahead - 0.5 * (me.length + c.rear_length) < gap:
                gap, v = ahead - 0.5 * (me.length + c.rear_length), c.rear_v
            ahead = left - (other.length - c.front)
            if (
                ahead > 0.0
                and c.front > conflict.other_begin - 4.0
                and ahead - 0.5 * (me.length + c.front_length) < gap
            ):
                gap, v = ahead - 0.5 * (me.length + c.front_length), c.front_v
    return gap, v


@kernel
def barrier(maps: Maps, world: World, e: int, slot: int, dt: float) -> float:
    """Distance, m, from the front bumper to where the road is closed now: by a light, a sign, people or traffic."""
    me = world.agents[e, slot]
    lane = maps.lanes[me.lane]
    half = 0.5 * me.length
    ahead = lane.length - me.s
    found = tables.FAR
    for k in range(lane.crossing, lane.crossing + lane.crossings):
        crossing = maps.crossings[k]
        if world.walking[e, crossing.walk] == 1 and crossing.begin - me.s > half - 1.0:
            found = min(found, crossing.begin - me.s - half - 1.0)
    if me.reckless == 1:
        return tables.FAR
    near = ahead < NOTICE_M + me.v * me.v / (2.0 * BRAKE)
    held = False
    if near and lane.control > 0 and me.s + half <= lane.stop + 1.0:
        line = lane.stop - me.s - half
        if lane.control == 1:
            state, _ = light(maps, world, e, lane.group)
            if state == RED or (state == YELLOW and line > me.v * me.v / (2.0 * 3.5)):
                found, held = min(found, line), True
        elif lane.control >= 2:
            if line < 3.0 and me.v < 0.3:
                me.wait += dt
            if lane.control == 2 and me.wait < 1.0:
                found, held = min(found, line), True
    if near and not held:
        if lane.junction >= 0:
            found = min(found, room(maps, world, e, slot, me.lane, 0.0, me.s))
        if me.next >= 0 and maps.lanes[me.next].junction >= 0:
            into = room(maps, world, e, slot, me.next, ahead, 0.0)
            # behind a sign one waits at its line; at a green light one goes up to the others' way
            if into < tables.FAR and lane.control >= 2 and me.s + half <= lane.stop + 1.0:
                into = min(into, lane.stop - me.s - half)
            found = min(found, into)
            following = maps.lanes[maps.lanes[me.next].next[0]] if maps.lanes[me.next].nexts > 0 else lane
            for k in range(following.crossing, following.crossing + following.crossings):
                crossing = maps.crossings[k]
                way = ahead + maps.lanes[me.next].length + crossing.begin
                if world.walking[e, crossing.walk] == 1 and way < NOTICE_M:
                    found = min(found, way - half - 1.0)
    return found


@kernel
def wanted_speed(maps: Maps, me: Any) -> float:
    """Speed, m/s: the limit as this driver takes it, and what the next lane allows once it is reached."""
    lane = maps.lanes[me.lane]
    wanted = lane.speed * me.desire
    if me.next >= 0:
        after = maps.lanes[me.next].speed * me.desire
        if after < wanted:
            wanted = min(wanted, math.sqrt(after * after + 2.0 * ACCEL * max(lane.length - me.s, 0.0)))
    return max(wanted, 0.5)


@kernel
def can_pull_out(me: Any, ahead: Any, gap: float) -> bool:
    """Whether a car that changes lanes now is past the side of the one ahead before it gets there."""
    duration = (0.5 * (me.width + ahead.width) + 0.2) / SIDEWAYS_MPS
    return (max(me.v, UNDERWAY_MPS) - ahead.v) * duration + 0.5 * ACCEL * duration * duration < gap - 0.3


@kernel
def consider_change(maps: Maps, world: World, e: int, slot: int, accel: float, side: int) -> bool:
    """Change lanes if MOBIL says so; tells whether it did.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        slot: who considers.
        accel: its acceleration where it is.
        side: 0 left, 1 right.
    """
    agents, order = world.agents[e], world.order[e]
    me = agents[slot]
    lane = maps.lanes[me.lane]
    target = lane.left if side == 0 else lane.right
    if target < 0:
        return False
    there = maps.lanes[target]
    s = me.s * there.length / lane.length
    k = first_after(world, e, target * KEY + s)
    wanted = max(there.speed * me.desire, 0.5)
    gain = idm(me.v, wanted, VIEW_M, 0.0, me.headway) - accel
    if k < len(order) and agents[order[k]].lane == target:
        ahead = agents[order[k]]
        gap = ahead.s - s - 0.5 * (me.length + ahead.length)
        if gap < 2.0 + 0.3 * me.v:
            return False
        gain = idm(me.v, wanted, gap, me.v - ahead.v, me.headway) - accel
    loss = 0.0
    if k > 0 and agents[order[k - 1]].lane == target and order[k - 1] != slot:
        behind = agents[order[k - 1]]
        gap = s - behind.s - 0.5 * (me.length + behind.length)
        if gap < 2.0 + 0.3 * behind.v:
            return False
        forced = idm(behind.v, max(there.speed * behind.desire, 0.5), gap, behind.v - me.v, behind.headway)
        if forced < -SAFE_BRAKE:
            return False
        loss = max(behind.a - forced, 0.0)
    if gain - POLITENESS * loss < GAIN:
        return False
    width = 0.5 * (lane.width + there.width)
    me.lane, me.s, me.hold = target, s, HOLD_S
    me.d += -width if side == 0 else width
    choose_next(maps, me)
    return True


@kernel
def choose_next(maps: Maps, me: Any) -> None:
    """Draw where a car goes at the end of its lane."""
    lane = maps.lanes[me.lane]
    if lane.nexts == 0:
        me.next = -1
        return
    me.turns += 1
    me.next = lane.next[min(int(uniform(me.seed, me.turns) * lane.nexts), lane.nexts - 1)]


@kernel
def pose(maps: Maps, me: Any) -> None:
    """Where on the plane a car is, from its lane, way and offset."""
    lane = maps.lanes[me.lane]
    u = me.s * lane.per_m
    i = min(max(int(u), 0), lane.count - 2)
    u -= i
    a, b = maps.points[lane.first + i], maps.points[lane.first + i + 1]
    c, s = a.cos + u * (b.cos - a.cos), a.sin + u * (b.sin - a.sin)
    # one Newton step: between points 1 m apart the sum of squares is near 1
    norm = 1.5 - 0.5 * (c * c + s * s)
    c, s = c * norm, s * norm
    me.x = a.x + u * (b.x - a.x) - me.d * s
    me.y = a.y + u * (b.y - a.y) + me.d * c
    me.cos, me.sin = c, s


@kernel
def leave(me: Any) -> None:
    """Take a car off the road until there is room for it at an entry."""
    me.lane, me.v, me.a = -1, 0.0, 0.0
    me.x = me.y = 1.0e6


@kernel
def enter(maps: Maps, world: World, e: int, slot: int) -> None:
    """Let a car that has left the map come in again, if the entry that it draws has room."""
    row = maps.maps[world.episodes[e].map]
    if row.entries == 0:
        return
    me = world.agents[e, slot]
    me.turns += 1
    entry = maps.entries[row.entry + min(int(uniform(me.seed, me.turns) * row.entries), row.entries - 1)]
    lane = maps.lanes[entry]
    speed = lane.speed * me.desire
    for slot_ahead in range(len(world.agents[e])):
        ahead = world.agents[e, slot_ahead]
        if ahead.lane == entry:
            if ahead.s < 12.0 + 1.5 * speed:
                return
            if ahead.s < VIEW_M:
                speed = min(speed, ahead.v + 2.0)
    start = maps.points[lane.first]
    ego = world.agents[e, 0]
    if math.hypot(start.x - ego.x, start.y - ego.y) < 40.0:
        return  # nobody appears before the ego's eyes
    me.lane, me.s, me.d, me.v, me.wait, me.hold = entry, 0.5 * me.length, me.rest, speed, 0.0, HOLD_S
    choose_next(maps, me)
    pose(maps, me)


@kernel
def parting(maps: Maps, world: World, e: int, slot: int) -> tuple[float, float]:
    """Gap to and speed of a car that turns off another way and still stands where the ways are one; FAR without."""
    me = world.agents[e, slot]
    lane = maps.lanes[me.lane]
    own, base = me.lane, -me.s
    if lane.junction < 0:
        own, base = me.next, lane.length - me.s
    gap, v = tables.FAR, 0.0
    if own < 0 or base > NOTICE_M + 2.0 * me.v or maps.lanes[own].origin < 0 or -base > maps.lanes[own].part:
        return gap, v
    origin = maps.lanes[maps.lanes[own].origin]
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
    return gap, v


@kernel
def runs_into_street(world: World, e: int, me: Any) -> float:
    """Distance, m, from the front bumper to somebody on foot whom the scenario has sent across; FAR without."""
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
def is_crossed(world: World, e: int, me: Any) -> bool:
    """Whether somebody whom the scenario has sent across is still on the street near by, or waits between lanes."""
    episode = world.episodes[e]
    if episode.event != OCCLUDED or episode.phase == 0:
        return False
    person = world.agents[e, episode.target]
    return person.s < person.rest and math.hypot(person.x - me.x, person.y - me.y) < NOTICE_M


@kernel
def decide(maps: Maps, world: World, e: int, slot: int, at: int, dt: float) -> None:
    """Choose a car's or cyclist's acceleration for this step, and whether it changes lanes."""
    me = world.agents[e, slot]
    ahead, gap = leader(maps, world, e, slot, at)
    lane = maps.lanes[me.lane]
    speed = world.agents[e, ahead].v if ahead >= 0 else me.v
    wanted = wanted_speed(maps, me)
    stands = ahead >= 0 and world.agents[e, ahead].kind == tables.OBSTACLE and (lane.left >= 0 or lane.right >= 0)
    free = ahead < 0 or can_pull_out(me, world.agents[e, ahead], gap)
    if stands:
        gap = max(gap - PULL_OUT_M, 0.1)
    accel = idm(me.v, wanted, gap, me.v - speed, me.headway)
    closed = min(barrier(maps, world, e, slot, dt), runs_into_street(world, e, me))
    if closed < tables.FAR:
        accel = min(accel, halt(me.v, wanted, closed, me.headway))
    if lane.junction >= 0 or me.next >= 0:
        other, v = parting(maps, world, e, slot)
        if other < tables.FAR:
            accel = min(accel, idm(me.v, wanted, max(other, 0.1), me.v - v, me.headway))
    if lane.junction >= 0:
        other, v = merging(maps, world, e, slot)
        if other < tables.FAR:
            accel = min(accel, idm(me.v, wanted, max(other, 0.1), me.v - v, me.headway))
    me.hold = max(me.hold - dt, 0.0)
    if (
        (world.episodes[e].steps + slot) % CHANGE_EVERY == 0
        and me.kind == tables.CAR
        and me.hold == 0.0
        and lane.junction < 0
        and lane.length - me.s > 20.0
        and (me.v > 1.0 or stands)
        and free
        and not is_crossed(world, e, me)
        and not consider_change(maps, world, e, slot, accel, 0)
    ):
        consider_change(maps, world, e, slot, accel, 1)
    me.a = accel


@kernel
def advance(maps: Maps, world: World, e: int, slot: int, dt: float) -> None:
    """Move a car or cyclist by the acceleration that it has chosen."""
    me = world.agents[e, slot]
    before = me.v
    me.v = max(before + me.a * dt, 0.0)
    me.a = (me.v - before) / dt
    me.s += 0.5 * (before + me.v) * dt
    aside = me.rest - me.d
    if aside != 0.0:
        step = SIDEWAYS_MPS * dt * min(me.v / UNDERWAY_MPS, 1.0)
        me.d += min(max(aside, -step), step)
    length = maps.lanes[me.lane].length
    if me.s > length:
        if me.next < 0:
            leave(me)
            return
        me.s -= length
        me.lane = me.next
        me.wait = 0.0
        choose_next(maps, me)
    pose(maps, me)


@kernel
def free_to_walk(world: World, e: int, walk: Any) -> bool:
    """Whether no one who drives would have to brake hard for somebody who sets out on a crosswalk now."""
    agents = world.agents[e]
    x, y = 0.5 * (walk.x0 + walk.x1), 0.5 * (walk.y0 + walk.y1)
    reach = 0.5 * math.hypot(walk.x1 - walk.x0, walk.y1 - walk.y0)
    for slot in range(len(agents)):
        other = agents[slot]
        if other.kind != tables.PEDESTRIAN and (other.lane >= 0 or slot == 0):
            dx, dy = x - other.x, y - other.y
            ahead = dx * other.cos + dy * other.sin
            aside = abs(dy * other.cos - dx * other.sin)
            if -6.0 < ahead < 6.0 + reach + 1.5 * other.v + other.v * other.v / (2.0 * 2.5) and aside < reach:
                return False
    return True


@kernel
def stops_for(world: World, e: int, person: Any) -> bool:
    """Whether somebody who runs across lets another than the ego pass, or anyone who stands in the way."""
    agents = world.agents[e]
    for slot in range(len(agents)):
        other = agents[slot]
        if other.kind == 0 or other.kind == tables.PEDESTRIAN or (slot == 0 and other.v > 0.5):
            continue
        dx, dy = person.x - other.x, person.y - other.y
        ahead, aside = dx * other.cos + dy * other.sin, dy * other.cos - dx * other.sin
        comes = aside * (person.sin * other.cos - person.cos * other.sin) < 0.0
        # nobody stops who is in its way already
        half, beside = 0.5 * other.length + 0.6, abs(aside) - 0.5 * other.width
        reach = half + 0.5 * other.v + other.v * other.v / (2.0 * 4.0)
        if comes and -half < ahead < reach and 0.35 < beside < 1.2:
            return True
    return False


@kernel
def stroll(maps: Maps, world: World, e: int, slot: int, dt: float) -> None:
    """One step of a person: wait at the kerb, cross, wait on the other side."""
    me = world.agents[e, slot]
    if me.walk < 0:
        # set off by the scenario: straight ahead, to the other side
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
        if me.wait <= 0.0 and not free_to_walk(world, e, walk):
            me.wait = 0.5
    else:
        me.v = me.desire
        me.s += me.v * dt
        if me.s >= length:
            me.s, me.v = 0.0, 0.0
            me.turns += 1
            me.wait = 3.0 + 15.0 * uniform(me.seed, me.turns)
    # an even number of crossings so far goes one way, an odd number the other
    forth = me.turns % 2 == 0
    u = me.s / length if forth else 1.0 - me.s / length
    sign = 1.0 if forth else -1.0
    me.cos, me.sin = sign * dx / length, sign * dy / length
    me.x, me.y = walk.x0 + u * dx - me.d * dy / length, walk.y0 + u * dy + me.d * dx / length


@kernel
def step_traffic(maps: Maps, world: World, e: int, dt: float) -> None:
    """One step of everybody but the ego in env `e`."""
    agents, order = world.agents[e], world.order[e]
    # all decide on what they see now, then all move: nobody sees half of a step
    for at in range(len(order)):
        slot = order[at]
        kind = agents[slot].kind
        if slot > 0 and (kind == tables.CAR or kind == tables.CYCLIST) and agents[slot].lane >= 0:
            decide(maps, world, e, slot, at, dt)
    for slot in range(1, len(agents)):
        kind = agents[slot].kind
        if kind == tables.CAR or kind == tables.CYCLIST:
            if agents[slot].lane >= 0:
                advance(maps, world, e, slot, dt)
            elif (world.episodes[e].steps + slot) % CHANGE_EVERY == 0:
                enter(maps, world, e, slot)
        elif kind == tables.PEDESTRIAN:
            stroll(maps, world, e, slot, dt)
