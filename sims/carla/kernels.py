"""Kernels of the CARLA adapter: a scene of CARLA's actors as the records that all driving worlds share."""

from __future__ import annotations

import math
from typing import Any

from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import wrap
from robotrl.sims.driving.traffic.following import empty
from robotrl.sims.driving.traffic.right_of_way import walk_at
from robotrl.sims.driving.world import Maps, WorldState

WALKS_MPS = 0.1
"""Speed from which a pedestrian's heading is that of its velocity."""


@kernel
def read_ego(world: WorldState, e: int, user: Any, steer: float, accel: float, dt: float, hit: bool) -> None:
    """Take over the ego's pose and speed after a control step of `dt` s; rates are differences, as in `bev/drive`.

    A collision (`hit`) takes the speed within its tick. The speed before counts then, as in `bev/drive`: fault and
    penalties depend on it.
    """
    ego = world.egos[e]
    before, yaw = ego.v, ego.yaw
    ego.x, ego.y, ego.yaw = user.x, user.y, wrap(user.yaw)
    ego.cos, ego.sin = math.cos(ego.yaw), math.sin(ego.yaw)
    ego.v = max(user.vx * ego.cos + user.vy * ego.sin, 0.0)
    if hit:
        ego.v = max(ego.v, before)
    ego.a = (ego.v - before) / dt
    ego.yaw_rate = wrap(ego.yaw - yaw) / dt
    ego.steer, ego.accel = steer, accel


@kernel
def read_users(maps: Maps, world: WorldState, e: int, users: Any, rows: Any) -> None:
    """Take over the other road users: `users[rows[k]]` into slot k + 1; further slots are emptied.

    Lanes are found afterwards, by `roads.lane_index`.
    """
    agents = world.agents[e]
    for slot in range(1, len(agents)):
        me = agents[slot]
        empty(me)
        if slot > len(rows):
            continue
        user = users[rows[slot - 1]]
        me.kind, me.x, me.y = user.kind, user.x, user.y
        me.length, me.width = user.length, user.width
        cos, sin = math.cos(user.yaw), math.sin(user.yaw)
        speed = math.hypot(user.vx, user.vy)
        if user.kind == tables.PEDESTRIAN:
            if speed > WALKS_MPS:
                cos, sin = user.vx / speed, user.vy / speed
            me.walk = walk_at(maps, maps.maps[world.episodes[e].map], user.x, user.y)
            me.v = speed
        else:
            me.v = user.vx * cos + user.vy * sin
            me.a = user.ax * cos + user.ay * sin
        me.cos, me.sin = cos, sin
