"""Forward simulation of a car's candidates: 4 s at 10 Hz, a tracker on a kinematic bicycle, others at constant control.

After RIFT (Chen et al. 2025): every candidate is driven, not only the one that the car takes, and gets a discounted
return that stops at its first collision. The terms of the reward are summed one by one, so that weights can be chosen
afterwards.
"""

from __future__ import annotations

import math
from typing import Any

from robotrl.sims.bev.traffic.lane_changes import SIDEWAYS_MPS
from robotrl.sims.bev.traffic.learned.features import line_point, offset_of
from robotrl.sims.bev.traffic.learned.layout import PIECE_S, PIECES
from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import FRONT_M, REAR_M, STEER_GAIN, bicycle, boxes_overlap, pursuit, wrap
from robotrl.sims.driving.traffic.ego import on_road
from robotrl.sims.driving.traffic.following import HARDEST
from robotrl.sims.driving.traffic.heights import are_apart
from robotrl.sims.driving.world import Maps, WorldState

STEPS, TICK_S = 40, 0.1
"""Steps of a forward simulation, and their duration."""
LOOK = 10
"""Look-ahead of the tracker, steps."""
DISCOUNT = 0.98
"""Discount of each step."""
INFLATE_M = 0.25
"""By how much the boxes of others are enlarged on each side."""
HARDEST_ACCEL = 3.0
"""Largest acceleration of the tracker, m/s^2."""
ACCEL_LOW, ACCEL_HIGH, ASIDE_MPS2, JERK, YAW_RATE = -4.05, 2.40, 4.89, 4.13, 0.95
"""Comfort limits, nuPlan's: longitudinal and lateral acceleration, m/s^2, longitudinal jerk, m/s^3, yaw rate, rad/s."""
SLOW_MPS, FAST_MPS = 3.0, 20.0
"""Range of speeds that are rewarded."""
KEEPS_S = 2.0
"""Time gap below which a car is near to the one ahead."""
OVER_M = 0.5
"""Distance behind a closed place of its way from which a car has passed it."""
TERMS = (
    "collision",
    "collision_speed",
    "off_road",
    "comfort",
    "alignment",
    "centering",
    "speed",
    "time",
    "passed_closed",
    "near",
)
"""Terms of the reward, each summed with the discount. `collision` is 1 and `collision_speed` the speed, m/s, in the
step of the first collision; in each step, `off_road` is 1 with a corner off the road, `comfort` the number of limits
exceeded, `alignment` the cosine of the heading error, `centering` the distance from the line's center as a fraction of
half its width, at most 1, `speed` the speed from 3 to 20 m/s and else 0, `time` 1, `passed_closed` 1 beyond where the
way is closed, and `near` how much of a time gap of 2 s is missing, 0 to 1."""


@kernel
def steer_of(curvature: float) -> float:
    """Steering action, -1 to 1, with which the center of the kinematic bicycle drives a curvature, 1/m."""
    beta = math.asin(min(max(curvature * REAR_M, -0.9), 0.9))
    return min(max(math.atan(math.tan(beta) * (FRONT_M + REAR_M) / REAR_M) / STEER_GAIN, -1.0), 1.0)


@kernel
def lane_curvature(maps: Maps, me: Any) -> float:
    """Curvature of a road user's lane at its place, 1/m; 0 off the lanes."""
    if me.lane < 0:
        return 0.0
    lane = maps.lanes[me.lane]
    i = min(max(int(me.s * lane.per_m), 0), lane.count - 2)
    a, b = maps.points[lane.first + i], maps.points[lane.first + i + 1]
    return (a.cos * b.sin - a.sin * b.cos) * lane.per_m


