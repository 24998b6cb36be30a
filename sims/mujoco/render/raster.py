"""Batched orthographic raster camera: renders all envs at once, without a graphics library.

Boxes, spheres, ellipsoids, capsules, cylinders, floors and height fields are drawn as orthographic silhouettes with
antialiased edges (pixel coverage), lit from the camera, with a depth test per pixel. A mesh is drawn as its bounding
box. Sites are not drawn, and partially transparent geoms are drawn opaque.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import mujoco.batch
import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.engine.native import NoCompiler, compiled
from robotrl.sims.mujoco.render.raster_pixels import draw as draw_numpy
from robotrl.sims.mujoco.render.raster_scene import Scene, Sheet
from robotrl.sims.mujoco.render.views import Raster

BACKGROUND_RGB = (0.80, 0.86, 0.92)
ENVS_AT_ONCE = 256
"""Envs per call of the numpy loops, to bound their memory."""

Loops = Callable[[Sheet, NDArray[np.float32], NDArray[np.int64], NDArray[np.uint8]], None]
"""Pixel-filling function: `raster_pixels.draw`, or the compiled version."""


class RasterCamera:
    """Renders envs of a batch as orthographic rasters.

    Args:
        batch: the simulations; derived fields must be up to date when `draw` is called.
        threads: number of threads that fill pixels.
    """

    def __init__(self, batch: mujoco.batch.Batch, threads: int) -> None:
        self._scene = Scene(batch)
        self._loops = pixel_loops(threads)
        self._background = np.asarray(BACKGROUND_RGB, np.float32)

    def draw(self, view: Raster, env_ids: NDArray[np.int64], out: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        """Render some envs into rows of an array.

        Args:
            view: pose of the camera.
            env_ids: (n,) envs to render.
            out: (rows, height, width, 3) images, C-contiguous.
            rows: (n,) row of `out` for each env; no duplicates.
        """
        height, width = out.shape[1:3]
        for first in range(0, len(env_ids), ENVS_AT_ONCE):
            some = slice(first, first + ENVS_AT_ONCE)
            self._loops(self._scene.sheet(view, width, height, env_ids[some]), self._background, rows[some], out)


def pixel_loops(threads: int) -> Loops:
    """Compiled pixel loops on `threads` threads, or, with one warning, the numpy loops if no compiler is found."""
    try:
        return Compiled(threads)
    except NoCompiler as error:
        _warn_once(str(error))
        return draw_numpy


@cache
def _warn_once(reason: str) -> None:
    warnings.warn(
        f"{reason}: the raster camera draws the same pictures in numpy, about fifty times as slowly", stacklevel=4
    )


class Compiled:
    """Compiled pixel loops of `raster.c`.

    Args:
        threads: number of threads that share the envs.

    Raises:
        NoCompiler: the C file cannot be compiled.
    """

    def __init__(self, threads: int) -> None:
        self._function = compiled(Path(__file__).with_name("raster.c")).raster
        self._function.restype = None
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "raster") if threads > 1 else None

    def __call__(
        self, sheet: Sheet, background: NDArray[np.float32], rows: NDArray[np.int64], out: NDArray[np.uint8]
    ) -> None:
        """Fill pixels; same arguments as `raster_pixels.draw`."""
        envs, geoms = sheet.order.shape
        height, width = out.shape[1:3]
        if not (out.flags.c_contiguous and (envs == 0 or 0 <= rows.min() <= rows.max() < len(out))):
            raise ValueError(f"out of shape {out.shape} must be contiguous and hold the rows {rows.tolist()}")
        arrays = [np.ascontiguousarray(array) for array in (sheet.kind, sheet.window, sheet.order, sheet.params)]
        arrays += [sheet.grid, sheet.heights, background, np.ascontiguousarray(rows, np.int64)]
        pointers: list[Any] = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
        target = ctypes.c_void_p(out.ctypes.data)

        def part(first: int, last: int) -> None:
            self._function(*pointers, first, last, geoms, width, height, target)

        cuts = np.linspace(0, envs, min(self._threads, max(envs, 1)) + 1).astype(int).tolist()
        (first, *others) = pairwise(cuts)
        others_done = [self._pool.submit(part, *pair) for pair in others] if self._pool is not None else []
        part(*first)
        for done in others_done:
            done.result()
