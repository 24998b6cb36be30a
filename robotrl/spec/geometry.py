"""Geometry of a sim's scene, for viewers that draw it themselves."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

ShapeKind = Literal["plane", "sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh"]


class SceneShape(NamedTuple):
    """A visible shape, fixed to a body."""

    name: str
    """Unique within the scene."""
    body: int
    """Index of its body; 0 is the world, which does not move."""
    kind: ShapeKind
    size: tuple[float, float, float]
    """As in MuJoCo, m: radius; radius and half length along z; half sizes along x, y and z. Of a plane the half sides,
    0 for an infinite one; of a mesh unused."""
    rgba: tuple[float, float, float, float]
    """Color and opacity, 0 to 1."""
    pos_b: tuple[float, float, float]
    """Position in its body's frame, m."""
    quat_b: tuple[float, float, float, float]
    """Orientation in its body's frame, w first."""
    vertices: NDArray[np.float32] | None = None
    """(V, 3) of a mesh, m, in its own frame."""
    faces: NDArray[np.int32] | None = None
    """(F, 3) indices of its vertices."""


class BodyPoses(NamedTuple):
    """World poses of all bodies of an env."""

    pos_w: NDArray[np.float64]
    """(bodies, 3), m."""
    quat_w: NDArray[np.float64]
    """(bodies, 4), w first."""


@runtime_checkable
class HasGeometry(Protocol):
    """The sim gives the shapes of its scene and the poses of its bodies."""

    body_names: tuple[str, ...]
    """Names of the bodies; the first is the world."""
    tracked_body: int
    """Index of the body that a camera follows."""

    def geometry(self, env: int) -> list[SceneShape]:
        """Visible shapes of an env; sizes and colors may change when an episode begins."""
        ...

    def body_poses(self, env: int) -> BodyPoses:
        """Present world poses of an env's bodies."""
        ...
