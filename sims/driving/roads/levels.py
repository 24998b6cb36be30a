"""Surface of a map in levels, where lanes lie above one another: bridges, ramps, roads that cross themselves.

The drawn surface (`maps.RoadMap.tile`) is flat. Where two lanes lie above one another, each cell of it has a layer for
each level besides, with its height. Layers are kept in blocks of cells, and only where there is a road. A map without
such lanes has no layers, and kernels compare no heights on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.roads.lanes import Points

Offsets = NDArray[np.float64]

CELL_M = 0.5
"""Cell size of the drawn surface."""
LEVEL_M = 2.0
"""Difference of heights, more than a car's, from which two places are on different levels."""
HEIGHT_M = 0.1
"""Resolution of the layers' heights."""
BLOCK = 32
"""Rows and columns of a block, cells."""
LAYER_CELLS = BLOCK * BLOCK
MOST_LAYERS = 4
EMPTY = -32768
"""Height of a layer's cell that has no surface."""
SLOPE_M = 10.0
"""Length of the shortest lane whose slope counts."""
STEEPEST = 0.15
FLAT = np.zeros(0)
"""Heights of a strip that is drawn into the flat surface."""


class SurfaceStrip(NamedTuple):
    """Strip of the surface along a polyline."""

    lane: int
    """Its lane, -1 for a crosswalk."""
    points: Any
    """(n,) `tables.POINT`."""
    right: Offsets
    """(n,) offset of its right edge at each point, m, left positive."""
    left: Offsets
    bit: int
    dash: float
    """Length of its dashes, m; 0 for none."""
    height_m: float = 0.0
    """Height of a strip without a lane."""


class Layers(NamedTuple):
    """Layers under construction: `MOST_LAYERS` for each block that has a road."""

    block_index: NDArray[np.int32]
    """(block rows, block columns) number of each block; -1 without a road."""
    bits: NDArray[np.uint8]
    """(blocks, MOST_LAYERS, LAYER_CELLS) surface bits."""
    heights: NDArray[np.int16]
    """Likewise, in units of `HEIGHT_M` above the lowest place; `EMPTY` without a surface."""
    lowest: float


NO_LAYERS = Layers(np.zeros((1, 1), np.int32), np.zeros((1, 1, 1), np.uint8), np.zeros((1, 1, 1), np.int16), 0.0)


class Levels(NamedTuple):
    """Surface of a map in levels."""

    blocks: NDArray[np.int32]
    """(block rows, block columns, 2) first layer and number of layers."""
    bits: NDArray[np.uint8]
    """(layers, LAYER_CELLS); no rows where no lane lies above another."""
    heights: NDArray[np.int16]
    lowest: float
    grade: float
    """Steepest slope of a lane, m for each metre."""


