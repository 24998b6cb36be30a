"""Start states of the tabletop: instruction, objects and their poses, each a function of the start id alone.

Objects and mats (three and two by default), including those of the instruction, occupy some of eight places on the
table. Several layouts are drawn; the first one that leaves the instruction's path free is used.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import check_count, out_of_range
from robotrl.fn.random import counter_rng
from robotrl.sims.mujoco.engine import arrays
from robotrl.sims.mujoco.engine.task import Ids
from robotrl.sims.mujoco.tabletop.language import (
    MATS,
    MOVABLES,
    PUSHES,
    Composition,
    Compositions,
    InstructionFamily,
    color,
    compositions,
)

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

HALF_M = 0.02
"""Half edge length of a block; radius and half height of a can."""
MAT_HALF_M = 0.04
THINGS = 3
"""Default number of objects on the table."""
MATS_LAID = 2
"""Default number of mats on the table."""
PLACES_M = tuple((x, y) for x in (0.40, 0.54) for y in (-0.18, -0.06, 0.06, 0.18))
JITTER_M = 0.015
"""Largest offset of an object from its place, along x and along y."""
TURN_RAD = 0.6
"""Largest rotation of an object, either way."""
MIDDLE_M = (0.47, 0.0)
"""x and y of the layout's centre, world frame."""
AWAY_M = 2.0
"""x of objects that are not on the table, outside all camera views."""
TIP_LOW_M, TIP_HIGH_M = (0.40, -0.12, 0.12), (0.54, 0.12, 0.18)
TIP_YAW_RAD = 0.3
PUSH_M = 0.10
"""Goal distance of a push in a direction."""
BESIDE_M = 0.065
"""Goal distance between the centres of two objects side by side."""
ROOM_M = 0.055
"""Clearance of other objects from the instruction's path and goal."""
RUN_UP_M = 0.07
"""Distance behind the object's centre at which a push begins."""
TRIES = 6
DIRECTIONS_M = np.array([(0.0, 1.0), (0.0, -1.0), (1.0, 0.0), (-1.0, 0.0)])
"""Unit vectors (x, y) of left, right, forward and back."""
_SEED = 0x7AB1E70
_STREAMS = 2 + 2 * len(MOVABLES) + len(MATS) + 4


class TabletopStarts(NamedTuple):
    """Start states; arrays (n, ...)."""

    instruction_ids: Rows
    """(n, 6) instruction: family, a, b, mat, direction (see `language.Composition`) and sentence template."""
    pos: Array
    """(n, 6, 2) positions of the movable objects, m; absent ones are placed out of sight."""
    yaw: Array
    """(n, 6) yaws of the movable objects, rad."""
    here: NDArray[np.bool_]
    """(n, 6) true for objects on the table."""
    mats: Array
    """(n, 3, 2) positions of the mats, m."""
    mats_here: NDArray[np.bool_]
    """(n, 3) true for mats on the table."""
    tip: Array
    """(n, 4) position and yaw of the tip."""


class Deck(NamedTuple):
    """Compositions to draw from, and the numbers of objects and mats on the table."""

    rows: Rows
    """(C, 5) family, a, b, mat, direction; grouped by family."""
    first: Rows
    """(F,) first row of each family."""
    number: Rows
    """(F,) number of rows of each family."""
    things: int
    """Number of objects on the table."""
    mats: int
    """Number of mats on the table."""


