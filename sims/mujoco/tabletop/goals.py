"""When an instruction is done, and how far it is from that: pure functions of where everything is, for all envs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.manipulation.hand import fold
from robotrl.sims.mujoco.manipulation.scene import QUARTER_TURN_RAD
from robotrl.sims.mujoco.tabletop.language import InstructionFamily, colour, is_block
from robotrl.sims.mujoco.tabletop.layout import (
    DIRECTIONS_M,
    HALF_M,
    MAT_HALF_M,
    Rows,
    spot,
)

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

POINT_M = 0.015
"""Pointing: horizontal distance of the tip from the thing's middle."""
POINT_LOW_M, POINT_HIGH_M = 0.005, 0.05
"""Pointing: the tip's height above the thing."""
LIFT_M = 0.06
"""Lifted: the thing is so far above the table."""
NEAR_M = 0.025
"""Distance of a thing's middle from where it is to be."""
NEAR_SIDE_M, FAR_SIDE_M, ASIDE_M = 0.043, 0.09, 0.022
"""Beside: least and largest distance in the direction, largest across it. Next to: least and largest distance."""
TOUCHING_M = 0.048
"""Gathered: middles at most so far apart, or so much more as corners stick out."""
STACKED_M = 0.016
"""Stacked: horizontal distance of the middles."""
LEVEL_M = 0.006
"""Height of a thing, from what it stands at where it stands."""
PUSHED_M = 0.075
"""Pushed in a direction: so far at least."""
DRIFT_M = 0.03
"""Pushed in a direction: so far across at most."""
TURNED_RAD = 0.35
"""Turned: by so much at least, modulo a quarter turn."""
TURN_DRIFT_M = 0.05
"""Turned: moved by so much at most."""
STILL_MPS = 0.05
"""Things, and the tip that points, are slower than this."""
FREE_M = 0.03
"""Let go: the fingers' ends are so far above the thing's middle, or farther beside it than fingers reach."""
BESIDE_FINGERS_M = 0.06
OFF_TABLE_M = 0.015
"""A thing that is pushed must never be so far above the table."""
METRES_PER_RAD = 0.05
"""What a radian that is left to turn counts in the distance."""
METRES_PER_TIP_M = 0.5
"""What a metre between tip and thing counts in the distance."""


class Now(NamedTuple):
    """Where everything is, in N envs; world frame, m, rad, m/s."""

    says: Rows
    """(N, 6), see `layout.Layout`."""
    pos: Array
    """(N, 6, 3) of the movable things."""
    speed: Array
    """(N, 6)."""
    yaw: Array
    """(N, 6) modulo a quarter turn."""
    mats: Array
    """(N, 3, 2)."""
    tip: Array
    """(N, 3)."""
    tip_speed: Array
    """(N,)."""
    start: Array
    """(N, 6, 2) of the movable things at the start."""
    start_yaw: Array
    """(N, 6)."""
    lifted: Flags
    """(N,) whether the thing has been off the table."""


