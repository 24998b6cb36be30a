"""Other road users of a logged clip: replayed as they drove, or reacting to the ego on their logged ways."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import wrap
from robotrl.sims.driving.traffic.following import empty, idm
from robotrl.sims.driving.traffic.right_of_way import GREEN, RED, YELLOW, walk_at
from robotrl.sims.driving.world import Maps, WorldState

F, J = np.float32, np.int32

CLIP = np.dtype(
    [
        ("first", np.int64),  # its first step in the log
        ("steps", J),
        ("map", J),  # index in the map pool, -1 before it is built
        ("route", J),  # index in the map pool
        ("lights", J),  # lights of its map
        ("length", F),  # m, of the ego
        ("width", F),
    ],
    align=True,
)

REPLAY = np.dtype(
    [
        ("clip", J),
        ("start", J),  # step of the clip at which the episode began
        ("at", J),  # present step of the clip
        ("near", J),  # step whose logged pose is nearest to the ego
        ("begin", F),  # m along the route, of the start
        ("aside", F),  # m to the left of the logged way
        ("turned", F),  # heading less the logged way's, rad
        ("apart", F),  # m from the logged pose of this time
        ("covered", F),  # share of the view inside the logged frame
        ("ttc", F),  # s, against the logged future
        ("safety", F),  # s, smallest time to collision so far less its horizon
        ("efficiency", F),
        ("ratio", F),  # progress over the logged progress
        ("value", F),  # sequence reward so far
    ],
    align=True,
)
"""State of an env's replay."""

ACTOR = np.dtype([("track", J), ("at", J), ("way", F), ("v", F)], align=True)
"""State of a reactive road user: its track, step of the log behind it, m along its logged way, m/s."""

LOOK_M, SAMPLE_M = 40.0, 1.5
"""Distance along its way over which a reactive road user looks for others, and the spacing at which it looks."""
CLEAR_M = 0.3
"""Room that a reactive road user wants on both sides."""
LAG_M = 0.5
"""Distance behind its logged place from which a reactive road user counts as delayed."""
RESUME_MPS = 2.0
"""Least speed that a delayed road user tries to reach."""
ENDLESS_S = 1.0e6


class ReplayArrays(NamedTuple):
    """Log as kernels read it, and what is derived of it; rows are the steps of all clips."""

    clips: Any
    """(C,) `CLIP` records."""
    poses: NDArray[np.float64]
    """(F, 4) x, y, yaw and speed of the ego."""
    progress: NDArray[np.float32]
    """(F,) m along the clip's route."""
    agents: Any
    """(F, M) `layout.AGENT` records."""
    lane: NDArray[np.int32]
    """(F, M) lane within the map, -1 without; of a pedestrian the crosswalk."""
    next: NDArray[np.int32]
    """(F, M) straightest successor within the map, -1 without."""
    lane_s: NDArray[np.float32]
    lane_d: NDArray[np.float32]
    way: NDArray[np.float32]
    """(F, M) m that the road user has moved since it appeared."""
    lights: NDArray[np.int8]
    """(F, G) states; see the layout."""
    light_left_s: NDArray[np.float32]
    """(F, G) time until a light changes."""


@kernel
def measure_way(log: ReplayArrays, clip: int) -> None:
    """Write how far each road user of a clip has moved since it appeared, and when lights change."""
    row = log.clips[clip]
    for slot in range(log.agents.shape[1]):
        for f in range(row.first, row.first + row.steps):
            here = log.agents[f, slot]
            log.way[f, slot] = 0.0
            if f > row.first and here.kind > 0:
                before = log.agents[f - 1, slot]
                if before.kind > 0 and before.track == here.track:
                    moved = math.hypot(here.x - before.x, here.y - before.y)
                    log.way[f, slot] = log.way[f - 1, slot] + moved
    for group in range(log.lights.shape[1]):
        left = 10.0
        for k in range(row.steps - 1, -1, -1):
            f = row.first + k
            if k + 1 < row.steps and log.lights[f, group] != log.lights[f + 1, group]:
                left = 0.0
            left += 0.1
            log.light_left_s[f, group] = left


