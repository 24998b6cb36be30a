"""Traffic step: all road users decide on the present state, then all move.

Slot 0 is the ego: the others react to it like to anyone else, but it is not moved here.
"""

from __future__ import annotations

import math

from robotrl.sims.bev.traffic.lane_changes import (
    CHANGE_EVERY,
    END_M,
    HOLD_S,
    SIDEWAYS_MPS,
    UNDERWAY_MPS,
    can_pull_out,
    consider_change,
)
from robotrl.sims.bev.traffic.learned.driving import decide_by_network
from robotrl.sims.bev.traffic.pedestrians import is_crossed, runs_into_street, stroll
from robotrl.sims.bev.traffic.surroundings import enter_nearby, is_beyond, leave, move_on, reach_of
from robotrl.sims.bev.traffic.whims import SUDDEN_MPS2, brakes_suddenly, is_distracted, wavered, weaving
from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import uniform
from robotrl.sims.driving.traffic.following import (
    PULL_OUT_M,
    VIEW_M,
    choose_next,
    halt,
    leader,
    passes_line,
    pose,
    style_of,
    styled_idm,
    wanted_speed,
)
from robotrl.sims.driving.traffic.right_of_way import barrier, merging, parting
from robotrl.sims.driving.world import Maps, WorldState


@kernel
def enter(maps: Maps, world: WorldState, e: int, slot: int) -> None:
    """Let a car that has left the map enter again if a randomly drawn entry has room."""
    row = maps.maps[world.episodes[e].map]
    if row.entries == 0:
        return
    me = world.agents[e, slot]
    me.turns += 1
    entry = maps.entries[row.entry + min(int(uniform(me.seed, me.turns) * row.entries), row.entries - 1)]
    lane = maps.lanes[entry]
    speed = lane.speed * me.desire
    number, base = entry, 0.0
    while base < VIEW_M:
        for slot_ahead in range(len(world.agents[e])):
            ahead = world.agents[e, slot_ahead]
            if ahead.lane == number:
                if base + ahead.s < 12.0 + 1.5 * speed:
                    return
                if base + ahead.s < VIEW_M:
                    speed = min(speed, ahead.v + 2.0)
        base += maps.lanes[number].length
        number = maps.lanes[number].next[0]
        if number < 0 or maps.lanes[number].junction >= 0:
            break
    start = maps.points[lane.first]
    ego = world.agents[e, 0]
    if math.hypot(start.x - ego.x, start.y - ego.y) < 40.0:
        return  # no car appears in front of the ego
    me.lane, me.s, me.d, me.v, me.wait, me.hold = entry, 0.5 * me.length, me.rest, speed, 0.0, HOLD_S
    choose_next(maps, me)
    pose(maps, me)


