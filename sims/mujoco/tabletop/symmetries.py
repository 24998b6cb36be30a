"""Symmetries of the tabletop for data augmentation: mirroring across the arm's plane, and permutations of colours.

Mirroring is exact up to rounding. Permuting colours is exact except for shades: red with permuted channels is not
exactly the sim's green.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from robotrl.sims.mujoco.manipulation.gripper import FINGERS
from robotrl.sims.mujoco.render.views import AnyView, Raster
from robotrl.sims.mujoco.tabletop.language import COLORS, DIRECTIONS, MATS, MOVABLES, VOCABULARY
from robotrl.spec import Spec, is_picture
from robotrl.spec.symmetry import Look, Signed, Symmetry

ODD = frozenset(
    {
        *("tip_pos_y_w", "tip_yaw_sin_w", "tip_vel_y_w", "tip_yaw_rate_w", "tool_axis_y_w"),
        *("shoulder_yaw_pos", "wrist_roll_pos", "flange_roll_pos"),
        *("tip_step_y_w", "tip_yaw_step_w"),
        *(f"{thing.replace(' ', '_')}_{column}" for thing in MOVABLES for column in ("pos_y_w", "yaw4_sin")),
        *(f"{mat.replace(' ', '_')}_pos_y_w" for mat in MATS),
        *("meant_pos_y_w", "meant_goal_y_w"),
    }
)
"""Columns whose sign changes under mirroring."""

_EXCHANGES: tuple[dict[str, str], ...] = tuple(
    dict(zip(COLORS, order, strict=True)) for order in itertools.permutations(COLORS) if order != COLORS
)
"""All permutations of the colours except the identity."""


def symmetries(
    observation_spec: Mapping[str, Spec], action_spec: Spec, views: Mapping[str, AnyView]
) -> dict[str, tuple[Symmetry, ...]]:
    """Symmetries of a tabletop sim with these observations, by kind ("mirror", "colours").

    Args:
        observation_spec: specs by name; images are named "image_CAMERA".
        action_spec: spec of one action.
        views: cameras by name. "mirror" exists only if all cameras in use are orthographic and in the arm's plane.
    """
    numbers = {key: spec for key, spec in observation_spec.items() if not is_picture(spec) and not spec.words}
    words = tuple(key for key, spec in observation_spec.items() if spec.words)
    pictures = tuple(key for key, spec in observation_spec.items() if is_picture(spec))
    found: dict[str, tuple[Symmetry, ...]] = {}
    if all(_in_plane(views[key.removeprefix("image_")]) for key in pictures):
        one, other = DIRECTIONS[:2]
        exchanged = _words({one: other, other: one})
        fingers = [f"{finger}_pos" for finger in FINGERS]
        swapped = dict(zip(fingers, reversed(fingers), strict=True))
        mirror = Symmetry(
            {key: _mirrored(spec, swapped) for key, spec in numbers.items()},
            dict.fromkeys(pictures, Look(flipped=True)),
            dict.fromkeys(words, exchanged),
            _mirrored(action_spec, swapped),
        )
        found["mirror"] = (mirror,)
    same = tuple(range(action_spec.shape[-1]))
    found["colours"] = tuple(
        Symmetry(
            {key: _recolored(spec, becomes) for key, spec in numbers.items()},
            dict.fromkeys(pictures, _channels(becomes)),
            dict.fromkeys(words, _words(becomes)),
            Signed(same, (1.0,) * len(same)),
        )
        for becomes in _EXCHANGES
    )
    return found


def _in_plane(view: AnyView) -> bool:
    """True if mirroring the table mirrors the camera's image."""
    return isinstance(view, Raster) and view.axis in ("top", "front") and view.center_w[1] == 0 and view.track is None


def _mirrored(spec: Spec, swapped: Mapping[str, str]) -> Signed:
    order = tuple(spec.names.index(swapped.get(name, name)) for name in spec.names)
    return Signed(order, tuple(-1.0 if name in ODD else 1.0 for name in spec.names))


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
