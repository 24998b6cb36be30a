"""Success conditions of instructions and distances to success, as pure functions of the scene state of all envs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from robotrl.sims.mujoco.engine.arrays import Array, ArrayNamespace
from robotrl.sims.mujoco.manipulation.hand import fold
from robotrl.sims.mujoco.manipulation.scene import QUARTER_TURN_RAD
from robotrl.sims.mujoco.tabletop.language import InstructionFamily, color, is_block
from robotrl.sims.mujoco.tabletop.layout import DIRECTIONS_M, HALF_M, MAT_HALF_M, spot

POINT_M = 0.015
"""Pointing: largest horizontal distance of the tip from the object's centre."""
POINT_LOW_M, POINT_HIGH_M = 0.005, 0.05
"""Pointing: range of the tip's height above the object."""
LIFT_M = 0.06
"""Lifted: smallest height of the object above the table."""
NEAR_M = 0.025
"""Largest distance of an object's centre from its goal."""
NEAR_SIDE_M, FAR_SIDE_M, ASIDE_M = 0.043, 0.09, 0.022
"""Beside: smallest and largest distance in the direction, largest offset across it; next to: the first two."""
TOUCHING_M = 0.048
"""Gathered: largest distance between the centres, plus an allowance for protruding corners."""
STACKED_M = 0.016
"""Stacked: largest horizontal distance between the centres."""
LEVEL_M = 0.006
"""Largest deviation of an object's height from its resting height at the goal."""
PUSHED_M = 0.075
"""Pushed in a direction: smallest distance along it."""
DRIFT_M = 0.03
"""Pushed in a direction: largest distance across it."""
TURNED_RAD = 0.35
"""Turned: smallest rotation, modulo a quarter turn."""
TURN_DRIFT_M = 0.05
"""Turned: largest displacement."""
STILL_MPS = 0.05
"""Largest speed of the objects, and of the tip when pointing."""
FREE_M = 0.03
"""Released: smallest height of the fingertips above the object's centre, unless they are out of reach beside it."""
BESIDE_FINGERS_M = 0.06
OFF_TABLE_M = 0.015
"""Pushing: height above the table at which an object counts as lifted, which pushing must avoid."""
METERS_PER_RAD = 0.05
"""Weight of the remaining rotation, m per rad, in the distance."""
METERS_PER_TIP_M = 0.5
"""Weight of the distance between tip and object in the distance."""


class SceneState(NamedTuple):
    """Scene state of N envs; world frame, m, rad, m/s."""

    instruction_ids: Array
    """(N, 6) instruction, see `layout.TabletopStarts.instruction_ids`."""
    pos: Array
    """(N, 6, 3) positions of the movable objects."""
    speed: Array
    """(N, 6) speeds of the movable objects."""
    yaw: Array
    """(N, 6) yaws of the movable objects, modulo a quarter turn."""
    mats: Array
    """(N, 3, 2) positions of the mats."""
    tip: Array
    """(N, 3) tip position."""
    tip_speed: Array
    """(N,) tip speed."""
    start: Array
    """(N, 6, 2) positions of the movable objects at the start."""
    start_yaw: Array
    """(N, 6) yaws of the movable objects at the start."""
    lifted: Array
    """(N,) true if the instruction's object has been off the table."""