@kernel
def decide(maps: Maps, world: WorldState, e: int, slot: int, at: int, dt: float) -> None:
    """Choose a car's or cyclist's acceleration for this step, and a lane change if due."""
    me, style, time = world.agents[e, slot], style_of(world, e, slot), world.episodes[e].time
    learned = style.network >= 0 and slot != world.episodes[e].target
    if style.distracted > 0.0 and slot != world.episodes[e].target:
        me.reckless = 1 if is_distracted(me, style, time) else 0
    ahead, gap = leader(maps, world, e, slot, at)
    closed = min(barrier(maps, world, e, slot, dt), runs_into_street(world, e, me))
    lane = maps.lanes[me.lane]
    parted, parted_v, merged, merged_v = tables.FAR, 0.0, tables.FAR, 0.0
    if lane.junction >= 0 or me.next >= 0:
        parted, parted_v = parting(maps, world, e, slot)
    if lane.junction >= 0:
        merged, merged_v = merging(maps, world, e, slot)
    if learned:
        joining, joining_v = (merged, merged_v) if merged < parted else (parted, parted_v)
        decide_by_network(maps, world, e, slot, int(style.network), ahead, gap, joining, joining_v, closed, dt)
        return
    speed = world.agents[e, ahead].v if ahead >= 0 else me.v
    wanted = wanted_speed(maps, world, e, slot)
    if style.speed_noise > 0.0:
        wanted = max(wanted * wavered(me, style, time), 0.5)
    stands = ahead >= 0 and world.agents[e, ahead].kind == tables.OBSTACLE and (lane.left >= 0 or lane.right >= 0)
    free = ahead < 0 or can_pull_out(me, world.agents[e, ahead], gap)
    if stands:
        gap = max(gap - PULL_OUT_M, 0.1)
    accel = styled_idm(me.v, wanted, gap, me.v - speed, me.headway, style)
    if closed < tables.FAR:
        accel = min(accel, halt(me.v, wanted, closed, me.headway))
    if parted < tables.FAR:
        accel = min(accel, styled_idm(me.v, wanted, max(parted, 0.1), me.v - parted_v, me.headway, style))
    if merged < tables.FAR:
        accel = min(accel, styled_idm(me.v, wanted, max(merged, 0.1), me.v - merged_v, me.headway, style))
    if lane.ends > 0:
        # a car that finds no room beside waits before the end
        accel = min(accel, halt(me.v, wanted, lane.length - me.s - 0.5 * me.length - END_M, me.headway))
    if style.sudden_brakes_per_min > 0.0 and brakes_suddenly(me, style, time):
        accel = min(accel, -SUDDEN_MPS2)
    me.hold = max(me.hold - dt, 0.0)
    if (
        (world.episodes[e].steps + slot) % CHANGE_EVERY == 0
        and (me.kind == tables.CAR or lane.ends > 0)
        and me.hold == 0.0
        and lane.junction < 0
        and (lane.length - me.s > 20.0 or lane.ends > 0)
        and (me.v > 1.0 or stands or lane.ends > 0)
        and free
        and not is_crossed(world, e, me)
        and not consider_change(maps, world, e, slot, style, accel, 0)
    ):
        consider_change(maps, world, e, slot, style, accel, 1)
    me.a = accel


@kernel
def advance(maps: Maps, world: WorldState, e: int, slot: int, dt: float) -> None:
    """Move a car or cyclist with its chosen acceleration."""
    me = world.agents[e, slot]
    before = me.v
    me.v = max(before + me.a * dt, 0.0)
    me.a = (me.v - before) / dt
    me.s += 0.5 * (before + me.v) * dt
    aside, style = me.rest - me.d, style_of(world, e, slot)
    if style.weave_m > 0.0:
        aside += weaving(me, style, world.episodes[e].time)
    if aside != 0.0:
        step = SIDEWAYS_MPS * dt * min(me.v / UNDERWAY_MPS, 1.0)
        me.d += min(max(aside, -step), step)
    while me.s > maps.lanes[me.lane].length:
        if me.next < 0:
            leave(me)
            return
        me.s -= maps.lanes[me.lane].length
        if passes_line(maps, me.lane, me.next):
            me.wait = 0.0
        me.lane = me.next
        choose_next(maps, me)
    pose(maps, me)


@kernel
def step_traffic(maps: Maps, world: WorldState, e: int, dt: float) -> None:
    """Advance all road users except the ego in env `e` by one step."""
    agents, order, episode = world.agents[e], world.order[e], world.episodes[e]
    row = maps.maps[episode.map]
    nearby = row.spots > 0
    # all decide on the present state before anyone moves: nobody sees a half-updated state
    for at in range(len(order)):
        slot = order[at]
        kind = agents[slot].kind
        if slot > 0 and (kind == tables.CAR or kind == tables.CYCLIST) and agents[slot].lane >= 0:
            decide(maps, world, e, slot, at, dt)
    if nearby and episode.steps % CHANGE_EVERY == 0:
        episode.reach = reach_of(maps, row, world.egos[e].x, world.egos[e].y)
    for slot in range(1, len(agents)):
        me = agents[slot]
        due = (episode.steps + slot) % CHANGE_EVERY == 0
        if me.kind == tables.CAR or me.kind == tables.CYCLIST:
            if me.lane >= 0:
                advance(maps, world, e, slot, dt)
                if nearby and is_beyond(world, e, me.x, me.y):
                    leave(me)
            elif due and nearby:
                enter_nearby(maps, world, e, slot)
            elif due:
                enter(maps, world, e, slot)
        elif me.kind == tables.PEDESTRIAN:
            if due and nearby and me.walk >= 0:
                move_on(maps, world, e, slot)
            stroll(maps, world, e, slot, dt)
