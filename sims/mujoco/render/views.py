"""Camera definitions: perspective views, and orthographic rasters that are fast enough for every step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import out_of_range, unknown

MAX_TILT_DEG = 89.0
MAX_PIXELS = 4096
"""Largest width and height of an image."""


class View(NamedTuple):
    """Fixed perspective camera."""

    eye_w: tuple[float, float, float]
    """Camera position, world frame, m."""
    target_w: tuple[float, float, float]
    """Point at the image centre, m; image up is the world's z, or x when looking straight down."""
    fovy_deg: float = 40.0
    """Vertical field of view."""


Axis = Literal["top", "side", "front"]

_RIGHT_UP_NEAR: dict[Axis, tuple[tuple[int, float], ...]] = {
    "top": ((1, -1.0), (0, 1.0), (2, 1.0)),
    "side": ((0, 1.0), (2, 1.0), (1, -1.0)),
    "front": ((1, 1.0), (2, 1.0), (0, 1.0)),
}
"""World axis and sign of image right, image up, and the direction towards the camera, by view axis."""


class Raster(NamedTuple):
    """Orthographic camera that looks along a world axis, optionally tilted.

    Pixels are square, so the height in metres follows from the width.
    """

    axis: Axis
    """View axis. "top" looks down, image up +x, right -y; "side" looks along +y, image right +x, up +z; "front" looks
    along -x at a robot that faces +x, image right +y, up +z."""
    center_w: tuple[float, float, float]
    """Point at the image centre, m. From the side, floors are drawn as a section through it."""
    width_m: float
    """Width of the visible area."""
    track: str | None = None
    """Body whose horizontal position (x, y) is added to the centre."""
    track_height: bool = False
    """Add the body's height as well."""
    tile_m: float = 0.0
    """Side length of floor tiles, which make motion visible; 0 for a plain floor."""
    tilt_deg: float = 0.0
    """Rotation of the camera about image right, towards image up, 0 to 89; "front" and "side" then look down by this
    angle. Not available with height fields."""


AnyView = View | Raster


class Frame(NamedTuple):
    """Image axes in the world: index and sign of the world axis for right, up and near (towards the camera).

    The last two are then rotated by the tilt: up becomes cos up - sin near, near becomes cos near + sin up.
    """

    axes: NDArray[np.int64]
    """(3,) indices of the world axes."""
    sign: NDArray[np.float64]
    """(3,) signs."""
    cos: float = 1.0
    """Cosine of the tilt."""
    sin: float = 0.0

    def vectors_w(self) -> NDArray[np.float64]:
        """World vectors of right, up and near as rows (3, 3)."""
        out = np.zeros((3, 3))
        out[np.arange(3), self.axes] = self.sign
        right, up, near = out
        return np.stack([right, self.cos * up - self.sin * near, self.cos * near + self.sin * up])


def frame_of(view: Raster) -> Frame:
    """Image axes of a raster camera.

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
    """World unit vectors of image right, image up and the direction towards the camera, as rows (3, 3)."""
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
    """Validate a render request and return its env ids as an array.

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
