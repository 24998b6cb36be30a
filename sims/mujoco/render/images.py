"""Image observations: for each requested camera an array "image_NAME" (N, S, S, 3), rendered in every step."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Protocol, Self, TypeVar

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


class Seeing(Protocol):
    """A sim that can add images to its observations."""

    def see(self, image: Sequence[str], image_size: int, image_renderer: Renderer) -> Self:
        """Add images to the observation."""
        ...


S = TypeVar("S", bound=Seeing)

_OPTIONS = """
image: cameras whose pictures are part of the observation, as "image_NAME"; docs/cameras.md has more.
image_size: pixels of a side of these pictures, 8 to 512.
image_renderer: what draws them: "auto", "raster", "ray" or "mujoco".
""".strip().splitlines()
_DEFAULTS: dict[str, Any] = {"image": (), "image_size": 64, "image_renderer": "auto"}


def with_images(make: Callable[..., S]) -> Callable[..., S]:
    """Add the options `image`, `image_size`, `image_renderer` to a sim factory, its signature and its docstring.

    Args:
        make: `make(num_envs, seed, *, ...)`, whose docstring has a "Raises:" section after its arguments.
    """

    @wraps(make)
    def made(
        num_envs: int,
        seed: int,
        *,
        image: Sequence[str] | str = (),
        image_size: int = 64,
        image_renderer: Renderer = "auto",
        **options: Any,
    ) -> S:
        sim = make(num_envs, seed, **options)
        names = (image,) if isinstance(image, str) else tuple(image)
        return sim.see(names, image_size, image_renderer) if names else sim

    signature = inspect.signature(make)
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(name, kind, default=default) for name, default in _DEFAULTS.items()]
    whole: Any = made
    whole.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])
    whole.__kwdefaults__ = {**(make.__kwdefaults__ or {}), **_DEFAULTS}
    lines = re.sub(r"\n\n( *)Raises:", _inserted, make.__doc__ or "", count=1)
    whole.__doc__ = lines
    return made


def _inserted(found: re.Match[str]) -> str:
    indent = found[1] + "    "
    return "".join(f"\n{indent}{line}" for line in _OPTIONS) + found[0]
