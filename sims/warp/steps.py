"""Steps of the envs of `bev/warp`: ego, deviation from the log, sequence reward, warped rasters."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import boxes_overlap, wrap
from robotrl.sims.driving.judge import STANDS_MPS, begin_judging, judge_step
from robotrl.sims.driving.kernels import RUNNING, TERMINATED, TRUNCATED, settle
from robotrl.sims.driving.plan import follow
from robotrl.sims.driving.render import raster
from robotrl.sims.driving.render.vectors import Vectors, observe
from robotrl.sims.driving.rewards import Rules
from robotrl.sims.driving.traffic import ego
from robotrl.sims.driving.traffic.following import empty
from robotrl.sims.driving.world import Maps, WorldState
from robotrl.sims.warp.replay import ReplayArrays, replay_agents, set_lights
from robotrl.sims.warp.warping import FrameView, coverage, mark_valid, pixel_map, relative, warp_pixels

move, locate, put_ego, count_wait = ego.move, ego.locate, ego.put_ego, ego.count_wait
draw_box, expand = raster.draw_box, raster.expand

TTC_TICK = 2
"""Steps of the log between two looks for a collision in the future."""
FASTEST_MPS = 40.0
COARSE = 16
"""Pixels along the longer side of the view by which the share inside the logged frame is found."""
SMALL_WAY_M = 5.0
"""Logged progress below which the progress ratio compares distances with this one."""
FAILURES = (
    tables.VEHICLE
    | tables.PERSON
    | tables.STATIC
    | tables.RED_LIGHT
    | tables.STOP_SIGN
    | tables.OFF_ROAD
    | tables.OFF_ROUTE
    | tables.BLOCKED
)
"""Events that end an episode as a failure."""
PROGRESS_LOW, PROGRESS_HIGH = 1.05, 1.10
"""Progress ratios between which RAD-2's efficiency is 1."""


class Limits(NamedTuple):
    """Largest deviation of the ego from the log, and horizon and weight of the sequence reward."""

    aside_m: float
    turned_rad: float
    apart_m: float
    covered: float
    """Least share of the view inside the logged frame; 0 without frames."""
    ttc_s: float
    sequence: float
    """Weight of the sequence reward in the reward."""
    source: FrameView
    source_height: int
    """0 without frames."""
    source_width: int
    shown: FrameView
    """View that is observed."""
    coarse: FrameView
    """The same view in fewer pixels, for the share inside the logged frame."""
    coarse_rows: int
    coarse_columns: int


@kernel
def progress_ratio(way: float, logged: float) -> float:
    """Progress over logged progress; near 1 also where the logged ego hardly moved."""
    return 1.0 + (way - logged) / max(logged, SMALL_WAY_M)


@kernel
def efficiency(ratio: float) -> float:
    """RAD-2's efficiency: 1 for a progress ratio of 1.05 to 1.10, less on both sides."""
    return 1.0 + min(ratio - PROGRESS_LOW, 0.0) + min(PROGRESS_HIGH - ratio, 0.0)


@kernel
def touches_at(
    me: Any, own: Any, x: float, y: float, cos: float, sin: float, length: float, width: float, t: float
) -> bool:
    """True if the ego, after `t` s at its speed and course, overlaps a box with its center at (x, y)."""
    dx, dy = x - me.x - me.v * me.cos * t, y - me.y - me.v * me.sin * t
    near = 0.5 * (own.length + own.width + length + width)
    return dx * dx + dy * dy < near * near and boxes_overlap(
        dx,
        dy,
        me.cos,
        me.sin,
        0.5 * own.length,
        0.5 * own.width,
        cos,
        sin,
        0.5 * length,
        0.5 * width,
    )


