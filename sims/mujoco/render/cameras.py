"""Common interface to all renderers: images of envs from named views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import CapabilityError, unknown
from robotrl.sims.mujoco.engine.physics import Physics
from robotrl.sims.mujoco.render.camera import RayCamera
from robotrl.sims.mujoco.render.gl import GlCamera
from robotrl.sims.mujoco.render.raster import RasterCamera
from robotrl.sims.mujoco.render.views import AnyView, Raster, checked_ids

Renderer = Literal["auto", "raster", "ray", "mujoco"]
RENDERERS: tuple[Renderer, ...] = ("auto", "raster", "ray", "mujoco")
"""Renderers. auto: raster for a `Raster`, ray for a `View`. raster: flat colours without perspective, thousands of
small images per second. ray: shadows and perspective, some hundred per second. mujoco: MuJoCo's own, needs OpenGL."""


class Cameras:
    """Renders envs of a batch with any of the renderers.

    Args:
        physics: the simulations.
        views: cameras by name.
    """

    def __init__(self, physics: Physics, views: Mapping[str, AnyView]) -> None:
        self._physics = physics
        self.views: dict[str, AnyView] = dict(views)

    @cached_property
    def _ray(self) -> RayCamera:
        return RayCamera(self._physics.batch)

    @cached_property
    def _raster(self) -> RasterCamera:
        return RasterCamera(self._physics.batch, self._physics.threads)

    @cached_property
    def _gl(self) -> GlCamera:
        return GlCamera(self._physics.batch)

    def renderer_of(self, camera: str, renderer: Renderer = "auto") -> Renderer:
        """Renderer for a camera.

        Raises:
            ConfigError: unknown camera or renderer.
            CapabilityError: the renderer does not support this kind of view.
        """
        if camera not in self.views:
            raise unknown("camera", camera, self.views)
        if renderer not in RENDERERS:
            raise unknown("renderer", str(renderer), RENDERERS)
        flat = isinstance(self.views[camera], Raster)
        if renderer == "raster" and not flat:
            rasters = [name for name, view in self.views.items() if isinstance(view, Raster)]
            raise CapabilityError(
                f"renderer 'raster' cannot draw camera {camera!r}, which has a perspective: expected"
                f" {', '.join(rasters) or 'a Raster view, of which this sim has none'}"
            )
        return renderer if renderer != "auto" else "raster" if flat else "ray"

    def render(
        self,
        ids: Sequence[int],
        camera: str,
        width: int,
        height: int,
        samples: int = 2,
        renderer: Renderer = "auto",
    ) -> NDArray[np.uint8]:
        """Render images of some envs.

        Args:
            ids: env ids, in any order.
            camera: name of a view.
            width: image width, pixels.
            height: image height, pixels.
            samples: rays per pixel along each axis at edges, for the ray renderer; the others ignore it.
            renderer: one of `RENDERERS`.

        Returns:
            (n, height, width, 3) uint8, rows from the top.

        Raises:
            ConfigError: unknown camera or renderer, an id or a size out of range.
            CapabilityError: the renderer does not support this kind of view, or OpenGL is missing.
        """
        wanted = checked_ids(self.views, self._physics.batch.nsim, ids, camera, width, height)
        chosen, view = self.renderer_of(camera, renderer), self.views[camera]
        envs, place = np.unique(wanted, return_inverse=True)
        out = np.empty((len(envs), height, width, 3), np.uint8)
        if chosen == "ray":
            if isinstance(view, Raster):
                self._physics.batch.bind("xpos")
                self._physics.poses(envs)
            self._ray.draw(view, envs, out, samples)
        elif chosen == "mujoco":
            for row, env in enumerate(envs):
                out[row] = self._gl.render(int(env), view, width, height)
        else:
            raster = self._raster  # binds the arrays that `poses` updates
            if len(envs):
                self._physics.poses(envs)
            self._draw(raster, camera, envs, out, np.arange(len(envs)))
        return out[place]

    def prepare(self, camera: str, renderer: Renderer) -> Renderer:
        """Prepare `fill` for a camera and return the renderer that will be used.

        Raises:
            As `renderer_of`.
        """
        chosen = self.renderer_of(camera, renderer)
        if chosen == "raster":
            _ = self._raster
        return chosen

    def fill(self, camera: str, renderer: Renderer, env_ids: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Render envs into the same rows of `out` (N, height, width, 3); bound poses must be up to date."""
        height, width = out.shape[1:3]
        if renderer == "raster":
            self._draw(self._raster, camera, env_ids, out, env_ids)
        else:
            out[env_ids] = self.render(env_ids.tolist(), camera, width, height, renderer=renderer)

    def _draw(
        self,
        raster: RasterCamera,
        camera: str,
        env_ids: NDArray[np.int64],
        out: NDArray[np.uint8],
        rows: NDArray[np.int64],
    ) -> None:
        view = self.views[camera]
        assert isinstance(view, Raster)
        raster.draw(view, env_ids, out, rows)
