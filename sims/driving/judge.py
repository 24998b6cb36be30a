"""Evaluates a step: events that end the episode, reward terms, statistics for the scores."""

from __future__ import annotations

import math
from typing import Any

from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import boxes_overlap
from robotrl.sims.driving.rewards import Rules
from robotrl.sims.driving.traffic.asked_speed import ASKED, is_held, road_speed
from robotrl.sims.driving.traffic.ego import HIT_PEDESTRIAN, HIT_STATIC, HIT_VEHICLE, share_off_road
from robotrl.sims.driving.traffic.heights import passes_over
from robotrl.sims.driving.traffic.right_of_way import GREEN, RED, light
from robotrl.sims.driving.world import Maps, WorldState

OFF_ROUTE_M = 15.0
"""Distance from the route beyond which the ego has left it."""
OFF_ROAD_SHARE = 0.95
"""Fraction of the ego's box off the drivable surface that ends an episode (CaRL)."""
STANDS_MPS = 0.1
SPEED_SCALE = 2.23
"""Excess over the speed limit, m/s, at which the progress reward is 0 (CaRL)."""
CENTER_M, CENTER_S = 0.5, 3.0
ROACH_MPS = 6.0
"""Roach's target speed, and the scale of its error."""
LOOK_S = 1.0
"""Prediction horizon for near collisions."""
ACCEL_LOW, ACCEL_HIGH, LATERAL, JERK, JERK_LON, YAW_RATE, YAW_ACCEL = -4.05, 2.40, 4.89, 8.37, 4.13, 0.95, 1.93
"""nuPlan's comfort limits, SI units."""
SPEEDS_UP_MPS2 = 0.5
"""Acceleration from which on the ego is not slow: it sets off, from a light or from the speed drawn for its start."""
WAITING_M = 4.0
"""Distance from the line within which the ego must stop at a stop sign."""


@kernel
def slope(samples: Any, dt: float) -> float:
    """Derivative at the middle of five samples by the quadratic Savitzky-Golay filter."""
    return (2.0 * (samples[4] - samples[0]) + samples[3] - samples[1]) / (10.0 * dt)


@kernel
def push(samples: Any, value: float) -> None:
    """Append a sample, dropping the oldest."""
    for k in range(4):
        samples[k] = samples[k + 1]
    samples[4] = value


@kernel
def begin_judging(world: WorldState, e: int) -> None:
    """Forget the episode before, with the ego at its start."""
    ego, judge = world.egos[e], world.judges[e]
    judge.ttc = judge.offset = judge.steer = judge.outside_m = 0.0
    judge.seen = judge.at_fault = 0
    for k in range(6):
        judge.comfort[k] = 0.0
    for k in range(5):
        judge.speeds[k] = ego.v
        judge.yaws[k] = judge.accels[k] = judge.accels_lat[k] = judge.yaw_rates[k] = 0.0
    for k in range(4):
        judge.ego_speed[k] = judge.traffic_speed[k] = judge.map_speed[k] = judge.quarter_steps[k] = 0.0


@kernel
def touches_then(me: Any, ego: Any, other: Any, dx: float, dy: float) -> bool:
    """True if another road user's box, its center moved to (dx, dy) from the ego's, overlaps the ego's box."""
    return boxes_overlap(
        dx,
        dy,
        ego.cos,
        ego.sin,
        0.5 * me.length,
        0.5 * me.width,
        other.cos,
        other.sin,
        0.5 * other.length,
        0.5 * other.width,
    )


@kernel
def will_touch(maps: Maps, world: WorldState, e: int, look_s: float) -> bool:
    """True if the ego's box meets another within `look_s` at constant speeds and courses."""
    ego, agents = world.egos[e], world.agents[e]
    if ego.v < STANDS_MPS:
        return False
    me = agents[0]
    vx, vy = ego.v * ego.cos, ego.v * ego.sin
    radius = math.hypot(0.5 * me.length, 0.5 * me.width)
    for slot in range(1, len(agents)):
        other = agents[slot]
        if other.kind == 0:
            continue
        dx, dy = other.x - ego.x, other.y - ego.y
        wx, wy = other.v * other.cos - vx, other.v * other.sin - vy
        reach = radius + 0.5 * (other.length + other.width)
        far = reach + look_s * math.hypot(wx, wy)
        if dx * dx + dy * dy > far * far:
            continue
        for k in range(1, 5):
            t = 0.25 * look_s * k
            if touches_then(me, ego, other, dx + wx * t, dy + wy * t) and not passes_over(maps, world, e, other, t):
                return True
    return False