@kernel
def trace_route(log: ReplayArrays, clip: int, points: Any) -> None:
    """Write the progress of the logged ego along its clip's route, points 1 m apart."""
    row = log.clips[clip]
    at, best = 0, 1.0e18
    for i in range(len(points)):
        square = (points[i].x - log.poses[row.first, 0]) ** 2 + (points[i].y - log.poses[row.first, 1]) ** 2
        if square < best:
            best, at = square, i
    for f in range(row.first, row.first + row.steps):
        best = 1.0e18
        for i in range(max(at - 3, 0), min(at + 9, len(points))):
            square = (points[i].x - log.poses[f, 0]) ** 2 + (points[i].y - log.poses[f, 1]) ** 2
            if square < best:
                best, at = square, i
        p = points[at]
        along = (log.poses[f, 0] - p.x) * p.cos + (log.poses[f, 1] - p.y) * p.sin
        log.progress[f] = max(at + min(max(along, -1.0), 1.0), 0.0)


@kernel
def find_walks(maps: Maps, log: ReplayArrays, clip: int) -> None:
    """Write the crosswalks of pedestrians where lanes are written of others."""
    row = log.clips[clip]
    for f in range(row.first, row.first + row.steps):
        for slot in range(log.agents.shape[1]):
            if log.agents[f, slot].kind == tables.PEDESTRIAN:
                log.lane[f, slot] = walk_at(maps, maps.maps[row.map], log.agents[f, slot].x, log.agents[f, slot].y)


@kernel
def set_lights(maps: Maps, world: WorldState, log: ReplayArrays, e: int, f: int) -> None:
    """Write the lights of env `e` at step `f`, so that `right_of_way.light` tells their logged states."""
    episode = world.episodes[e]
    row = maps.maps[episode.map]
    for group in range(row.signals):
        signal = maps.signals[row.signal + group]
        signal.start = episode.time + episode.offset
        signal.green = signal.yellow = 0.0
        signal.cycle = ENDLESS_S
        state = log.lights[f, group] if group < log.lights.shape[1] else -1
        left = log.light_left_s[f, group] if state >= 0 else ENDLESS_S
        if state == GREEN:
            signal.green = left
        elif state == YELLOW:
            signal.yellow = left
        elif state == RED:
            signal.cycle = left
        else:
            # nobody knows its state: no light
            signal.green = ENDLESS_S


@kernel
def put_agent(maps: Maps, log: ReplayArrays, e: int, world: WorldState, slot: int, f: int, v: float, a: float) -> None:
    """Put a road user at its logged place of step `f`, at the speed `v` m/s and acceleration `a` m/s^2."""
    me, there = world.agents[e, slot], log.agents[f, slot - 1]
    row = maps.maps[world.episodes[e].map]
    me.kind, me.x, me.y = there.kind, there.x, there.y
    me.cos, me.sin = math.cos(there.yaw), math.sin(there.yaw)
    me.length, me.width = there.length, there.width
    me.v, me.a = v, a
    lane, following = log.lane[f, slot - 1], log.next[f, slot - 1]
    me.lane = me.next = me.walk = -1
    me.s = me.d = 0.0
    if there.kind == tables.PEDESTRIAN:
        me.walk = lane
    elif lane >= 0:
        me.lane, me.s, me.d = row.lane + lane, log.lane_s[f, slot - 1], log.lane_d[f, slot - 1]
        me.next = row.lane + following if following >= 0 else -1