@kernel
def forecast(maps: Maps, world: WorldState, e: int, out: Any) -> None:
    """Write the poses of all road users in env `e` over the next steps, at their present steering and acceleration.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        out: (A, STEPS, 4) x, y, cos and sin after each step.
    """
    agents = world.agents[e]
    for slot in range(len(agents)):
        me = agents[slot]
        if me.kind == 0:
            continue
        steer = world.egos[e].steer if slot == 0 else steer_of(lane_curvature(maps, me))
        x, y, yaw, v = me.x, me.y, math.atan2(me.sin, me.cos), me.v
        for k in range(STEPS):
            x, y, yaw, v = bicycle(x, y, yaw, v, steer, me.a, TICK_S)
            out[slot, k, 0], out[slot, k, 1] = x, y
            out[slot, k, 2], out[slot, k, 3] = math.cos(yaw), math.sin(yaw)


@kernel
def near_slots(maps: Maps, world: WorldState, e: int, slot: int, near: Any) -> int:
    """Write the slots that a car could meet within the forward simulation, and return their number."""
    agents = world.agents[e]
    me, count = agents[slot], 0
    span = STEPS * TICK_S
    for other_slot in range(len(agents)):
        other = agents[other_slot]
        if other.kind == 0 or other_slot == slot:
            continue
        # the speeds may grow
        reach = 40.0 + span * (me.v + other.v)
        dx, dy = other.x - me.x, other.y - me.y
        if dx * dx + dy * dy < reach * reach and not are_apart(maps, world, e, me, other):
            near[count] = other_slot
            count += 1
    return count


@kernel
def planned(profile: Any, k: int, v: float) -> tuple[float, float]:
    """Speed, m/s, after step k of a profile (PIECES,) and way, m, in it, from the speed before; constant afterwards."""
    at = int(k * TICK_S / PIECE_S + 1.0e-6)
    after = max(v + profile[at] * TICK_S, 0.0) if at < PIECES else v
    return after, 0.5 * (v + after) * TICK_S


@kernel
def meets_box(x: float, y: float, cos: float, sin: float, me: Any, at: Any, other: Any) -> tuple[bool, float]:
    """Whether a car touches the inflated box of another at its forecast pose, and the gap, m, if it is ahead; else FAR.

    Someone who comes up from behind in the same direction does not count: at constant control he does not brake.
    """
    dx, dy = at[0] - x, at[1] - y
    ahead, aside = dx * cos + dy * sin, abs(dy * cos - dx * sin)
    half, width = 0.5 * other.length + INFLATE_M, 0.5 * other.width + INFLATE_M
    reach = 0.5 * (me.length + me.width) + half + width
    gap = tables.FAR
    if ahead > 0.0 and aside < 0.5 * me.width + width:
        gap = max(ahead - 0.5 * me.length - half, 0.0)
    if dx * dx + dy * dy > reach * reach:
        return False, gap
    if ahead < 0.0 and cos * at[2] + sin * at[3] > 0.5:
        return False, gap
    touches = boxes_overlap(dx, dy, cos, sin, 0.5 * me.length, 0.5 * me.width, at[2], at[3], half, width)
    return touches, gap


@kernel
def touches_parked_car(maps: Maps, world: WorldState, e: int, me: Any, x: float, y: float, c: float, s: float) -> bool:
    """True if a car at a pose touches a parked car."""
    row = maps.maps[world.episodes[e].map]
    for k in range(row.parked, row.parked + row.parkeds):
        box = maps.parked[k]
        dx, dy = box.x - x, box.y - y
        if dx * dx + dy * dy < 100.0 and boxes_overlap(
            dx, dy, c, s, 0.5 * me.length, 0.5 * me.width, box.cos, box.sin, 0.5 * box.length, 0.5 * box.width
        ):
            return True
    return False


@kernel
def is_off_road(maps: Maps, row: Any, me: Any, x: float, y: float, c: float, s: float) -> bool:
    """True if a corner of a car's box at a pose is off the drivable surface."""
    for i in range(2):
        u = (i - 0.5) * me.length
        for j in range(2):
            w = (j - 0.5) * me.width
            if not on_road(maps, row, x + u * c - w * s, y + u * s + w * c):
                return True
    return False