@kernel
def at_fault(world: WorldState, e: int, slot: int) -> bool:
    """True if the ego is at fault in a collision: not if it stands, or is hit from behind or by a red-light runner.

    A simplified form of nuPlan's rule (a front or side collision of a moving ego counts). The runner is the car of the
    scenario of that name alone: cars of the traffic that are distracted now and then are met as all others are.
    """
    ego = world.egos[e]
    if ego.v < STANDS_MPS:
        return False
    if slot < 0:
        return True
    other = world.agents[e, slot]
    ahead = (other.x - ego.x) * ego.cos + (other.y - ego.y) * ego.sin
    from_behind = ahead < -0.25 * world.agents[e, 0].length and other.v > ego.v
    episode = world.episodes[e]
    runner = slot == episode.target and other.reckless == 1
    return not (from_behind or (runner and episode.events & tables.RED_LIGHT == 0))


@kernel
def discomfort(world: WorldState, rules: Rules, e: int) -> None:
    """Update the timers of the six comfort limits."""
    ego, judge = world.egos[e], world.judges[e]
    dt = rules.dt
    yaw = judge.yaws[4] + ego.yaw_rate * dt
    push(judge.speeds, ego.v)
    push(judge.yaws, yaw)
    accel, yaw_rate = slope(judge.speeds, dt), slope(judge.yaws, dt)
    push(judge.accels, accel)
    push(judge.accels_lat, judge.speeds[2] * yaw_rate)
    push(judge.yaw_rates, yaw_rate)
    judge.seen += 1
    for k in range(6):
        judge.comfort[k] = max(judge.comfort[k] - dt, 0.0)
    if judge.seen < 5:
        return
    if accel < ACCEL_LOW or accel > ACCEL_HIGH:
        judge.comfort[0] = rules.hold_s
    if abs(judge.accels_lat[4]) > LATERAL:
        judge.comfort[1] = rules.hold_s
    if abs(yaw_rate) > YAW_RATE:
        judge.comfort[4] = rules.hold_s
    if judge.seen < 10:
        return
    jerk_lon, jerk_lat = slope(judge.accels, dt), slope(judge.accels_lat, dt)
    if math.hypot(jerk_lon, jerk_lat) > JERK:
        judge.comfort[2] = rules.hold_s
    if abs(jerk_lon) > JERK_LON:
        judge.comfort[3] = rules.hold_s
    if abs(slope(judge.yaw_rates, dt)) > YAW_ACCEL:
        judge.comfort[5] = rules.hold_s


@kernel
def crossed(maps: Maps, world: WorldState, e: int, before: float) -> int:
    """Events of stop lines passed since the route position `before`: red light or stop sign run."""
    ego = world.egos[e]
    half = 0.5 * world.agents[e, 0].length
    route = maps.routes[world.episodes[e].route]
    # the stop line ahead of the front bumper before the step
    front = min(int(before + half), route.count - 1)
    point = maps.route_points[route.first + max(front, 0)]
    line = point.stop
    if line >= tables.FAR:
        return 0
    if point.control == 2 and ego.v < STANDS_MPS and -1.0 < line - ego.progress - half < WAITING_M:
        ego.stopped = line
    if not before + half <= line < ego.progress + half or abs(ego.d) > 4.0:
        return 0
    if point.control == 1:
        state, _ = light(maps, world, e, point.group)
        return tables.RED_LIGHT if state == RED else 0
    if point.control == 2 and abs(ego.stopped - line) > 0.5:
        return tables.STOP_SIGN
    return 0


@kernel
def roach_speed(maps: Maps, world: WorldState, e: int) -> float:
    """Roach's target speed, m/s; decreases to 0 over the last 5 m before a stop."""
    ego = world.egos[e]
    half = 0.5 * world.agents[e, 0].length
    wanted = ROACH_MPS * min(max((ego.gap - 3.0) / 5.0, 0.0), 1.0)
    route = maps.routes[world.episodes[e].route]
    point = maps.route_points[route.first + ego.index]
    if point.stop < tables.FAR:
        ahead = point.stop - ego.progress - half
        if ahead >= 0.0:
            closed = point.control == 2 and abs(ego.stopped - point.stop) > 0.5
            if point.control == 1:
                state, _ = light(maps, world, e, point.group)
                closed = state != GREEN
            if closed:
                wanted = min(wanted, ROACH_MPS * min(ahead / 5.0, 1.0))
    return wanted