@kernel
def speed_change(log: ReplayArrays, clip: Any, f: int, slot: int) -> float:
    """Acceleration, m/s^2, of a logged road user in the step that ends at `f`."""
    here = log.agents[f, slot - 1]
    if f == clip.first:
        return 0.0
    before = log.agents[f - 1, slot - 1]
    return (here.speed - before.speed) * 10.0 if before.kind > 0 and before.track == here.track else 0.0


@kernel
def replay_agents(maps: Maps, world: WorldState, log: ReplayArrays, replays: Any, e: int) -> None:
    """Put all road users of env `e` where they were at its step of the log."""
    clip = log.clips[replays[e].clip]
    f = clip.first + replays[e].at
    for slot in range(1, world.agents.shape[1]):
        if log.agents[f, slot - 1].kind == 0:
            if world.agents[e, slot].kind != 0:
                empty(world.agents[e, slot])
            continue
        put_agent(maps, log, e, world, slot, f, log.agents[f, slot - 1].speed, speed_change(log, clip, f, slot))


@kernel
def in_the_way(other: Any, x: float, y: float, half_width: float) -> bool:
    """True if a road user's box leaves no room for one of `half_width` m at a place."""
    dx, dy = x - other.x, y - other.y
    ahead, aside = abs(dx * other.cos + dy * other.sin), abs(dy * other.cos - dx * other.sin)
    return ahead < 0.5 * other.length + half_width + CLEAR_M and aside < 0.5 * other.width + half_width + CLEAR_M


@kernel
def gap_on_way(
    world: WorldState, log: ReplayArrays, actors: Any, e: int, slot: int, end: int, now: int
) -> tuple[float, float]:
    """Room of a reactive road user along its logged way, and the speed of who ends it.

    Who counts is the ego, and others that are delayed: the rest keep to the log, in which nobody met.

    Args:
        world: all envs.
        log: the log.
        actors: (N, M) reactive road users.
        e: env.
        slot: the road user.
        end: step after the clip's last one.
        now: present step.

    Returns:
        Bumper to bumper, m, `FAR` if there is nobody; speed along the way, m/s.
    """
    actor, me = actors[e, slot - 1], world.agents[e, slot]
    half, agents = 0.5 * me.width, world.agents[e]
    looked, f = actor.way, actor.at
    while f + 1 < end and log.agents[f + 1, slot - 1].track == actor.track and log.agents[f + 1, slot - 1].kind > 0:
        f += 1
        way = log.way[f, slot - 1]
        if way - actor.way > LOOK_M:
            break
        if way - looked < SAMPLE_M:
            continue
        looked = way
        there = log.agents[f, slot - 1]
        cos, sin = math.cos(there.yaw), math.sin(there.yaw)
        for k in range(len(agents)):
            other = agents[k]
            if k == slot or other.kind == 0:
                continue
            if k > 0:
                delayed = actors[e, k - 1]
                if delayed.track != log.agents[now, k - 1].track or log.way[now, k - 1] - delayed.way < LAG_M:
                    continue
            # who is beside or behind it now is not in its way
            if (other.x - me.x) * me.cos + (other.y - me.y) * me.sin < 0.0:
                continue
            if in_the_way(other, there.x, there.y, half):
                gap = max(way - actor.way - 0.5 * me.length, 0.0)
                return gap, max(other.v * (other.cos * cos + other.sin * sin), 0.0)
    return tables.FAR, 0.0


@kernel
def between(log: ReplayArrays, e: int, world: WorldState, slot: int, f: int, way: float) -> None:
    """Move a road user that stands at its logged place of step `f` on to `way` m along its logged way."""
    before, after = log.way[f, slot - 1], log.way[f + 1, slot - 1]
    share = (way - before) / (after - before) if after > before else 0.0
    share = min(max(share, 0.0), 1.0)
    me, a, b = world.agents[e, slot], log.agents[f, slot - 1], log.agents[f + 1, slot - 1]
    me.x, me.y = a.x + share * (b.x - a.x), a.y + share * (b.y - a.y)
    yaw = a.yaw + share * wrap(b.yaw - a.yaw)
    me.cos, me.sin = math.cos(yaw), math.sin(yaw)
    if me.lane >= 0:
        me.s += share * (after - before)