@kernel
def roll(
    maps: Maps,
    world: WorldState,
    e: int,
    slot: int,
    line: int,
    target: int,
    profile: Any,
    closed: float,
    forecasts: Any,
    near: Any,
    count: int,
    out: Any,
) -> None:
    """Drive a candidate with the tracker, and write the sums of its reward's terms.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        slot: slot of the car.
        line: its line, 0 to 2.
        target: lane of the line.
        profile: (PIECES,) accelerations, m/s^2.
        closed: distance from its front to where its way is closed, m; FAR if it is open.
        forecasts: (A, STEPS, 4) from `forecast`.
        near: slots of others that it may meet.
        count: their number.
        out: (len(TERMS),).
    """
    me, row = world.agents[e, slot], maps.maps[world.episodes[e].map]
    for k in range(len(TERMS)):
        out[k] = 0.0
    begin = me.s * maps.lanes[target].length / maps.lanes[me.lane].length
    offset = offset_of(maps, me, line, target)
    x, y, yaw, v, a = me.x, me.y, math.atan2(me.sin, me.cos), me.v, me.a
    # the plan runs ahead of the car by the tracker's look-ahead
    plan_v, plan_way = me.v, 0.0
    for k in range(LOOK):
        plan_v, way = planned(profile, k, plan_v)
        plan_way += way
    at, discount = begin, 1.0
    for k in range(STEPS):
        plan_v, way = planned(profile, k + LOOK, plan_v)
        px, py, pc, ps, _ = line_point(maps, world, e, slot, target, begin + plan_way)
        aside = max(abs(offset) - SIDEWAYS_MPS * TICK_S * (k + LOOK), 0.0)
        aside = aside if offset > 0.0 else -aside
        plan_way += way
        c, s = math.cos(yaw), math.sin(yaw)
        dx, dy = px - aside * ps - x, py + aside * pc - y
        f, left = dx * c + dy * s, dy * c - dx * s
        look_s = LOOK * TICK_S
        accel = 2.0 * (max(f, 0.0) - v * look_s) / (look_s * look_s)
        accel = min(max(accel, -HARDEST), HARDEST_ACCEL)
        before, turned = v, yaw
        x, y, yaw, v = bicycle(x, y, yaw, v, pursuit(f, left), accel, TICK_S)
        c, s = math.cos(yaw), math.sin(yaw)
        accel, rate = (v - before) / TICK_S, wrap(yaw - turned) / TICK_S
        # its place on the line: one step of Newton's method from the last one
        qx, qy, qc, qs, width = line_point(maps, world, e, slot, target, at)
        at += (x - qx) * qc + (y - qy) * qs
        qx, qy, qc, qs, width = line_point(maps, world, e, slot, target, at)
        off_center = abs((y - qy) * qc - (x - qx) * qs)
        hit, gap = touches_parked_car(maps, world, e, me, x, y, c, s), tables.FAR
        for j in range(count):
            touched, ahead = meets_box(x, y, c, s, me, forecasts[near[j], k], world.agents[e, near[j]])
            hit, gap = hit or touched, min(gap, ahead)
        if hit:
            out[0] += discount
            out[1] += discount * v
            return
        if is_off_road(maps, row, me, x, y, c, s):
            out[2] += discount
        exceeded = 0.0
        if accel < ACCEL_LOW or accel > ACCEL_HIGH:
            exceeded += 1.0
        if abs(v * rate) > ASIDE_MPS2:
            exceeded += 1.0
        if abs(accel - a) > JERK * TICK_S:
            exceeded += 1.0
        if abs(rate) > YAW_RATE:
            exceeded += 1.0
        a = accel
        out[3] += discount * exceeded
        out[4] += discount * (c * qc + s * qs)
        out[5] += discount * min(2.0 * off_center / width, 1.0)
        if SLOW_MPS <= v <= FAST_MPS:
            out[6] += discount * v
        out[7] += discount
        if v > 0.1 and at - begin > closed + OVER_M:
            out[8] += discount
        out[9] += discount * max(1.0 - gap / (KEEPS_S * max(v, 1.0)), 0.0)
        discount *= DISCOUNT
