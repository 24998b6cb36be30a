"""Ray-casting camera for batched simulations; runs on the physics threads, without a graphics library.

Each pixel needs one ray into the scene and one towards the sun for shadows; colours are those of the MJCF's geoms.
"""

from __future__ import annotations

from typing import NamedTuple

import mujoco
import mujoco.batch
import numpy as np
from numpy.typing import NDArray

from robotrl.errors import out_of_range
from robotrl.sims.mujoco.render.raster_scene import GROUPS_SHOWN, geom_colors
from robotrl.sims.mujoco.render.views import AnyView, View, axes_w

F32 = NDArray[np.float32]

SUN_W = np.array([0.45, -0.55, 1.0]) / np.linalg.norm([0.45, -0.55, 1.0])
"""Direction towards the light."""
SUN, SKY, GROUND = 0.85, 0.50, 0.28
"""Intensity of sunlight, of sky light on surfaces that face up, and of ground light on surfaces that face down."""
GLOSS, GLOSS_SQUARINGS = 0.12, 4
HORIZON_RGB, ZENITH_RGB = (0.93, 0.95, 0.97), (0.62, 0.74, 0.86)
CHECKER_M = 0.10
CHECKER_CONTRAST = 0.07
EDGE_CONTRAST = 0.03
"""Difference between neighbouring pixels (range 0 to 1) from which both are traced with more rays."""
RAYS_AT_ONCE = 200_000
"""Maximum number of rays per call, to bound memory (about 200 bytes per ray)."""