@kernel
def logged_ttc(maps: Maps, world: WorldState, log: ReplayArrays, replays: Any, e: int, horizon_s: float) -> float:
    """Time to the next collision of the ego, at its speed and course, with the boxes that the log has in the future.

    A road user that has left its logged place counts where it is, at its speed and course. A standing ego is safe.

    Returns:
        Seconds; `horizon_s` if there is none before.
    """
    me, agents = world.egos[e], world.agents[e]
    if me.v < STANDS_MPS:
        return horizon_s
    own = agents[0]
    clip = log.clips[replays[e].clip]
    now, last = clip.first + replays[e].at, clip.first + clip.steps - 1
    soonest = horizon_s
    for slot in range(1, len(agents)):
        other = agents[slot]
        if other.kind == 0:
            continue
        dx, dy = other.x - me.x, other.y - me.y
        reach = own.length + other.length + (FASTEST_MPS + me.v) * horizon_s
        if dx * dx + dy * dy > reach * reach:
            continue
        there = log.agents[now, slot - 1]
        replayed = there.kind > 0 and abs(there.x - other.x) + abs(there.y - other.y) < 0.1
        k = 0
        while 0.1 * k < soonest:
            t = 0.1 * k
            x, y, cos, sin = other.x + other.v * other.cos * t, other.y + other.v * other.sin * t, other.cos, other.sin
            if replayed and now + k <= last:
                future = log.agents[now + k, slot - 1]
                if future.kind == 0 or future.track != there.track:
                    break
                x, y, cos, sin = future.x, future.y, math.cos(future.yaw), math.sin(future.yaw)
            if touches_at(me, own, x, y, cos, sin, other.length, other.width, t):
                soonest = t
                break
            k += TTC_TICK
    row = maps.maps[world.episodes[e].map]
    for i in range(row.parked, row.parked + row.parkeds):
        box = maps.parked[i]
        dx, dy = box.x - me.x, box.y - me.y
        reach = own.length + box.length + me.v * horizon_s
        if dx * dx + dy * dy > reach * reach:
            continue
        k = 0
        while 0.1 * k < soonest:
            if touches_at(me, own, box.x, box.y, box.cos, box.sin, box.length, box.width, 0.1 * k):
                soonest = 0.1 * k
                break
            k += TTC_TICK
    return soonest


@kernel
def measure_deviation(world: WorldState, log: ReplayArrays, replays: Any, limits: Limits, e: int) -> bool:
    """Measure how far the ego of env `e` has left the log; true if it is too far."""
    me, state = world.egos[e], replays[e]
    clip = log.clips[state.clip]
    poses, first = log.poses, clip.first
    best, at = 1.0e18, state.near
    for k in range(max(state.near - 5, 0), min(state.near + 15, clip.steps)):
        dx, dy = me.x - poses[first + k, 0], me.y - poses[first + k, 1]
        square = dx * dx + dy * dy
        if square < best:
            best, at = square, k
    # steps at which the logged ego stood are passed over
    while at + 1 < clip.steps and at + 1 <= state.at and poses[first + at, 3] < STANDS_MPS:
        at += 1
    state.near = at
    yaw = poses[first + at, 2]
    dx, dy = me.x - poses[first + at, 0], me.y - poses[first + at, 1]
    state.aside = dy * math.cos(yaw) - dx * math.sin(yaw)
    state.turned = wrap(me.yaw - yaw)
    now = first + state.at
    state.apart = math.hypot(me.x - poses[now, 0], me.y - poses[now, 1])
    state.covered = 1.0
    if limits.source_height > 0:
        ahead, left, turn = relative(poses[now, 0], poses[now, 1], poses[now, 2], me.x, me.y, me.yaw)
        where = pixel_map(limits.source, limits.coarse, ahead, left, turn)
        size = limits.coarse_rows, limits.coarse_columns
        state.covered = coverage(where, limits.source_height, limits.source_width, *size)
    return (
        abs(state.aside) > limits.aside_m
        or abs(state.turned) > limits.turned_rad
        or state.apart > limits.apart_m
        or state.covered < limits.covered
    )


@kernel
def measure_sequence(
    maps: Maps, world: WorldState, log: ReplayArrays, replays: Any, limits: Limits, e: int, failed: bool
) -> float:
    """Update the terms of RAD-2's sequence reward of env `e`, and return by how much their sum has changed.

    Safety is a least value over time, which a short episode would keep high: one that has `failed`, in whichever way,
    is as unsafe as after a collision.
    """
    state = replays[e]
    now = log.clips[state.clip].first + state.at
    state.ttc = 0.0 if failed else logged_ttc(maps, world, log, replays, e, limits.ttc_s)
    state.safety = min(state.safety, state.ttc - limits.ttc_s)
    state.ratio = progress_ratio(world.egos[e].best - state.begin, max(log.progress[now] - state.begin, 0.0))
    state.efficiency = efficiency(state.ratio)
    before, state.value = state.value, state.safety + state.efficiency
    return state.value - before