@kernel
def mark(layers: Layers, row: int, column: int, height: float, bit: int) -> None:
    """Set a bit in the layer of a cell that has this height; the first empty one if none has."""
    block = layers.block_index[row // BLOCK, column // BLOCK]
    cell = (row % BLOCK) * BLOCK + column % BLOCK
    z = round((height - layers.lowest) / HEIGHT_M)
    for k in range(MOST_LAYERS):
        there = int(layers.heights[block, k, cell])
        if there == EMPTY:
            layers.heights[block, k, cell] = there = z
        if abs(there - z) * HEIGHT_M <= LEVEL_M:
            layers.bits[block, k, cell] |= bit
            return


@kernel
def stamp(
    tile: NDArray[np.uint8],
    layers: Layers,
    x0: float,
    y0: float,
    points: Any,
    right: Offsets,
    left: Offsets,
    bit: int,
    dash: float,
    heights: Offsets,
) -> None:
    """Set a bit in the cells of a strip along a polyline; dashes of `dash` m if > 0.

    Args:
        tile: flat surface, drawn into without `heights`.
        layers: surface in levels, drawn into with `heights`.
        x0: x of the first cell's corner, m.
        y0: y of the first cell's corner, m.
        points: (n,) points of the polyline.
        right: (n,) offset of the right edge at each point.
        left: (n,) offset of the left edge.
        bit: the bit.
        dash: length of the dashes, m.
        heights: (n,) height at each point, m; none for the flat surface.
    """
    step = 0.2
    for i in range(len(points) - 1):
        a, b = points[i], points[i + 1]
        span = math.hypot(b.x - a.x, b.y - a.y)
        parts = max(int(span / step), 1)
        for k in range(parts + 1):
            u = k / parts
            if dash > 0.0 and ((i + u) * span) % (2.0 * dash) >= dash:
                continue
            x, y = a.x + u * (b.x - a.x), a.y + u * (b.y - a.y)
            c, s = a.cos + u * (b.cos - a.cos), a.sin + u * (b.sin - a.sin)
            low, high = right[i] + u * (right[i + 1] - right[i]), left[i] + u * (left[i + 1] - left[i])
            across = max(int((high - low) / step), 1)
            for j in range(across + 1):
                d = low + (high - low) * j / across
                row, column = int((y + d * c - y0) / CELL_M), int((x - d * s - x0) / CELL_M)
                if len(heights) > 0:
                    mark(layers, row, column, heights[i] + u * (heights[i + 1] - heights[i]), bit)
                else:
                    tile[row, column] |= bit


def levels_of(
    tile: NDArray[np.uint8],
    origin: tuple[float, float],
    strips: Sequence[SurfaceStrip],
    heights: Sequence[Offsets],
    centers: Sequence[Points],
) -> Levels:
    """Surface in levels.

    Args:
        tile: flat surface.
        origin: x, y of the corner of its first cell, m.
        strips: strips that it consists of.
        heights: height at each point of each lane, m.
        centers: (n, 2) points of each lane.
    """
    whole = np.concatenate(heights)
    if np.ptp(whole) <= LEVEL_M:
        return _none()
    layers = _empty_layers(tile, float(whole.min()))
    for strip in strips:
        z = heights[strip.lane] if strip.lane >= 0 else np.full(len(strip.points), strip.height_m)
        stamp(tile, layers, *origin, *strip[1:6], z)
    there = (layers.heights != EMPTY).any(2)
    if not there[:, 1:].any():
        return _none()
    drawn = layers.bits
    drawn[(drawn & tables.DRIVABLE) > 0] &= ~np.uint8(tables.SHOULDER)
    counts = there.sum(1)
    blocks = np.zeros((*layers.block_index.shape, 2), np.int32)
    found = layers.block_index >= 0
    blocks[found] = np.stack([np.cumsum(counts) - counts, counts], axis=1)[layers.block_index[found]]
    return Levels(blocks, drawn[there], layers.heights[there], layers.lowest, _grade(heights, centers))


def _none() -> Levels:
    empty = np.zeros((0, LAYER_CELLS))
    return Levels(np.zeros((0, 0, 2), np.int32), empty.astype(np.uint8), empty.astype(np.int16), 0.0, 0.0)


def _empty_layers(tile: NDArray[np.uint8], lowest: float) -> Layers:
    rows, columns = (-(-n // BLOCK) for n in tile.shape)
    padded = np.zeros((rows * BLOCK, columns * BLOCK), np.bool_)
    padded[: tile.shape[0], : tile.shape[1]] = tile > 0
    roads = padded.reshape(rows, BLOCK, columns, BLOCK).any((1, 3))
    index = np.where(roads, np.cumsum(roads).reshape(roads.shape) - 1, -1).astype(np.int32)
    size = (int(roads.sum()), MOST_LAYERS, LAYER_CELLS)
    return Layers(index, np.zeros(size, np.uint8), np.full(size, EMPTY, np.int16), lowest)


def _grade(heights: Sequence[Offsets], centers: Sequence[Points]) -> float:
    slopes = [0.0]
    for z, center in zip(heights, centers, strict=True):
        length = float(np.linalg.norm(np.diff(center, axis=0), axis=1).sum())
        if length >= SLOPE_M:
            slopes.append(float(np.ptp(z)) / length)
    return min(max(slopes), STEEPEST)