def done(now: Now) -> Flags:
    """(N,) whether the instruction is carried out."""
    family, a, b, mat, direction, _ = now.says.T
    every = np.arange(len(family))
    own, other = now.pos[every, a], now.pos[every, b]
    begin = now.start[every, a]
    flat = now.mats[every, mat]
    still = now.speed[every, a] < STILL_MPS
    free = still & _let_go(now.tip, own)
    on_table = np.abs(own[:, 2] - HALF_M) < LEVEL_M
    put = free & on_table
    pushed = still & on_table & ~now.lifted
    goal = spot(now.says, now.pos[..., :2], now.mats, begin)
    near = _length(own[:, :2] - goal) < NEAR_M

    way = DIRECTIONS_M[direction]
    gone, apart = own[:, :2] - begin, own[:, :2] - other[:, :2]
    along, across = (gone * way).sum(axis=1), np.abs(_cross(way, gone))
    side, aside = (apart * way).sum(axis=1), np.abs(_cross(way, apart))
    distance = _length(apart)
    reach = _reach(now.yaw[every, a], a, apart) + _reach(now.yaw[every, b], b, apart)
    over = now.tip - own
    undisturbed = _length(gone) < 0.01

    tests: dict[InstructionFamily, Flags] = {
        InstructionFamily.POINT: (_length(over[:, :2]) < POINT_M)
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
        & (np.abs(own[:, 2] - other[:, 2] - 2 * HALF_M) < LEVEL_M),
        InstructionFamily.NEXT_TO: put & (distance > NEAR_SIDE_M - 0.004) & (distance < FAR_SIDE_M),
        InstructionFamily.BESIDE: put & (side > NEAR_SIDE_M - 0.004) & (side < FAR_SIDE_M) & (aside < ASIDE_M),
        InstructionFamily.GATHER: pushed & (distance < reach + TOUCHING_M - 2 * HALF_M),
        InstructionFamily.SORT: put & near & _sorted(now.pos[every, b], now.mats[every, colour(b)]),
        InstructionFamily.CLEAR: put & (np.abs(own[:, :2] - flat).max(axis=1) > MAT_HALF_M + HALF_M),
        InstructionFamily.TURN: put
        & (np.abs(fold(now.yaw[every, a] - now.start_yaw[every, a], QUARTER_TURN_RAD)) > TURNED_RAD)
        & (_length(gone) < TURN_DRIFT_M),
        InstructionFamily.CENTRE: put & near,
    }
    out = np.zeros(len(family), bool)
    for kind, passed in tests.items():
        out |= passed & (family == kind)
    return out


def distance(now: Now) -> Array:
    """(N,) how far each env is from success: metres that the thing has to go, the tip's way to it counted in part."""
    family, a, b, mat, _, _ = now.says.T
    every = np.arange(len(family))
    own = now.pos[every, a]
    goal = spot(now.says, now.pos[..., :2], now.mats, now.start[every, a])
    tip = _length(now.tip - own)
    left = _length(own[:, :2] - goal)
    left = np.where(family == InstructionFamily.POINT, 0.0, left)
    left = np.where(family == InstructionFamily.LIFT, np.maximum(LIFT_M + HALF_M - own[:, 2], 0.0), left)
    left = np.where(family == InstructionFamily.STACK, left + np.abs(own[:, 2] - 3 * HALF_M), left)
    off_mat = MAT_HALF_M + HALF_M - np.abs(own[:, :2] - now.mats[every, mat]).max(axis=1)
    left = np.where(family == InstructionFamily.CLEAR, np.maximum(off_mat, 0.0), left)
    turn = TURNED_RAD - np.abs(fold(now.yaw[every, a] - now.start_yaw[every, a], QUARTER_TURN_RAD))
    left = np.where(family == InstructionFamily.TURN, METRES_PER_RAD * np.maximum(turn, 0.0), left)
    second = _length(now.pos[every, b, :2] - now.mats[every, colour(b)])
    left = np.where(family == InstructionFamily.SORT, left + second, left)
    return left + METRES_PER_TIP_M * tip


def _let_go(tip: Array, own: Array) -> Flags:
    return (tip[:, 2] - own[:, 2] > FREE_M) | (_length(tip[:, :2] - own[:, :2]) > BESIDE_FINGERS_M)


def _sorted(pos: Array, mat: Array) -> Flags:
    """(N,) whether the second thing of a pair lies on its mat."""
    return (_length(pos[:, :2] - mat) < NEAR_M) & (np.abs(pos[:, 2] - HALF_M) < LEVEL_M)


def _length(vectors: Array) -> Array:
    return np.sqrt((vectors**2).sum(axis=-1))


def _cross(one: Array, other: Array) -> Array:
    return one[:, 0] * other[:, 1] - one[:, 1] * other[:, 0]


def _reach(yaw: Array, movable: Rows, towards: Array) -> Array:
    """(N,) how far a thing's outline lies from its middle in a direction: a can's radius, a block's side or corner."""
    angle = fold(np.arctan2(towards[:, 1], towards[:, 0]) - yaw, QUARTER_TURN_RAD)
    return np.where(is_block(movable), HALF_M / np.cos(angle), HALF_M)