@kernel
def step_ego(
    maps: Maps,
    world: WorldState,
    log: ReplayArrays,
    replays: Any,
    rules: Rules,
    limits: Limits,
    e: int,
    steer: float,
    accel: float,
    terms: Any,
) -> float:
    """Move the ego of env `e` by a control step, after the others have moved, and return the reward."""
    episode, state = world.episodes[e], replays[e]
    clip = log.clips[state.clip]
    before = world.egos[e].progress
    hit, slot = move(maps, world, e, steer, accel, rules.throttle, rules.dt)
    locate(maps, world, e)
    count_wait(maps, world, e, rules.dt)
    episode.steps += 1
    episode.time += rules.dt
    set_lights(maps, world, log, e, clip.first + state.at)
    settle(maps, world, e)
    left = measure_deviation(world, log, replays, limits, e)
    total = judge_step(maps, world, rules, e, before, hit, slot, terms)
    failed = not left and episode.events & FAILURES != 0
    gained = measure_sequence(maps, world, log, replays, limits, e, failed)
    total += limits.sequence * gained
    if state.at + 1 >= clip.steps:
        episode.events |= tables.LOG_ENDED
    if left:
        # what happens where nothing was logged is no failure: it has no price, and no other event
        total -= terms[len(terms) - 1]
        terms[len(terms) - 1] = 0.0
        episode.events = tables.DEVIATION
    return total


@kernel
def step_range(
    maps: Maps,
    world: WorldState,
    log: ReplayArrays,
    replays: Any,
    running: Any,
    rules: Rules,
    limits: Limits,
    vectors: Vectors,
    actions: Any,
    origins: Any,
    k: int,
    reward: Any,
    terms: Any,
    last: Any,
    done: Any,
    events: Any,
    completion: Any,
    low: int,
    high: int,
) -> None:
    """Run control step `k` of the actions (N, A) in the envs from `low` to `high` (excluded) that are `running` (N,).

    The other road users have moved. `origins` (N, 4) holds x, y, cos and sin of the egos when the actions were given.
    After the last control step of an action, or at the end of its episode, the observations are written.
    """
    for e in range(low, high):
        if not running[e]:
            continue
        me = world.egos[e]
        if k == 0:
            origins[e, 0], origins[e, 1], origins[e, 2], origins[e, 3] = me.x, me.y, me.cos, me.sin
            reward[e] = 0.0
            for i in range(terms.shape[1]):
                terms[e, i] = 0.0
        action = actions[e]
        steer, accel = action[0], action[1]
        if rules.planned == 1:
            x, y, cos, sin = origins[e, 0], origins[e, 1], origins[e, 2], origins[e, 3]
            steer, accel = follow(world, e, action, x, y, cos, sin, k * rules.dt, rules.throttle)
        reward[e] += step_ego(maps, world, log, replays, rules, limits, e, steer, accel, last[e])
        for i in range(terms.shape[1]):
            terms[e, i] += last[e, i]
        conclude(maps, world, replays, e, done, events, completion)
        if done[e] != RUNNING or k + 1 == rules.hold:
            for i in range(1, terms.shape[1] - 1):
                terms[e, i] /= k + 1
            running[e] = False
            observe(maps, world, rules, vectors, e)


@kernel
def conclude(maps: Maps, world: WorldState, replays: Any, e: int, done: Any, events: Any, completion: Any) -> None:
    """Write how env `e` stands after a step, its events, and the share of the way that was left at its start."""
    found = world.episodes[e].events
    events[e] = found
    done[e] = RUNNING
    if found:
        kept = found & ~(tables.DEVIATION | tables.LOG_ENDED | tables.TIMED_OUT)
        done[e] = TERMINATED if kept else TRUNCATED
    length, begin = maps.routes[world.episodes[e].route].length, replays[e].begin
    completion[e] = 1.0
    if found & tables.FINISHED == 0:
        completion[e] = max(world.egos[e].best - begin, 0.0) / max(length - begin, 1.0)


