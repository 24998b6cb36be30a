"""Steps of the envs of `bev/warp` in which the ego, too, is where the log has it, as if the log were driven."""

from __future__ import annotations

import math
from typing import Any

from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import FRONT_M, REAR_M, STEER_GAIN, pedal, wrap
from robotrl.sims.driving.judge import STANDS_MPS, judge_step
from robotrl.sims.driving.kernels import settle
from robotrl.sims.driving.rewards import Rules
from robotrl.sims.driving.traffic import ego
from robotrl.sims.driving.world import Maps, WorldState
from robotrl.sims.warp.replay import ReplayArrays, set_lights

locate, count_wait = ego.locate, ego.count_wait


@kernel
def steer_of(yaw_rate: float, v: float) -> float:
    """Steering action at which the bicycle model turns by `yaw_rate` rad/s at the speed `v` m/s; 0 where it stands."""
    if v < STANDS_MPS:
        return 0.0
    beta = math.asin(min(max(yaw_rate * REAR_M / v, -0.9), 0.9))
    return min(max(math.atan(math.tan(beta) * (FRONT_M + REAR_M) / REAR_M) / STEER_GAIN, -1.0), 1.0)


@kernel
def trace_range(
    maps: Maps,
    world: WorldState,
    log: ReplayArrays,
    replays: Any,
    running: Any,
    rules: Rules,
    last: Any,
    low: int,
    high: int,
) -> None:
    """Put the egos of the envs from `low` to `high` (excluded) that are `running` (N,) where the log has them.

    The other road users have moved. Reward terms and events are computed, because observations depend on what happened.
    """
    for e in range(low, high):
        if not running[e]:
            continue
        episode, state, me = world.episodes[e], replays[e], world.egos[e]
        f = log.clips[state.clip].first + state.at
        before, v, yaw = me.progress, me.v, me.yaw
        me.x, me.y, me.yaw, me.v = log.poses[f, 0], log.poses[f, 1], log.poses[f, 2], log.poses[f, 3]
        me.cos, me.sin = math.cos(me.yaw), math.sin(me.yaw)
        me.a, me.yaw_rate = (me.v - v) / rules.dt, wrap(me.yaw - yaw) / rules.dt
        me.accel, me.steer = pedal(me.a, rules.throttle), steer_of(me.yaw_rate, me.v)
        locate(maps, world, e)
        count_wait(maps, world, e, rules.dt)
        episode.steps += 1
        episode.time += rules.dt
        set_lights(maps, world, log, e, f)
        settle(maps, world, e)
        judge_step(maps, world, rules, e, before, 0, -1, last[e])