def deck(
    families: tuple[InstructionFamily, ...], which: Compositions, things: int = THINGS, mats: int = MATS_LAID
) -> Deck:
    """Build the set of compositions that starts draw from.

    Args:
        families: instruction families.
        which: "seen", "held-out" or "all" compositions.
        things: number of objects on the table.
        mats: number of mats on the table.

    Raises:
        ConfigError: too many objects or mats for the table, or fewer than an instruction needs.
    """
    parts: list[tuple[Composition, ...]] = [compositions(family, which) for family in families]
    for family, part in zip(families, parts, strict=True):
        need = 2 if part[0].b >= 0 else 1
        check_count("things", things, need, len(MOVABLES), f"as many as {family.title!r} needs, a number")
        need = 2 if family == InstructionFamily.SORT else int(part[0].mat >= 0)
        check_count("mats", mats, need, len(MATS), f"as many as {family.title!r} needs, a number")
    if things + mats > len(PLACES_M):
        raise out_of_range("things and mats", things + mats, f"{len(PLACES_M)} together at most, one on each place")
    count = np.array([len(part) for part in parts], np.int64)
    rows = np.array([list(one) for part in parts for one in part], np.int64)
    return Deck(rows, np.concatenate([[0], np.cumsum(count)[:-1]]), count, things, mats)


def lay(ids: Ids, cards: Deck) -> TabletopStarts:
    """Start states for the ids (n,); the family is the id modulo the number of families."""
    u = counter_rng.uniform(_SEED, ids, _STREAMS)
    n, every = len(u), np.arange(len(u))
    kind = ids % len(cards.number)
    row = cards.first[kind] + (u[:, 0] * cards.number[kind]).astype(np.int64)
    instruction_ids = np.concatenate([cards.rows[row], (u[:, 1:2] * 2).astype(np.int64)], axis=1)
    family, a, b, mat, _, _ = instruction_ids.T
    at = 2

    wanted = u[:, at : at + len(MOVABLES)].copy()
    wanted[every, a] = -2
    wanted[b >= 0, b[b >= 0]] = -1
    things = np.argsort(wanted, axis=1, kind="stable")[:, : cards.things]
    at += len(MOVABLES)
    asked = u[:, at : at + len(MATS)].copy()
    asked[mat >= 0, mat[mat >= 0]] = -2
    sorts = family == InstructionFamily.SORT
    for which in (a, b):
        asked[every[sorts], color(which[sorts])] = -1
    flat = np.argsort(asked, axis=1, kind="stable")[:, : cards.mats]
    at += len(MATS)
    yaw = TURN_RAD * (2 * u[:, at : at + len(MOVABLES)] - 1)
    at += len(MOVABLES)
    low, high = np.array([*TIP_LOW_M, -TIP_YAW_RAD]), np.array([*TIP_HIGH_M, TIP_YAW_RAD])
    tip = low + (high - low) * u[:, at : at + 4]

    here, mats_here = np.zeros((n, len(MOVABLES)), bool), np.zeros((n, len(MATS)), bool)
    here[every[:, None], things] = True
    mats_here[every[:, None], flat] = True
    pos, mats = np.zeros((n, len(MOVABLES), 2)), np.zeros((n, len(MATS), 2))
    pos[:, :, 0], pos[:, :, 1] = AWAY_M, 0.2 * np.arange(len(MOVABLES))
    mats[:, :, 0], mats[:, :, 1] = AWAY_M, -0.2 - 0.2 * np.arange(len(MATS))
    found = TabletopStarts(instruction_ids, pos, yaw, here, mats, mats_here, tip)
    open_ = every
    for attempt in range(TRIES):
        places = _places(ids[open_], attempt, cards.things + cards.mats)
        pos[open_[:, None], things[open_]] = places[:, : cards.things]
        mats[open_[:, None], flat[open_]] = places[:, cards.things :]
        on = open_[family[open_] == InstructionFamily.CLEAR]
        pos[on, a[on]] = mats[on, mat[on]]
        open_ = open_[~is_free(found, open_)]
        if not len(open_):
            break
    return found


def _places(ids: Ids, attempt: int, count: int) -> Array:
    """Places (n, count, 2) of the objects, then of the mats."""
    u = counter_rng.uniform(_SEED + 1 + attempt, ids, len(PLACES_M) + 2 * count)
    order = np.argsort(u[:, : len(PLACES_M)], axis=1)[:, :count]
    jitter = u[:, len(PLACES_M) :].reshape(-1, count, 2)
    return np.asarray(PLACES_M)[order] + JITTER_M * (2 * jitter - 1)


