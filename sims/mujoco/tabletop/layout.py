"""Starts of the tabletop: which instruction, which things, and where they stand; each a function of its id alone.

Things and mats lie on the table, three and two unless asked for otherwise, on some of eight places, those of the
instruction among them. Of some layouts the first is taken that leaves the instruction's way free.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import check_count, out_of_range
from robotrl.fn.random import counter_rng
from robotrl.sims.mujoco.engine.task import Ids
from robotrl.sims.mujoco.tabletop.language import (
    MATS,
    MOVABLES,
    PUSHES,
    Composition,
    Compositions,
    InstructionFamily,
    colour,
    compositions,
)

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

HALF_M = 0.02
"""Half an edge of a block; radius and half height of a can."""
MAT_HALF_M = 0.04
THINGS = 3
"""Things on the table, unless asked for otherwise."""
MATS_LAID = 2
"""Mats on it, unless asked for otherwise."""
PLACES_M = tuple((x, y) for x in (0.40, 0.54) for y in (-0.18, -0.06, 0.06, 0.18))
JITTER_M = 0.015
"""Things stand so far off their places at most, along x and along y."""
TURN_RAD = 0.6
"""Things are turned by so much at most, either way."""
MIDDLE_M = (0.47, 0.0)
"""x and y of the middle, world frame."""
AWAY_M = 2.0
"""x of what is not on the table: in nobody's picture."""
TIP_LOW_M, TIP_HIGH_M = (0.40, -0.12, 0.12), (0.54, 0.12, 0.18)
TIP_YAW_RAD = 0.3
PUSH_M = 0.10
"""How far a thing is to be pushed in a direction."""
BESIDE_M = 0.065
"""From the middle of a thing to the middle of the one that is put beside it."""
ROOM_M = 0.055
"""Things keep so far from the way, and from the spot, that the instruction needs."""
RUN_UP_M = 0.07
"""A push begins so far behind the thing's middle."""
TRIES = 6
DIRECTIONS_M = np.array([(0.0, 1.0), (0.0, -1.0), (1.0, 0.0), (-1.0, 0.0)])
"""Left, right, forward and back, in the plane of the table."""
_SEED = 0x7AB1E70
_STREAMS = 2 + 2 * len(MOVABLES) + len(MATS) + 4


class TabletopStarts(NamedTuple):
    """Starts (n, ...)."""

    says: Rows
    """(n, 6) family, a, b, mat, direction (see `language.Composition`) and way of saying it."""
    pos: Array
    """(n, 6, 2) of the movable things on the table; those that are not there stand apart, out of sight."""
    yaw: Array
    """(n, 6)."""
    here: NDArray[np.bool_]
    """(n, 6) whether a thing is on the table."""
    mats: Array
    """(n, 3, 2)."""
    mats_here: NDArray[np.bool_]
    """(n, 3)."""
    tip: Array
    """(n, 4) the tip's position and yaw."""


class Deck(NamedTuple):
    """Compositions to draw from, of several families, and how full the table is."""

    rows: Rows
    """(C, 5) family, a, b, mat, direction; those of a family stand together."""
    first: Rows
    """(F,) where each family's begin."""
    number: Rows
    """(F,) how many."""
    things: int
    """On the table."""
    mats: int
    """On it."""


def deck(
    families: tuple[InstructionFamily, ...], which: Compositions, things: int = THINGS, mats: int = MATS_LAID
) -> Deck:
    """What starts draw from.

    Args:
        families: of instructions.
        which: of their compositions.
        things: on the table.
        mats: on the table.

    Raises:
        ConfigError: more than there are or than there is room for, or fewer than an instruction needs.
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
    """The starts `ids` (n,); families take turns with the ids."""
    u = counter_rng.uniform(_SEED, ids, _STREAMS)
    n, every = len(u), np.arange(len(u))
    kind = ids % len(cards.number)
    row = cards.first[kind] + (u[:, 0] * cards.number[kind]).astype(np.int64)
    says = np.concatenate([cards.rows[row], (u[:, 1:2] * 2).astype(np.int64)], axis=1)
    family, a, b, mat, _, _ = says.T
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
        asked[every[sorts], colour(which[sorts])] = -1
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
    found = TabletopStarts(says, pos, yaw, here, mats, mats_here, tip)
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
    """(n, count, 2) places of the things, then of the mats."""
    u = counter_rng.uniform(_SEED + 1 + attempt, ids, len(PLACES_M) + 2 * count)
    order = np.argsort(u[:, : len(PLACES_M)], axis=1)[:, :count]
    jitter = u[:, len(PLACES_M) :].reshape(-1, count, 2)
    return np.asarray(PLACES_M)[order] + JITTER_M * (2 * jitter - 1)


def spot(says: Rows, pos: Array, mats: Array, start: Array) -> Array:
    """(n, 2) where the thing of an instruction is to end, as far as there is one place; else where it is.

    Args:
        says: (n, 6), see `TabletopStarts`.
        pos: (n, 6, 2) of the movable things, now.
        mats: (n, 3, 2).
        start: (n, 2) of the thing itself at the start.
    """
    family, a, b, mat, direction, _ = says.T
    every = np.arange(len(says))
    own, other = pos[every, a], pos[every, b]
    goal = own.copy()
    on_mat = (family == InstructionFamily.PUSH_TO) | (family == InstructionFamily.PUT_ON)
    goal[on_mat] = mats[every, mat][on_mat]
    sort = family == InstructionFamily.SORT
    goal[sort] = mats[every, colour(a)][sort]
    way = DIRECTIONS_M[direction]
    goal = np.where((family == InstructionFamily.PUSH)[:, None], start + PUSH_M * way, goal)
    goal = np.where((family == InstructionFamily.BESIDE)[:, None], other + BESIDE_M * way, goal)
    goal = np.where((family == InstructionFamily.STACK)[:, None], other, goal)
    goal = np.where((family == InstructionFamily.CENTRE)[:, None], MIDDLE_M, goal)
    apart = own - other
    away = apart / np.maximum(np.sqrt((apart**2).sum(axis=1, keepdims=True)), 1e-9)
    goal = np.where((family == InstructionFamily.NEXT_TO)[:, None], other + BESIDE_M * away, goal)
    return np.where((family == InstructionFamily.GATHER)[:, None], other + 2 * HALF_M * away, goal)


def is_free(layout: TabletopStarts, rows: Rows) -> NDArray[np.bool_]:
    """(len(rows),) whether nobody stands in the way of a push, or on the spot where a thing is to be put."""
    says = layout.says[rows]
    family, a, b = says[:, 0], says[:, 1], says[:, 2]
    every = np.arange(len(rows))
    pos = layout.pos[rows]
    begin = pos[every, a]
    end = spot(says, pos, layout.mats[rows], begin)
    way = end - begin
    length = np.sqrt((way**2).sum(axis=1, keepdims=True))
    along = way / np.maximum(length, 1e-9)
    pushed = np.isin(family, PUSHES)
    # of what is carried, only where it ends counts
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