@kernel
def react_agents(maps: Maps, world: WorldState, log: ReplayArrays, replays: Any, actors: Any, e: int) -> None:
    """Move the road users of env `e` to its step of the log; who has the ego in the way brakes by IDM, and then lags.

    A road user stays on its logged way and is never ahead of its logged time. Pedestrians and obstacles replay.
    """
    clip = log.clips[replays[e].clip]
    now, end = clip.first + replays[e].at, clip.first + clip.steps
    for slot in range(1, world.agents.shape[1]):
        there, actor, me = log.agents[now, slot - 1], actors[e, slot - 1], world.agents[e, slot]
        if there.kind == 0:
            actor.track = -1
            if me.kind != 0:
                empty(me)
            continue
        logged = log.way[now, slot - 1]
        if actor.track != there.track or there.kind == tables.PEDESTRIAN or there.kind == tables.OBSTACLE:
            actor.track, actor.at, actor.way, actor.v = there.track, now, logged, there.speed
            put_agent(maps, log, e, world, slot, now, there.speed, speed_change(log, clip, now, slot))
            continue
        gap, other_v = gap_on_way(world, log, actors, e, slot, end, now - 1)
        before = actor.v
        late = log.way[now - 1, slot - 1] - actor.way > LAG_M
        wanted = max(log.agents[actor.at, slot - 1].speed, there.speed)
        if late:
            wanted = max(wanted, RESUME_MPS)
        if late or gap < tables.FAR:
            accel = idm(before, max(wanted, 0.1), gap, before - other_v, 1.5)
            actor.v = max(before + 0.1 * accel, 0.0)
            actor.way += 0.1 * actor.v
            if actor.way >= logged:
                actor.v = min(actor.v, there.speed)
        else:
            actor.way = logged
        if actor.way >= logged:
            # caught up: exactly as logged
            actor.way, actor.at = logged, now
            if gap >= tables.FAR:
                actor.v = there.speed
            put_agent(maps, log, e, world, slot, now, actor.v, (actor.v - before) * 10.0)
            continue
        while actor.at + 1 < now and log.way[actor.at + 1, slot - 1] <= actor.way:
            actor.at += 1
        put_agent(maps, log, e, world, slot, actor.at, actor.v, (actor.v - before) * 10.0)
        between(log, e, world, slot, actor.at, actor.way)


@kernel
def replay_range(
    maps: Maps, world: WorldState, log: ReplayArrays, replays: Any, running: Any, low: int, high: int
) -> None:
    """`replay_agents` in the envs from `low` to `high` (excluded) that are `running` (N,)."""
    for e in range(low, high):
        if running[e]:
            replay_agents(maps, world, log, replays, e)


@kernel
def react_range(
    maps: Maps, world: WorldState, log: ReplayArrays, replays: Any, actors: Any, running: Any, low: int, high: int
) -> None:
    """`react_agents` in the envs from `low` to `high` (excluded) that are `running` (N,)."""
    for e in range(low, high):
        if running[e]:
            react_agents(maps, world, log, replays, actors, e)


@kernel
def begin_reacting(log: ReplayArrays, replays: Any, actors: Any, env_ids: Any) -> None:
    """Put the reactive road users of the envs `env_ids` where the log has them."""
    for i in range(len(env_ids)):
        e = env_ids[i]
        f = log.clips[replays[e].clip].first + replays[e].at
        for slot in range(actors.shape[1]):
            actor, there = actors[e, slot], log.agents[f, slot]
            actor.track, actor.at, actor.way, actor.v = -1, 0, 0.0, 0.0
            if there.kind > 0:
                actor.track, actor.at, actor.way, actor.v = there.track, f, log.way[f, slot], there.speed
