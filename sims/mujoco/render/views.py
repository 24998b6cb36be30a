"""Where a camera stands: perspective views, and flat rasters that all envs can be drawn with in every step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import out_of_range, unknown

MAX_TILT_DEG = 89.0
MAX_PIXELS = 4096
"""Largest width and height of a picture."""


class View(NamedTuple):
    """A perspective camera that stands still."""

    eye_w: tuple[float, float, float]
    """Position, m."""
    target_w: tuple[float, float, float]
    """Point in the middle of the picture, m; the picture's up is the world's z, or x when looking straight down."""
    fovy_deg: float = 40.0
    """Vertical field of view."""


Axis = Literal["top", "side", "front"]

_RIGHT_UP_NEAR: dict[Axis, tuple[tuple[int, float], ...]] = {
    "top": ((1, -1.0), (0, 1.0), (2, 1.0)),
    "side": ((0, 1.0), (2, 1.0), (1, -1.0)),
    "front": ((1, 1.0), (2, 1.0), (0, 1.0)),
}
"""World axis and sign of the picture's right, of its up, and of the direction towards the camera."""


class Raster(NamedTuple):
    """A camera without perspective that looks along a world axis, or tilted against one.

    Pixels are square: the height in metres follows.
    """

    axis: Axis
    """"top" looks down, +x up and -y right in the picture; "side" looks along +y, +x right and +z up; "front" looks
    along -x at a robot that faces +x, +y right and +z up."""
    centre_w: tuple[float, float, float]
    """Point in the middle of the picture, m. Floors are seen from the side as a section through it."""
    width_m: float
    """What the picture's width shows."""
    track: str | None = None
    """Body whose horizontal position (x, y) is added to the centre."""
    track_height: bool = False
    """Whether its height is added, too."""
    tile_m: float = 0.0
    """Edge of the floor's tiles, so that motion over it shows; 0 for a plain floor."""
    tilt_deg: float = 0.0
    """The camera is turned by so much about the picture's right, towards the picture's up; 0 to 89. At "front" and
    "side" it looks down by so much. A height field is not drawn so."""


AnyView = View | Raster


class Frame(NamedTuple):
    """The picture's axes in the world: index and sign of the world axis for right, up and towards the camera.

    The last two are then turned by the tilt: up becomes cos up - sin near, near becomes cos near + sin up.
    """

    axes: NDArray[np.int64]
    """(3,)."""
    sign: NDArray[np.float64]
    """(3,)."""
    cos: float = 1.0
    """Of the tilt."""
    sin: float = 0.0

    def vectors_w(self) -> NDArray[np.float64]:
        """Right, up and near as rows (3, 3)."""
        out = np.zeros((3, 3))
        out[np.arange(3), self.axes] = self.sign
        right, up, near = out
        return np.stack([right, self.cos * up - self.sin * near, self.cos * near + self.sin * up])


def frame_of(view: Raster) -> Frame:
    """The axes of a raster's picture.

    Raises:
        ConfigError: unknown axis, or a tilt out of range.
    """
    if not 0 <= view.tilt_deg <= MAX_TILT_DEG:
        raise out_of_range("tilt_deg", view.tilt_deg, f"0 to {MAX_TILT_DEG}")
    tilt = math.radians(view.tilt_deg)
    for known, entries in _RIGHT_UP_NEAR.items():
        if known == view.axis:
            axes, sign = np.array([i for i, _ in entries]), np.array([s for _, s in entries])
            return Frame(axes, sign, math.cos(tilt), math.sin(tilt))
    raise unknown("axis", str(view.axis), _RIGHT_UP_NEAR)


def axes_w(view: AnyView) -> NDArray[np.float64]:
    """The picture's right, its up and the direction towards the camera in the world, unit vectors as rows (3, 3)."""
    if isinstance(view, Raster):
        return frame_of(view).vectors_w()
    ahead = np.subtract(view.target_w, view.eye_w)
    ahead /= np.linalg.norm(ahead)
    up = np.array([0.0, 0.0, 1.0]) if abs(ahead[2]) < 0.999 else np.array([1.0, 0.0, 0.0])
    right = np.cross(ahead, up)
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(right, ahead), -ahead])


def checked_ids(
    views: Mapping[str, AnyView], num_envs: int, ids: Sequence[int], camera: str, width: int, height: int
) -> NDArray[np.int64]:
    """The wanted envs as an array, once what is asked for is known to be there.

    Raises:
        ConfigError: unknown camera, an id or a size out of range.
    """
    if camera not in views:
        raise unknown("camera", camera, views)
    for field, value in (("width", width), ("height", height)):
        if not 1 <= value <= MAX_PIXELS:
            raise out_of_range(field, value, f"1 to {MAX_PIXELS}")
    wanted = np.asarray(ids, np.int64)
    if ((wanted < 0) | (wanted >= num_envs)).any():
        raise out_of_range("ids", wanted.tolist(), f"env numbers from 0 to {num_envs - 1}")
    return wanted
