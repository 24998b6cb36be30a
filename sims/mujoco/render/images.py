"""Image observations: for each requested camera an array "image_NAME" (N, S, S, 3), rendered in every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, out_of_range
from robotrl.sims.mujoco.engine.physics import Physics
from robotrl.sims.mujoco.render.cameras import Cameras, Renderer
from robotrl.spec import Spec

MIN_SIZE, MAX_SIZE = 8, 512


class Images:
    """Renders the image arrays of observations.

    Args:
        cameras: the renderers.
        physics: the simulations to render.
        names: names of the cameras, each once.
        size: side length of the square images, pixels.
        renderer: see `robotrl.sims.mujoco.render.cameras.RENDERERS`.

    Raises:
        ConfigError: an unknown camera or one named twice, or a size out of range.
        CapabilityError: the renderer does not support one of the cameras.
    """

    def __init__(
        self, cameras: Cameras, physics: Physics, names: Sequence[str], size: int, renderer: Renderer = "auto"
    ) -> None:
        if type(size) is not int or not MIN_SIZE <= size <= MAX_SIZE:
            raise out_of_range("image_size", size, f"a whole number of pixels from {MIN_SIZE} to {MAX_SIZE}")
        if len(set(names)) != len(names):
            raise ConfigError(f"image is {tuple(names)!r}: expected each camera once")
        self._cameras, self._physics = cameras, physics
        self._poses_are_kept = physics.keep_poses()
        self._renderers: dict[str, Renderer] = {name: cameras.prepare(name, renderer) for name in names}
        self.specs = {f"image_{name}": image_spec(size) for name in names}

    def observe(self, out: Mapping[str, NDArray[Any]], env_ids: NDArray[np.int64]) -> None:
        """Render `env_ids` in their present state into the same rows of each image array of `out`."""
        if not self._poses_are_kept:
            self._physics.poses(env_ids)
        for name, renderer in self._renderers.items():
            self._cameras.fill(name, renderer, env_ids, out[f"image_{name}"])


def image_spec(size: int) -> Spec:
    """Spec of square images with `size` pixels per side."""
    return Spec((size, size, 3), ("r", "g", "b"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8")
