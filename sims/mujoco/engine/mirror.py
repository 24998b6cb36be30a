"""Mirroring across the arm's plane, y = 0 of the world frame: a symmetry of arms that are built alike on both sides.

A task names the columns of its observation and action whose sign changes. Positions, velocities and directions along y
do, and angles about x and z: of sines the sign changes, of cosines it does not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from robotrl.sims.mujoco.render.views import AnyView, Raster
from robotrl.spec import Spec, is_picture
from robotrl.spec.symmetry import Look, Signed, Symmetry


class MirrorRule(NamedTuple):
    """Change of a task's columns in the mirror."""

    odd: Collection[str]
    """Columns of observation and action whose sign changes."""
    swapped: Mapping[str, str] = {}
    """Columns that take each other's value, of parts that are a pair, both ways."""
    words: tuple[int, ...] = ()
    """New id of each word id, of tasks with instructions."""


class MirroredTask(Protocol):
    """A task that is the same in the mirror."""

    mirror: MirrorRule
    views: Mapping[str, AnyView]
    """Cameras by name."""


def mirrored(
    observation_spec: Mapping[str, Spec], action_spec: Spec, task: MirroredTask
) -> dict[str, tuple[Symmetry, ...]]:
    """Symmetry "mirror" of a sim, as `HasSymmetries` has it.

    It is missing if a camera in use is not orthographic, or not in the arm's plane: then the mirror image of its
    picture is the picture of no scene.

    Args:
        observation_spec: specs of the sim's observation by name; images are named "image_CAMERA".
        action_spec: spec of one action.
        task: the sim's task.
    """
    rule = task.mirror
    pictures = tuple(key for key, spec in observation_spec.items() if is_picture(spec))
    if not all(_in_plane(task.views[key.removeprefix("image_")]) for key in pictures):
        return {}
    numbers = {key: spec for key, spec in observation_spec.items() if not is_picture(spec) and not spec.words}
    one = Symmetry(
        {key: _mirrored(spec, rule) for key, spec in numbers.items()},
        dict.fromkeys(pictures, Look(flipped=True)),
        {key: rule.words for key, spec in observation_spec.items() if spec.words},
        _mirrored(action_spec, rule),
    )
    return {"mirror": (one,)}


def _in_plane(view: AnyView) -> bool:
    """True if mirroring the table mirrors the camera's image."""
    return isinstance(view, Raster) and view.axis in ("top", "front") and view.center_w[1] == 0 and view.track is None


def _mirrored(spec: Spec, rule: MirrorRule) -> Signed:
    order = tuple(spec.names.index(rule.swapped.get(name, name)) for name in spec.names)
    return Signed(order, tuple(-1.0 if name in rule.odd else 1.0 for name in spec.names))
