"""Camera that uses MuJoCo's own OpenGL renderer."""

from __future__ import annotations

import os
import warnings
import weakref
from typing import Any

import mujoco
import mujoco.batch
import numpy as np
from numpy.typing import NDArray

from robotrl.errors import CapabilityError
from robotrl.sims.mujoco.render.raster_scene import GROUPS_SHOWN
from robotrl.sims.mujoco.render.views import AnyView, View, axes_w

NEAR_M, FAR_SHARE = 0.01, 10.0


class GlCamera:
    """Renders one env at a time with `mujoco.Renderer`.

    Args:
        batch: the simulations.
    """

    def __init__(self, batch: mujoco.batch.Batch) -> None:
        self._batch = batch
        self._renderers: dict[tuple[int, int], Any] = {}
        self._data = mujoco.MjData(batch.model)
        self._option = mujoco.MjvOption()
        self._option.geomgroup[:] = np.arange(mujoco.mjNGROUP) < GROUPS_SHOWN
        self._option.sitegroup[:] = 0

    def render(self, env: int, view: AnyView, width: int, height: int) -> NDArray[np.uint8]:
        """Render an image (height, width, 3).

        Raises:
            CapabilityError: OpenGL cannot be used here.
        """
        model = self._batch.get_model(env)
        data = self._batch.get_data(env, self._data)
        mujoco.mj_forward(model, data)
        renderer = self._renderer(width, height)
        renderer.update_scene(data, -1, self._option)
        _place(renderer.scene, view, data, model, width / height)
        return np.array(renderer.render())

    def _renderer(self, width: int, height: int) -> Any:
        if (width, height) not in self._renderers:
            for old in self._renderers.values():
                old.close()
            made = opened(self._batch.model, width, height)
            # close at finalization: at interpreter exit the modules that closing needs may already be gone
            weakref.finalize(self, made.close)
            self._renderers = {(width, height): made}
        return self._renderers[width, height]


def opened(model: mujoco.MjModel, width: int, height: int) -> Any:
    """Create a `mujoco.Renderer` for images of a size.

    Raises:
        CapabilityError: OpenGL cannot be used here; the message says what to install or set.
    """
    model.vis.global_.offwidth = max(int(model.vis.global_.offwidth), width)
    model.vis.global_.offheight = max(int(model.vis.global_.offheight), height)
    try:
        # without a display, GLFW emits warnings that repeat the error below
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return mujoco.Renderer(model, height, width)
    except (mujoco.FatalError, ImportError, AttributeError, RuntimeError, OSError) as error:
        setting = os.environ.get("MUJOCO_GL", "")
        raise CapabilityError(
            f"renderer 'mujoco' needs OpenGL, which does not start here (MUJOCO_GL={setting!r}: {_line(error)}): set"
            " MUJOCO_GL=egl (a graphics driver) or MUJOCO_GL=osmesa (the library libosmesa6) before Python starts, or"
            " use renderer 'ray' or 'raster', which need none"
        ) from error


def _line(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:100]


def _place(scene: Any, view: AnyView, data: Any, model: Any, aspect: float) -> None:
    """Set the scene's two cameras (stereo pair) to the pose of a view."""
    _, up, near = axes_w(view)
    if isinstance(view, View):
        eye = np.asarray(view.eye_w, np.float64)
        half_height = NEAR_M * np.tan(np.radians(view.fovy_deg) / 2)
        half_width, orthographic = half_height * aspect, 0
    else:
        center = np.asarray(view.center_w, np.float64)
        if view.track is not None:
            center = center + data.body(view.track).xpos * (1.0, 1.0, float(view.track_height))
        eye = center + FAR_SHARE / 2 * model.stat.extent * near
        half_width, orthographic = view.width_m / 2, 1
        half_height = half_width / aspect
    for camera in scene.camera:
        camera.pos[:], camera.forward[:], camera.up[:] = eye, -near, up
        camera.frustum_center, camera.frustum_width = 0.0, half_width
        camera.frustum_bottom, camera.frustum_top = -half_height, half_height
        camera.frustum_near, camera.frustum_far = NEAR_M, FAR_SHARE * model.stat.extent
        camera.orthographic = orthographic
