"""Color images of the driving sim in bird's eye view, for videos and debugging."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, out_of_range
from robotrl.sims.driving.core import DrivingCore
from robotrl.sims.driving.kernels import draw_envs, paint_envs
from robotrl.sims.driving.render import raster


class FieldOfView(NamedTuple):
    """Field of view of a camera."""

    span_m: float
    """Visible extent along the smaller image side, m."""
    behind: float
    """Share of the image's height that lies behind the ego's center."""


# near: 26 m ahead and 18 m behind hold all but some 3 of 100 road users who are less than 1.5 s away
VIEWS = {"top": FieldOfView(70.0, 0.3), "near": FieldOfView(44.0, 0.4)}
"""Cameras by name."""
BACKGROUND = (38, 44, 40)
LAYERS = (
    (raster.SHOULDER, (62, 66, 62)),
    (raster.ROAD, (96, 100, 104)),
    (raster.ROUTE, (84, 118, 104)),
    (raster.WALK, (176, 176, 176)),
    (raster.BROKEN, (190, 190, 150)),
    (raster.SOLID, (225, 225, 225)),
    (raster.LIMIT, (70, 110, 190)),
    (raster.STOP, (170, 60, 60)),
    (raster.GREEN, (60, 190, 90)),
    (raster.YELLOW, (235, 190, 60)),
    (raster.RED, (225, 60, 50)),
    (raster.VEHICLE, (86, 150, 220)),
    (raster.VULNERABLE, (240, 140, 60)),
    (raster.MOTION, (80, 235, 235)),
)
"""Bits of a packed pixel and their colours; later ones cover earlier ones."""
EGO, EGO_MOTION = (250, 214, 90), (235, 90, 215)


@cache
def colors() -> NDArray[np.uint8]:
    """Colour table (1 << raster.BITS, 3) of all packed pixel values; read-only."""
    bits = np.arange(1 << raster.BITS)
    out = np.empty((len(bits), 3), np.uint8)
    out[:] = BACKGROUND
    for bit, color in LAYERS:
        out[bits & bit > 0] = color
    out.flags.writeable = False
    return out


def draw(core: DrivingCore, ids: Sequence[int], camera: str, width: int, height: int) -> NDArray[np.uint8]:
    """Images (n, height, width, 3) of some envs; the ego is yellow and faces up.

    Lines from the middles of the boxes, the ego's too, reach to where these will be in a second at their speed; they
    cover the boxes, so that slow can be told from standing, in colors that no marking of the road has.
    """
    envs = np.asarray(ids, np.int64)
    if envs.ndim != 1 or ((envs < 0) | (envs >= core.num_envs)).any():
        raise ConfigError(f"ids is {envs.tolist()}: expected env numbers from 0 to {core.num_envs - 1}")
    for name, value in (("width", width), ("height", height)):
        if value < 1:
            raise out_of_range(name, value, "1 pixel or more")
    view = VIEWS[camera]
    ppm = min(width, height) / view.span_m
    core.machine.wait()
    views = raster.make_views(np.zeros, raster.RasterCfg(height, width, ppm, view.behind), core.num_envs, packed=True)
    # a picture shows the truth
    world = core.world._replace(localized=core.world.localized[:0])
    draw_envs(core.bank.arrays, world, views, raster.channel_table(), envs, 0, len(envs))
    out = np.empty((len(envs), height, width, 3), np.uint8)
    paint_envs(views, colors(), out, envs)
    middle_row, middle_column = height * (1 - view.behind), width / 2
    half, wide = 0.5 * ppm * core.world.agents["length"][0, 0], 0.5 * ppm * core.world.agents["width"][0, 0]
    thin = 0.3 * ppm
    line = slice(round(middle_column - thin), max(round(middle_column + thin), round(middle_column - thin) + 1))
    rows, columns = (slice(round(m - h), round(m + h)) for m, h in ((middle_row, half), (middle_column, wide)))
    out[:, rows, columns] = EGO
    for image, speed in zip(out, core.world.egos["v"][envs], strict=True):
        image[max(round(middle_row - ppm * float(speed)), 0) : round(middle_row), line] = EGO_MOTION
    return out