def done(now: SceneState, xp: ArrayNamespace = np, directions: Array = DIRECTIONS_M) -> Array:
    """Success flags (N,): the instruction is carried out; `directions` is `DIRECTIONS_M` as an array of `xp`."""
    family, a, b, mat, direction, _ = now.instruction_ids.T
    every = xp.arange(len(family), device=now.pos.device)
    own, other = now.pos[every, a], now.pos[every, b]
    begin = now.start[every, a]
    flat = now.mats[every, mat]
    still = now.speed[every, a] < STILL_MPS
    free = still & _let_go(now.tip, own, xp)
    on_table = xp.abs(own[:, 2] - HALF_M) < LEVEL_M
    put = free & on_table
    pushed = still & on_table & ~now.lifted
    goal = spot(now.instruction_ids, now.pos[..., :2], now.mats, begin, xp, directions)
    near = _length(own[:, :2] - goal, xp) < NEAR_M

    way = directions[direction]
    gone, apart = own[:, :2] - begin, own[:, :2] - other[:, :2]
    along, across = (gone * way).sum(axis=1), xp.abs(_cross(way, gone))
    side, aside = (apart * way).sum(axis=1), xp.abs(_cross(way, apart))
    distance = _length(apart, xp)
    reach = _reach(now.yaw[every, a], a, apart, xp) + _reach(now.yaw[every, b], b, apart, xp)
    over = now.tip - own
    undisturbed = _length(gone, xp) < 0.01

    tests: dict[InstructionFamily, Array] = {
        InstructionFamily.POINT: (_length(over[:, :2], xp) < POINT_M)
        & (over[:, 2] > HALF_M + POINT_LOW_M)
        & (over[:, 2] < HALF_M + POINT_HIGH_M)
        & (now.tip_speed < STILL_MPS)
        & undisturbed,
        InstructionFamily.LIFT: own[:, 2] - HALF_M > LIFT_M,
        InstructionFamily.PUSH_TO: pushed & near,
        InstructionFamily.PUSH: pushed & (along > PUSHED_M) & (across < DRIFT_M),
        InstructionFamily.PUT_ON: put & near,
        InstructionFamily.STACK: free
        & (distance < STACKED_M)
        & (xp.abs(own[:, 2] - other[:, 2] - 2 * HALF_M) < LEVEL_M),
        InstructionFamily.NEXT_TO: put & (distance > NEAR_SIDE_M - 0.004) & (distance < FAR_SIDE_M),
        InstructionFamily.BESIDE: put & (side > NEAR_SIDE_M - 0.004) & (side < FAR_SIDE_M) & (aside < ASIDE_M),
        InstructionFamily.GATHER: pushed & (distance < reach + TOUCHING_M - 2 * HALF_M),
        InstructionFamily.SORT: put & near & _sorted(now.pos[every, b], now.mats[every, color(b)], xp),
        InstructionFamily.CLEAR: put & (xp.max(xp.abs(own[:, :2] - flat), axis=1) > MAT_HALF_M + HALF_M),
        InstructionFamily.TURN: put
        & (xp.abs(fold(now.yaw[every, a] - now.start_yaw[every, a], QUARTER_TURN_RAD, xp)) > TURNED_RAD)
        & (_length(gone, xp) < TURN_DRIFT_M),
        InstructionFamily.CENTRE: put & near,
    }
    out = xp.zeros_like(now.lifted)
    for kind, passed in tests.items():
        out |= passed & (family == kind)
    return out


def distance(now: SceneState, xp: ArrayNamespace = np, directions: Array = DIRECTIONS_M) -> Array:
    """Distance to success (N,), m: the object's remaining path plus the weighted distance of the tip to it."""
    family, a, b, mat, _, _ = now.instruction_ids.T
    every = xp.arange(len(family), device=now.pos.device)
    own = now.pos[every, a]
    goal = spot(now.instruction_ids, now.pos[..., :2], now.mats, now.start[every, a], xp, directions)
    tip = _length(now.tip - own, xp)
    left = _length(own[:, :2] - goal, xp)
    left = xp.where(family == InstructionFamily.POINT, 0.0, left)
    left = xp.where(family == InstructionFamily.LIFT, xp.clip(LIFT_M + HALF_M - own[:, 2], 0.0, None), left)
    left = xp.where(family == InstructionFamily.STACK, left + xp.abs(own[:, 2] - 3 * HALF_M), left)
    off_mat = MAT_HALF_M + HALF_M - xp.max(xp.abs(own[:, :2] - now.mats[every, mat]), axis=1)
    left = xp.where(family == InstructionFamily.CLEAR, xp.clip(off_mat, 0.0, None), left)
    turn = TURNED_RAD - xp.abs(fold(now.yaw[every, a] - now.start_yaw[every, a], QUARTER_TURN_RAD, xp))
    left = xp.where(family == InstructionFamily.TURN, METERS_PER_RAD * xp.clip(turn, 0.0, None), left)
    second = _length(now.pos[every, b, :2] - now.mats[every, color(b)], xp)
    left = xp.where(family == InstructionFamily.SORT, left + second, left)
    return left + METERS_PER_TIP_M * tip


def _let_go(tip: Array, own: Array, xp: ArrayNamespace) -> Array:
    return (tip[:, 2] - own[:, 2] > FREE_M) | (_length(tip[:, :2] - own[:, :2], xp) > BESIDE_FINGERS_M)


def _sorted(pos: Array, mat: Array, xp: ArrayNamespace) -> Array:
    """Flags (N,): the object lies on its mat."""
    return (_length(pos[:, :2] - mat, xp) < NEAR_M) & (xp.abs(pos[:, 2] - HALF_M) < LEVEL_M)


def _length(vectors: Array, xp: ArrayNamespace) -> Array:
    return xp.sqrt((vectors**2).sum(axis=-1))


def _cross(one: Array, other: Array) -> Array:
    return one[:, 0] * other[:, 1] - one[:, 1] * other[:, 0]


def _reach(yaw: Array, movable: Array, towards: Array, xp: ArrayNamespace) -> Array:
    """Extent (N,) of an object's outline from its centre in a direction: a can's radius, a block's side or corner."""
    angle = fold(xp.atan2(towards[:, 1], towards[:, 0]) - yaw, QUARTER_TURN_RAD, xp)
    return xp.where(is_block(movable), HALF_M / xp.cos(angle), HALF_M)
