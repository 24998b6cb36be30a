"""Cameras for a batch of simulations without a graphics library: pictures are cast ray by ray on the physics threads.

Each pixel is one ray into the scene and one towards the sun for its shadow; colours are those of the MJCF's geoms.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import mujoco
import mujoco.batch
import numpy as np
from numpy.typing import NDArray

from robotrl.errors import out_of_range, unknown

F32 = NDArray[np.float32]

SUN_W = np.array([0.45, -0.55, 1.0]) / np.linalg.norm([0.45, -0.55, 1.0])
"""Direction towards the light."""
SUN, SKY, GROUND = 0.85, 0.50, 0.28
"""Light of the sun, of the sky on surfaces that face up, and of the ground on those that face down."""
GLOSS, GLOSS_SQUARINGS = 0.12, 4
HORIZON_RGB, ZENITH_RGB = (0.93, 0.95, 0.97), (0.62, 0.74, 0.86)
CHECKER_M = 0.10
CHECKER_CONTRAST = 0.07
RAYS_AT_ONCE = 200_000
"""Bounds the memory that one call takes (about 200 bytes a ray)."""


class View(NamedTuple):
    """A perspective camera that stands still."""

    eye_w: tuple[float, float, float]
    """Position, m."""
    target_w: tuple[float, float, float]
    """Point in the middle of the picture, m; the picture's up is the world's z, or x when looking straight down."""
    fovy_deg: float = 40.0
    """Vertical field of view."""


class RayCamera:
    """Draws envs of a batch.

    Args:
        batch: the simulations.
        views: the cameras by name.
    """

    def __init__(self, batch: mujoco.batch.Batch, views: Mapping[str, View]) -> None:
        self._batch = batch
        self._views = dict(views)
        model = batch.model
        rgb = np.array(model.geom_rgba[:, :3])
        with_material = model.geom_matid >= 0
        rgb[with_material] = model.mat_rgba[model.geom_matid[with_material], :3]
        # squared, because light adds up in intensities; the square root at the end brings it back to the screen's scale
        self._colour: F32 = (rgb**2).astype(np.float32)
        self._checkered = np.asarray(model.geom_type) == int(mujoco.mjtGeom.mjGEOM_PLANE)

    def render(self, ids: Sequence[int], camera: str, width: int, height: int, samples: int = 2) -> NDArray[np.uint8]:
        """Pictures of some envs.

        Args:
            ids: which envs, in any order.
            camera: name of a view.
            width: pixels.
            height: pixels.
            samples: rays per pixel along each axis; 1 is four times as fast as 2 and has jagged edges.

        Returns:
            (n, height, width, 3) uint8, rows from the top.

        Raises:
            ConfigError: unknown camera, an id or a size out of range.
        """
        if camera not in self._views:
            raise unknown("camera", camera, self._views)
        for field, value, high in (("width", width, 4096), ("height", height, 4096), ("samples", samples, 4)):
            if not 1 <= value <= high:
                raise out_of_range(field, value, f"1 to {high}")
        wanted = np.asarray(ids, np.int64)
        if ((wanted < 0) | (wanted >= self._batch.nsim)).any():
            raise out_of_range("ids", wanted.tolist(), f"env numbers from 0 to {self._batch.nsim - 1}")
        envs, place = np.unique(wanted, return_inverse=True)
        film = _film(self._views[camera], width, height, samples)
        out = np.empty((len(envs), height, width, 3), np.uint8)
        at_once = max(1, RAYS_AT_ONCE // len(film.rays))
        for first in range(0, len(envs), at_once):
            some = envs[first : first + at_once]
            light = self._trace(film, some).reshape(len(some), height, samples, width, samples, 3)
            pixels = sum(light[:, :, i, :, j] for i in range(samples) for j in range(samples)) / samples**2
            out[first : first + at_once] = np.sqrt(np.minimum(pixels, 1.0)) * 255.0 + 0.5
        return out[place]

    def _trace(self, film: _Film, envs: NDArray[np.int64]) -> F32:
        """Light (n, rays, 3) that arrives along each ray."""
        distance, geom, normals = self._batch.ray(film.eye, film.rays, ids=envs, normal=True)
        point = film.eye + distance[..., None] * film.rays
        shadow, _ = self._batch.ray(point + 1e-4 * normals, SUN_W, ids=envs)
        normal = normals.astype(np.float32)
        sunny = np.maximum(normal @ SUN_W.astype(np.float32), 0.0) * (shadow < 0)
        colour = self._colour[geom]
        floor = self._checkered[geom]
        square = np.floor(point[floor][:, :2] / CHECKER_M).sum(axis=1)
        colour[floor] *= (1.0 - CHECKER_CONTRAST * (square % 2)).astype(np.float32)[:, None]
        colour *= (0.5 * (GROUND + SKY) + 0.5 * (SKY - GROUND) * normal[..., 2] + SUN * sunny)[..., None]
        shine = np.maximum(np.einsum("erk,rk->er", normal, film.half), 0.0)
        for _ in range(GLOSS_SQUARINGS):
            shine *= shine
        colour += (GLOSS * shine * (sunny > 0) * ~floor)[..., None]
        return np.where(geom[..., None] >= 0, colour, film.sky)


class _Film(NamedTuple):
    """What depends on the camera alone; one row for each ray, row by row from the top left."""

    eye: NDArray[np.float64]
    rays: NDArray[np.float64]
    """Unit directions."""
    sky: F32
    """Colours where nothing is hit."""
    half: F32
    """Unit normals of a surface that would mirror the sun into the camera."""


@functools.lru_cache(maxsize=16)
def _film(view: View, width: int, height: int, samples: int) -> _Film:
    eye, target = np.asarray(view.eye_w), np.asarray(view.target_w)
    ahead = (target - eye) / np.linalg.norm(target - eye)
    up = np.array([0.0, 0.0, 1.0]) if abs(ahead[2]) < 0.999 else np.array([1.0, 0.0, 0.0])
    right = np.cross(ahead, up)
    right /= np.linalg.norm(right)
    above = np.cross(right, ahead)
    rows, columns = height * samples, width * samples
    span = 2 * np.tan(np.radians(view.fovy_deg) / 2) / rows
    y = ((rows - 1) / 2 - np.arange(rows)) * span
    x = (np.arange(columns) - (columns - 1) / 2) * span
    rays = (ahead + x[None, :, None] * right + y[:, None, None] * above).reshape(-1, 3)
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    half = SUN_W - rays
    half /= np.linalg.norm(half, axis=1, keepdims=True)
    return _Film(eye, rays, _sky(rays), half.astype(np.float32))


def _sky(rays: NDArray[np.float64]) -> F32:
    """Colours (rays, 3) of the background: paler towards the horizon."""
    height = np.clip(rays[:, 2:] * 1.5 + 0.2, 0.0, 1.0)
    return ((np.asarray(HORIZON_RGB) * (1 - height) + np.asarray(ZENITH_RGB) * height) ** 2).astype(np.float32)
