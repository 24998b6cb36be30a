"""The camera in the batch: flat pictures of all envs at once, without a graphics library.

Boxes, spheres, ellipsoids, capsules, cylinders, floors and height fields are drawn as their orthographic silhouettes,
with smooth edges (the share of each pixel that is covered), lit from the camera, the nearest surface in front at each
pixel. A mesh is drawn as the box that bounds it. Sites are not drawn, and what has any opacity is opaque.
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
"""Bounds the memory that the loops in numpy take."""

Loops = Callable[[Sheet, NDArray[np.float32], NDArray[np.int64], NDArray[np.uint8]], None]
"""Fills the rows of pictures from a sheet: `raster_pixels.draw`, or the compiled one."""


class RasterCamera:
    """Draws envs of a batch as flat rasters.

    Args:
        batch: the simulations. Their derived fields must be up to date whenever `draw` is called.
        threads: threads that fill pixels.
    """

    def __init__(self, batch: mujoco.batch.Batch, threads: int) -> None:
        self._scene = Scene(batch)
        self._loops = pixel_loops(threads)
        self._background = np.asarray(BACKGROUND_RGB, np.float32)

    def draw(self, view: Raster, env_ids: NDArray[np.int64], out: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        """Draw some envs into rows of an array.

        Args:
            view: where the camera is.
            env_ids: (n,) which envs.
            out: (rows, height, width, 3) pictures, C-contiguous.
            rows: (n,) the row of each env, each once.
        """
        height, width = out.shape[1:3]
        for first in range(0, len(env_ids), ENVS_AT_ONCE):
            some = slice(first, first + ENVS_AT_ONCE)
            self._loops(self._scene.sheet(view, width, height, env_ids[some]), self._background, rows[some], out)


def pixel_loops(threads: int) -> Loops:
    """The compiled loops on so many threads; with one warning, those in numpy where no compiler is found."""
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
    """The loops of `raster.c`.

    Args:
        threads: how many threads share the envs.

    Raises:
        NoCompiler: they cannot be compiled.
    """

    def __init__(self, threads: int) -> None:
        self._function = compiled(Path(__file__).with_name("raster.c")).raster
        self._function.restype = None
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "raster") if threads > 1 else None

    def __call__(
        self, sheet: Sheet, background: NDArray[np.float32], rows: NDArray[np.int64], out: NDArray[np.uint8]
    ) -> None:
        """As `raster_pixels.draw`."""
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
