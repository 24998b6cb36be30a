"""Symmetries of the tabletop for data augmentation: mirroring across the arm's plane, and permutations of colours.

Mirroring is exact up to rounding. Permuting colours is exact except for shades: red with permuted channels is not
exactly the sim's green.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from robotrl.sims.mujoco.engine.mirror import MirrorRule
from robotrl.sims.mujoco.manipulation.gripper import SWAPPED_FINGERS
from robotrl.sims.mujoco.manipulation.hand import odd_columns
from robotrl.sims.mujoco.tabletop.language import COLORS, DIRECTIONS, MATS, MOVABLES, VOCABULARY
from robotrl.spec import Spec, is_picture
from robotrl.spec.symmetry import Look, Signed, Symmetry

_EXCHANGES: tuple[dict[str, str], ...] = tuple(
    dict(zip(COLORS, order, strict=True)) for order in itertools.permutations(COLORS) if order != COLORS
)
"""All permutations of the colours except the identity."""


def recolorings(observation_spec: Mapping[str, Spec], action_spec: Spec) -> dict[str, tuple[Symmetry, ...]]:
    """Symmetries "colours" of a tabletop sim, as `HasSymmetries` has them.

    Args:
        observation_spec: specs by name.
        action_spec: spec of one action.
    """
    numbers = {key: spec for key, spec in observation_spec.items() if not is_picture(spec) and not spec.words}
    words = tuple(key for key, spec in observation_spec.items() if spec.words)
    pictures = tuple(key for key, spec in observation_spec.items() if is_picture(spec))
    same = tuple(range(action_spec.shape[-1]))
    changes = tuple(
        Symmetry(
            {key: _recolored(spec, becomes) for key, spec in numbers.items()},
            dict.fromkeys(pictures, _channels(becomes)),
            dict.fromkeys(words, _words(becomes)),
            Signed(same, (1.0,) * len(same)),
        )
        for becomes in _EXCHANGES
    )
    return {"colours": changes}


def _recolored(spec: Spec, becomes: Mapping[str, str]) -> Signed:
    """Permutation of columns for a permutation of colours."""
    was = {new: old for old, new in becomes.items()}
    order = []
    for name in spec.names:
        color, *rest = name.split("_")
        order.append(spec.names.index("_".join((was.get(color, color), *rest))))
    return Signed(tuple(order), (1.0,) * len(order))


def _channels(becomes: Mapping[str, str]) -> Look:
    """Permutation of image channels: the three colours are the channels, in order."""
    was = {new: old for old, new in becomes.items()}
    red, green, blue = (COLORS.index(was[color]) for color in COLORS)
    return Look(channels=(red, green, blue))


def _words(becomes: Mapping[str, str]) -> tuple[int, ...]:
    return tuple(VOCABULARY.index(becomes.get(word, word)) for word in VOCABULARY)


MIRROR = MirrorRule(
    odd_columns("w")
    | {
        *(f"{thing.replace(' ', '_')}_{column}" for thing in MOVABLES for column in ("pos_y_w", "yaw4_sin")),
        *(f"{mat.replace(' ', '_')}_pos_y_w" for mat in MATS),
        *("meant_pos_y_w", "meant_goal_y_w"),
    },
    SWAPPED_FINGERS,
    _words({DIRECTIONS[0]: DIRECTIONS[1], DIRECTIONS[1]: DIRECTIONS[0]}),
)
"""Change of the tabletop's columns and words in the mirror of the arm's plane."""