def spot(
    instruction_ids: arrays.Array,
    pos: arrays.Array,
    mats: arrays.Array,
    start: arrays.Array,
    xp: arrays.ArrayNamespace = np,
    directions: arrays.Array = DIRECTIONS_M,
) -> arrays.Array:
    """Goal position (n, 2) of the instruction's object; its present position if the goal is not a single point.

    Args:
        instruction_ids: (n, 6) instruction, see `TabletopStarts`.
        pos: (n, 6, 2) present positions of the movable objects.
        mats: (n, 3, 2) positions of the mats.
        start: (n, 2) position of the instruction's object at the start.
        xp: functions of the arrays.
        directions: `DIRECTIONS_M` as such an array.
    """
    family, a, b, mat, direction, _ = instruction_ids.T
    every = xp.arange(len(instruction_ids), device=pos.device)
    own, other = pos[every, a], pos[every, b]
    on_mat = (family == InstructionFamily.PUSH_TO) | (family == InstructionFamily.PUT_ON)
    goal = xp.where(on_mat[:, None], mats[every, mat], own)
    goal = xp.where((family == InstructionFamily.SORT)[:, None], mats[every, color(a)], goal)
    way = directions[direction]
    goal = xp.where((family == InstructionFamily.PUSH)[:, None], start + PUSH_M * way, goal)
    goal = xp.where((family == InstructionFamily.BESIDE)[:, None], other + BESIDE_M * way, goal)
    goal = xp.where((family == InstructionFamily.STACK)[:, None], other, goal)
    zero = xp.zeros_like(own[:, 0])
    middle = xp.stack([zero + MIDDLE_M[0], zero + MIDDLE_M[1]], axis=1)
    goal = xp.where((family == InstructionFamily.CENTRE)[:, None], middle, goal)
    apart = own - other
    away = apart / xp.clip(xp.sqrt((apart**2).sum(axis=1, keepdims=True)), 1e-9, None)
    goal = xp.where((family == InstructionFamily.NEXT_TO)[:, None], other + BESIDE_M * away, goal)
    return xp.where((family == InstructionFamily.GATHER)[:, None], other + 2 * HALF_M * away, goal)


def is_free(layout: TabletopStarts, rows: Rows) -> NDArray[np.bool_]:
    """Flags (len(rows),) of layouts in which no other object blocks the path of a push or the goal of a placement."""
    instruction_ids = layout.instruction_ids[rows]
    family, a, b = instruction_ids[:, 0], instruction_ids[:, 1], instruction_ids[:, 2]
    every = np.arange(len(rows))
    pos = layout.pos[rows]
    begin = pos[every, a]
    end = spot(instruction_ids, pos, layout.mats[rows], begin)
    way = end - begin
    length = np.sqrt((way**2).sum(axis=1, keepdims=True))
    along = way / np.maximum(length, 1e-9)
    pushed = np.isin(family, PUSHES)
    # for carried objects only the goal must be free
    first = np.where(pushed[:, None], begin - RUN_UP_M * along, end)
    span = np.where(pushed, length[:, 0] + RUN_UP_M, 0.0)
    to = pos - first[:, None]
    u = np.clip((to * along[:, None]).sum(axis=2), 0.0, span[:, None])
    off = np.sqrt(((to - u[..., None] * along[:, None]) ** 2).sum(axis=2))
    off[every, a] = np.inf
    off[every[b >= 0], b[b >= 0]] = np.inf
    settled = np.isin(
        family, (InstructionFamily.POINT, InstructionFamily.LIFT, InstructionFamily.TURN, InstructionFamily.CLEAR)
    )
    return settled | (off > ROOM_M).all(axis=1)