@kernel
def tally(maps: Maps, world: WorldState, e: int, length: float, driven: float) -> None:
    """Accumulate the statistics for the scores.

    A step in which the ego meets nobody, speeds up, follows or waits counts as driven with the traffic.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        length: length of the route, m.
        driven: distance newly driven along it, m.
    """
    ego, judge, episode = world.egos[e], world.judges[e], world.episodes[e]
    quarter = min(int(4.0 * ego.progress / length), 3)
    judge.ego_speed[quarter] += ego.v
    compared = episode.traffic_v >= 0.0 and ego.a < SPEEDS_UP_MPS2
    if compared and episode.traffic_v > ego.v:
        compared = not is_held(maps, world, e)
    judge.traffic_speed[quarter] += min(episode.traffic_v, road_speed(maps, world, e, ASKED)) if compared else ego.v
    judge.map_speed[quarter] += episode.map_v if episode.map_v >= 0.0 else ego.v
    judge.quarter_steps[quarter] += 1.0
    if ego.outside == 1:
        judge.outside_m += driven


@kernel
def judge_step(
    maps: Maps, world: WorldState, rules: Rules, e: int, before: float, hit: int, slot: int, terms: Any
) -> float:
    """Write the events and reward terms of a step and return the reward.

    Args:
        maps: all maps.
        world: all envs.
        rules: action settings and reward.
        e: env.
        before: position along the route before the step, m.
        hit: kind of collision, one of `ego.HIT_...`.
        slot: slot of the road user that the ego hit.
        terms: (len(TERMS),) output.
    """
    ego, judge, episode = world.egos[e], world.judges[e], world.episodes[e]
    route = maps.routes[episode.route]
    dt = rules.dt
    # events
    events = crossed(maps, world, e, before)
    episode.events = events
    if hit == HIT_VEHICLE:
        events |= tables.VEHICLE
    elif hit == HIT_PEDESTRIAN:
        events |= tables.PERSON
    elif hit == HIT_STATIC:
        events |= tables.STATIC
    if hit > 0:
        judge.at_fault = 1 if at_fault(world, e, slot) else 0
    ego.off = share_off_road(maps, world, e) if ego.outside == 1 or abs(ego.lane_d) > 0.6 else 0.0
    if ego.off >= OFF_ROAD_SHARE:
        events |= tables.OFF_ROAD
    if abs(ego.d) > OFF_ROUTE_M:
        events |= tables.OFF_ROUTE
    episode.blocked = episode.blocked + dt if ego.v < STANDS_MPS else 0.0
    if episode.blocked > rules.blocked_s:
        events |= tables.BLOCKED
    if ego.progress >= route.length - 1.0:
        events |= tables.FINISHED
    if episode.steps >= episode.limit:
        events |= tables.TIMED_OUT
    episode.events = events
    # terms
    gained = max(ego.progress - ego.best, 0.0)
    ego.best = max(ego.best, ego.progress)
    limit = maps.route_points[route.first + ego.index].speed
    # the reference implementation tests for near collisions in every second frame
    judge.ttc = max(judge.ttc - dt, 0.0)
    if episode.steps % 2 == 0 and will_touch(maps, world, e, LOOK_S):
        judge.ttc = rules.hold_s
    discomfort(world, rules, e)
    uncomfortable = 0
    for k in range(6):
        uncomfortable += judge.comfort[k] > 0.0
    inside = maps.route_points[route.first + ego.index].inside == 1
    judge.offset = judge.offset + dt if abs(ego.lane_d) > CENTER_M and not inside else 0.0
    terms[0] = 100.0 * gained / route.length
    terms[1] = 0.0 if ego.outside == 1 else 1.0
    terms[2] = max(1.0 - max(ego.v - limit, 0.0) / SPEED_SCALE, 0.0)
    terms[3] = 0.5 if judge.ttc > 0.0 else 1.0
    terms[4] = 1.0 - 0.5 * uncomfortable / 6.0
    terms[5] = 0.5 if judge.offset > CENTER_S else 1.0
    terms[6] = 1.0 - abs(ego.v - roach_speed(maps, world, e)) / ROACH_MPS
    terms[7] = -0.5 * abs(ego.d)
    terms[8] = -abs(ego.psi)
    terms[9] = -1.0 if abs(ego.steer - judge.steer) > 0.01 else 0.0
    terms[10] = 0.0
    judge.steer = ego.steer
    if events:
        for k in range(10):
            if events & (1 << k):
                terms[10] += rules.ends[k]
        if events & (tables.VEHICLE | tables.PERSON | tables.STATIC | tables.RED_LIGHT | tables.STOP_SIGN):
            terms[10] += rules.speed_at_end * ego.v
    tally(maps, world, e, route.length, gained)
    # the reward
    product = rules.progress * terms[0]
    for k in range(5):
        if rules.factors[k] > 0.0:
            product *= terms[1 + k]
    total = product + terms[10] + rules.weights[4]
    for k in range(4):
        total += rules.weights[k] * terms[6 + k]
    return total