@kernel
def begin_range(
    maps: Maps,
    world: WorldState,
    log: ReplayArrays,
    replays: Any,
    limits: Limits,
    env_ids: Any,
    clips: Any,
    starts: Any,
    limit: int,
    low: int,
    high: int,
) -> None:
    """Start episodes in the envs `env_ids[low:high]`: their clips, and steps of the clips."""
    for i in range(low, high):
        e = env_ids[i]
        episode, state = world.episodes[e], replays[e]
        clip = log.clips[clips[i]]
        f = clip.first + starts[i]
        episode.time = episode.offset = episode.density = episode.blocked = 0.0
        episode.limit, episode.steps, episode.phase, episode.target = limit, 0, 0, -1
        episode.traffic_v, episode.map_v = -1.0, -1.0
        episode.events, episode.clamped, episode.event = 0, 0, 0
        state.clip, state.start, state.at, state.near = clips[i], starts[i], starts[i], starts[i]
        for slot in range(world.agents.shape[1]):
            empty(world.agents[e, slot])
            world.order[e, slot] = slot
        route = maps.routes[episode.route]
        at = min(int(log.progress[f]), route.count - 1)
        x, y, yaw, v = log.poses[f, 0], log.poses[f, 1], log.poses[f, 2], log.poses[f, 3]
        put_ego(maps, world, e, x, y, yaw, v, clip.length, clip.width)
        # `put_ego` takes the beginning of the route
        me = world.egos[e]
        me.index = at
        locate(maps, world, e)
        me.best = me.progress
        state.begin = me.progress
        state.ttc, state.safety, state.ratio, state.value = limits.ttc_s, 0.0, 1.0, 0.0
        state.efficiency = efficiency(1.0)
        replay_agents(maps, world, log, replays, e)
        set_lights(maps, world, log, e, f)
        begin_judging(world, e)
        measure_deviation(world, log, replays, limits, e)
        settle(maps, world, e)


@kernel
def settle_lights(maps: Maps, world: WorldState, log: ReplayArrays, replays: Any, low: int, high: int) -> None:
    """Recompute the lights and the derived state of the envs from `low` to `high` (excluded)."""
    for e in range(low, high):
        set_lights(maps, world, log, e, log.clips[replays[e].clip].first + replays[e].at)
        settle(maps, world, e)


@kernel
def relative_poses(world: WorldState, log: ReplayArrays, replays: Any, env_ids: Any, numbers: Any, poses: Any) -> None:
    """Write for each of the envs `env_ids` (n,) its frame's number (n,), and its ego's pose relative to it (n, 3)."""
    for i in range(len(env_ids)):
        e = env_ids[i]
        f = log.clips[replays[e].clip].first + replays[e].at
        me = world.egos[e]
        numbers[i] = f
        poses[i, 0], poses[i, 1], poses[i, 2] = relative(
            log.poses[f, 0], log.poses[f, 1], log.poses[f, 2], me.x, me.y, me.yaw
        )


@kernel
def draw_ego(world: WorldState, e: int, out: Any, ppm: float, ahead: float) -> None:
    """Draw the ego into packed pixels as `raster.draw_agents` draws road users."""
    me, own = world.egos[e], world.agents[e, 0]
    half, wide = max(0.5 * own.length, raster.MIN_HALF_M), max(0.5 * own.width, raster.MIN_HALF_M)
    draw_box(out, ppm, ahead, 0.0, 0.0, 1.0, 0.0, half, wide, raster.VEHICLE)
    if me.v > 0.5:
        reach = 0.5 * me.v
        draw_box(out, ppm, ahead, reach, 0.0, 1.0, 0.0, reach, 0.3, raster.MOTION)


@kernel
def warp_rasters(
    world: WorldState,
    log: ReplayArrays,
    replays: Any,
    limits: Limits,
    frames: Any,
    views: raster.RasterViews,
    table: raster.ChannelTable,
    mask: Any,
    env_ids: Any,
    low: int,
    high: int,
) -> None:
    """Warp the logged rasters of the envs `env_ids[low:high]` to their egos, draw these, and expand the channels."""
    for i in range(low, high):
        e = env_ids[i]
        f = log.clips[replays[e].clip].first + replays[e].at
        me = world.egos[e]
        ahead, left, turn = relative(log.poses[f, 0], log.poses[f, 1], log.poses[f, 2], me.x, me.y, me.yaw)
        at = pixel_map(limits.source, limits.shown, ahead, left, turn)
        warp_pixels(frames[f], at, views.packed[e])
        draw_ego(world, e, views.packed[e], limits.shown.pixels_per_m, limits.shown.row / limits.shown.pixels_per_m)
        if len(views.words):
            expand(views.pixels[e], table, views.words[e])
        if len(mask):
            mark_valid(at, limits.source_height, limits.source_width, mask[e])
