"""Captions of the tabletop: what is lifted, what the hand is at, what lies on the mats, what there is.

They are read from poses. An instruction is not in the picture, so nothing here says whether it was carried out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.tabletop.goals import NEAR_M
from robotrl.sims.mujoco.tabletop.language import MATS, MOVABLES
from robotrl.sims.mujoco.tabletop.layout import AWAY_M, HALF_M, MAT_HALF_M
from robotrl.spec.captions import UNCLEAR, CaptionClass, CaptionTopic

LIFTED_M, LOW_M = 0.055, 0.03
"""Heights above the table: an object above the first is lifted (one on top of another is not), one below the second
is not."""
AT_M, AWAY_FROM_M = 0.035, 0.10
"""Distances of the fingertips from an object's center: the hand is at it, the hand is away from it."""
CLEAR_M = MAT_HALF_M + HALF_M
"""Distance from a mat's center, along x or y, from which an object is off the mat."""


def _lifted(name: str) -> CaptionClass:
    return CaptionClass(
        name.replace(" ", "-"),
        (f"the {name} is lifted", f"the hand holds the {name} in the air"),
        (f"the {name} is in the air", f"the hand holds the {name}"),
    )


def _reached(name: str) -> CaptionClass:
    return CaptionClass(
        name.replace(" ", "-"),
        (f"the hand is at the {name}", f"the hand is over the {name}"),
        (f"at the {name} is the hand", f"over the {name} is the hand"),
    )


def _laid(mat: str) -> CaptionTopic:
    on = tuple(
        CaptionClass(
            name.replace(" ", "-"),
            (f"the {name} is on the {mat}", f"the {name} lies on the {mat}"),
            (f"on the {mat} lies the {name}", f"on the {mat} is the {name}"),
        )
        for name in MOVABLES
    )
    free = CaptionClass(
        "free", (f"nothing is on the {mat}", f"the {mat} is free"), (f"nothing lies on the {mat}", f"free is the {mat}")
    )
    return CaptionTopic(mat.replace(" ", "-"), (free, *on))


def _there(name: str) -> CaptionTopic:
    return CaptionTopic(
        f"{name.replace(' ', '-')}-there",
        (
            CaptionClass("absent", (f"there is no {name}",), (f"no {name} is there",)),
            CaptionClass("there", (f"there is a {name}",), (f"a {name} is there",)),
        ),
    )


TOPICS = (
    CaptionTopic(
        "lifted",
        (
            CaptionClass(
                "nothing", ("nothing is lifted", "nothing is in the air"), ("the hand holds nothing in the air",)
            ),
            *(_lifted(name) for name in MOVABLES),
        ),
    ),
    CaptionTopic(
        "hand",
        (
            CaptionClass(
                "away", ("the hand is at nothing", "the hand is away"), ("away is the hand", "at nothing is the hand")
            ),
            *(_reached(name) for name in MOVABLES),
        ),
    ),
    *(_laid(mat) for mat in MATS),
    *(_there(name) for name in MOVABLES),
)


def classes_of(
    pos: NDArray[np.float64], mats: NDArray[np.float64], tip: NDArray[np.float64], here: NDArray[np.bool_]
) -> NDArray[np.int8]:
    """Class (N, topics) of each scene in each of `TOPICS`.

    Args:
        pos: (N, 6, 3) positions of the movable objects, m.
        mats: (N, 3, 2) positions of the mats; absent ones are `AWAY_M` away.
        tip: (N, 3) position of the fingertips.
        here: (N, 6) whether an object is on the table.
    """
    height = np.where(here, pos[..., 2] - HALF_M, 0.0)
    apart = np.where(here, np.linalg.norm(pos - tip[:, None], axis=2), np.inf)
    columns = [
        _only(height > LIFTED_M, np.all(height < LOW_M, axis=1)),
        _only(apart < AT_M, np.all(apart > AWAY_FROM_M, axis=1)),
    ]
    for k in range(len(MATS)):
        offset = np.where(here[..., None], np.abs(pos[..., :2] - mats[:, None, k]), np.inf)
        on = (np.linalg.norm(offset, axis=2) < NEAR_M) & (height < LOW_M)
        laid = _only(on, np.all(offset.max(axis=2) > CLEAR_M, axis=1))
        columns.append(np.where(mats[:, k, 0] < AWAY_M, laid, UNCLEAR))
    columns += list(here.T.astype(np.int64))
    return np.stack(columns, axis=1).astype(np.int8)


def _only(true: NDArray[np.bool_], none: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Class (N,): 0 where `none` (N,), k + 1 where k is the only object of which it is `true` (N, 6), else unclear."""
    return np.where(true.sum(axis=1) == 1, true.argmax(axis=1) + 1, np.where(none, 0, UNCLEAR))