class RayCamera:
    """Renders envs of a batch by ray casting.

    Args:
        batch: the simulations.
    """

    def __init__(self, batch: mujoco.batch.Batch) -> None:
        self._batch = batch
        model = batch.model
        rgb = geom_colors(model.geom_rgba, model)[:, :3]
        # all renderers draw the same geom groups
        self._groups = np.arange(mujoco.mjNGROUP) < GROUPS_SHOWN
        self._reach_m = 10.0 * float(model.stat.extent)
        # squared, because light adds linearly in intensity; the square root at the end converts back to display values
        self._color: F32 = (rgb**2).astype(np.float32)
        self._checkered = np.asarray(model.geom_type) == int(mujoco.mjtGeom.mjGEOM_PLANE)

    def draw(self, view: AnyView, env_ids: NDArray[np.int64], out: NDArray[np.uint8], samples: int = 2) -> None:
        """Render some envs.

        Args:
            view: pose of the camera.
            env_ids: (n,) envs to render.
            out: (n, height, width, 3) images to write, rows from the top.
            samples: rays per pixel along each axis where neighbouring pixels differ; 1 is twice as fast as 2 and has
                jagged edges.

        Raises:
            ConfigError: `samples` is out of range.
        """
        if not 1 <= samples <= 4:
            raise out_of_range("samples", samples, "1 to 4")
        height, width = out.shape[1:3]
        picture = _Picture(view, width, height)
        every = np.arange(width * height)[None]
        rays_per_call = max(1, RAYS_AT_ONCE // (width * height))
        for first in range(0, len(env_ids), rays_per_call):
            some = env_ids[first : first + rays_per_call]
            screen = self._draw(picture, 1, every, some)
            if samples > 1:
                self._smooth(picture, samples, screen, some)
            out[first : first + rays_per_call] = (screen * 255.0 + 0.5).reshape(len(some), height, width, 3)

    def _smooth(self, picture: _Picture, samples: int, screen: F32, envs: NDArray[np.int64]) -> None:
        """Antialiasing: redraw pixels of `screen` (n, pixels, 3) that differ from a neighbour with more rays."""
        image = screen.reshape(len(envs), picture.height, picture.width, 3)
        edge = np.zeros(image.shape[:3], bool)
        down = (np.abs(image[:, 1:] - image[:, :-1]) > EDGE_CONTRAST).any(axis=-1)
        across = (np.abs(image[:, :, 1:] - image[:, :, :-1]) > EDGE_CONTRAST).any(axis=-1)
        edge[:, 1:] |= down
        edge[:, :-1] |= down
        edge[:, :, 1:] |= across
        edge[:, :, :-1] |= across
        flat = edge.reshape(len(envs), -1)
        counts = flat.sum(axis=1)
        # one call needs the same number of rays in each env: first the pixels that need it, then any others
        chosen = np.argsort(~flat, axis=1, kind="stable")[:, : counts.max()]
        wanted = np.arange(chosen.shape[1]) < counts[:, None]
        screen[np.nonzero(wanted)[0], chosen[wanted]] = self._draw(picture, samples, chosen, envs)[wanted]

    def _draw(self, picture: _Picture, samples: int, pixels: NDArray[np.int64], envs: NDArray[np.int64]) -> F32:
        """Colours (n, k, 3) in [0, 1] of the pixels (n, k), or (1, k) for the same pixels in each env."""
        out = np.empty((len(envs), pixels.shape[1], 3), np.float32)
        step = max(1, RAYS_AT_ONCE // (len(envs) * samples**2))
        for first in range(0, pixels.shape[1], step):
            part = pixels[:, first : first + step]
            light = self._trace(*self._rays(picture, samples, part, envs), envs)
            light = light.reshape(len(envs), part.shape[1], samples**2, 3).mean(axis=2)
            out[:, first : first + step] = np.sqrt(np.minimum(light, 1.0))
        return out

    def _trace(self, eye: NDArray[np.float64], rays: NDArray[np.float64], envs: NDArray[np.int64]) -> F32:
        """Light (n, r, 3) that arrives along rays (n or 1, r, 3) at the points `eye`, one for all envs or one each."""
        distance, geom, normals = self._batch.ray(eye, rays, geomgroup=self._groups, ids=envs, normal=True)
        point = eye + distance[..., None] * rays
        shadow, _ = self._batch.ray(point + 1e-4 * normals, SUN_W, geomgroup=self._groups, ids=envs)
        normal = normals.astype(np.float32)
        sunny = np.maximum(normal @ SUN_W.astype(np.float32), 0.0) * (shadow < 0)
        color = self._color[geom]
        floor = self._checkered[geom]
        square = np.floor(point[floor][:, :2] / CHECKER_M).sum(axis=1)
        color[floor] *= (1.0 - CHECKER_CONTRAST * (square % 2)).astype(np.float32)[:, None]
        color *= (0.5 * (GROUND + SKY) + 0.5 * (SKY - GROUND) * normal[..., 2] + SUN * sunny)[..., None]
        # normal of a surface that would mirror the sun into the camera
        half = SUN_W - rays
        half /= np.linalg.norm(half, axis=-1, keepdims=True)
        shine = np.maximum((normal * half.astype(np.float32)).sum(axis=-1), 0.0)
        for _ in range(GLOSS_SQUARINGS):
            shine *= shine
        color += (GLOSS * shine * (sunny > 0) * ~floor)[..., None]
        return np.where(geom[..., None] >= 0, color, _sky(rays)).astype(np.float32)

    def _rays(
        self, picture: _Picture, samples: int, pixels: NDArray[np.int64], envs: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Origins and unit directions (n or 1, k * samples**2, 3) of the rays through the pixels (n or 1, k)."""
        view = picture.view
        right, up, near = axes_w(view)
        x, y = _places(picture, samples, pixels)
        if isinstance(view, View):
            span = 2 * np.tan(np.radians(view.fovy_deg) / 2) / picture.height
            rays = span * (x[..., None] * right + y[..., None] * up) - near
            rays /= np.linalg.norm(rays, axis=-1, keepdims=True)
            return np.asarray(view.eye_w), rays
        center = np.asarray(view.center_w) + self._reach_m * near
        starts = center + (view.width_m / picture.width) * (x[..., None] * right + y[..., None] * up)
        if view.track is not None:
            body = self._batch.model.body(view.track).id
            starts = starts + self._batch.bind("xpos")[envs, body][:, None] * (1.0, 1.0, float(view.track_height))
        return starts, np.broadcast_to(-near, starts.shape)


class _Picture(NamedTuple):
    view: AnyView
    width: int
    height: int


def _places(
    picture: _Picture, samples: int, pixels: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sample points (..., k * samples**2) in the pixels (..., k), which are numbered from the top left, row by row.

    In pixels to the right of the image centre and above it.
    """
    row, column = np.divmod(pixels[..., None], picture.width)
    sub = np.arange(samples)
    height, width = picture.height * samples, picture.width * samples
    y = ((height - 1) / 2 - (row * samples + sub)) / samples
    x = ((column * samples + sub) - (width - 1) / 2) / samples
    shape = (*pixels.shape[:-1], -1)
    both = np.broadcast_arrays(x[..., None, :], y[..., :, None])
    return both[0].reshape(shape), both[1].reshape(shape)


def _sky(rays: NDArray[np.float64]) -> F32:
    """Colours (..., 3) of the background: paler towards the horizon."""
    height = np.clip(rays[..., 2:] * 1.5 + 0.2, 0.0, 1.0)
    return ((np.asarray(HORIZON_RGB) * (1 - height) + np.asarray(ZENITH_RGB) * height) ** 2).astype(np.float32)
