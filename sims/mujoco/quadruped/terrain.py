"""Terrains: a plane, or a height field of tiles with increasing difficulty."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import unknown
from robotrl.fn.random import counter_rng
from robotrl.sims.mujoco.engine.arrays import Array, ArrayNamespace
from robotrl.sims.mujoco.engine.task import TaskPhysics

Reals = NDArray[np.float64]
Kind = Literal["flat", "rough", "slopes", "steps"]
KINDS: tuple[Kind, ...] = ("flat", "rough", "slopes", "steps")

TILE_M = 8.0
CELL_M = 0.1
COLUMNS = 3
"""Number of tiles of each difficulty."""
PLATFORM_M = 2.0
"""Side length of the flat square in the centre of each tile of slopes or steps."""
ROUGH_M = 0.08
"""Height of the bumps on the hardest rough tile."""
SLOPE = 0.35
"""Rise over run of the hardest slope (19 degrees)."""
STEP_RISE_M, STEP_RUN_M = 0.10, 0.4
"""Rise and run of the hardest steps."""
_SEED = 0x7E22


class Terrain(NamedTuple):
    """Terrain shared by all envs."""

    geoms: str
    """MJCF of the world's geoms."""
    assets: str
    """MJCF of the assets of these geoms."""
    grid: Array
    """Heights (rows along y, columns along x), m, every `CELL_M`; empty for a plane."""
    low_x_m: float
    """x of the grid's first column."""
    low_y_m: float
    """y of the grid's first row."""
    levels: int
    xp: ArrayNamespace = np
    """Functions of the grid's array."""

    def on(self, physics: TaskPhysics) -> Terrain:
        """The terrain with its grid on the device of a physics."""
        return self._replace(grid=physics.array(self.grid), xp=physics.xp)

    def height(self, x: Array, y: Array) -> Array:
        """Height of the ground under points, in m: bilinear on the grid, 0 beyond it."""
        xp, (rows, columns) = self.xp, self.grid.shape
        if not rows:
            return xp.zeros_like(x)
        u, v = (x - self.low_x_m) / CELL_M, (y - self.low_y_m) / CELL_M
        outside = (u < 0) | (v < 0) | (u > columns - 1) | (v > rows - 1)
        i = xp.clip(xp.asarray(u, dtype=xp.int64), 0, columns - 2)
        j = xp.clip(xp.asarray(v, dtype=xp.int64), 0, rows - 2)
        a, b = xp.clip(u - i, 0, 1), xp.clip(v - j, 0, 1)
        lower = self.grid[j, i] * (1 - a) + self.grid[j, i + 1] * a
        upper = self.grid[j + 1, i] * (1 - a) + self.grid[j + 1, i + 1] * a
        return xp.where(outside, 0.0, lower * (1 - b) + upper * b)

    def places(self, u: Reals) -> Reals:
        """Start points (n, 2) from uniform numbers (n, 4): a level, a column, and a point near the tile's centre."""
        if not len(self.grid):
            return np.zeros((len(u), 2))
        level, column = (u[:, 0] * self.levels).astype(np.int64), (u[:, 1] * COLUMNS).astype(np.int64)
        x = self.low_x_m + TILE_M * (level + 0.5) + PLATFORM_M / 2 * (u[:, 2] - 0.5)
        y = self.low_y_m + TILE_M * (column + 0.5) + PLATFORM_M / 2 * (u[:, 3] - 0.5)
        return np.stack([x, y], axis=1)


def make_terrain(kind: Kind, levels: int) -> Terrain:
    """Build a terrain.

    Args:
        kind: "flat"; "rough", bumps; "slopes", pyramids and pits; "steps", the same with stairs.
        levels: rows of tiles along x, from easy to hard; starts are spread over them.

    Raises:
        ConfigError: unknown kind.
    """
    if kind not in KINDS:
        raise unknown("terrain", str(kind), KINDS)
    plane = '<geom name="ground" class="ground" type="plane" size="0 0 1"/>'
    if kind == "flat":
        return Terrain(plane, "", np.zeros((0, 0)), 0.0, 0.0, levels)
    cells = round(TILE_M / CELL_M)
    grid = np.zeros((COLUMNS * cells + 1, levels * cells + 1))
    for level in range(levels):
        for column in range(COLUMNS):
            tile = _tile(kind, (level + 1) / levels, level * COLUMNS + column)
            grid[column * cells : (column + 1) * cells + 1, level * cells : (level + 1) * cells + 1] = tile
    # the lowest point must be at the plane's level: height fields count from their lowest point, and robots walk
    # from the rim on to the plane
    low_x, low_y = -levels * TILE_M / 2, -COLUMNS * TILE_M / 2
    top = float(grid.max())
    # in MJCF the first row has the largest y
    values = " ".join(f"{value:.4g}" for value in (grid / top)[::-1].ravel())
    shape = f'nrow="{grid.shape[0]}" ncol="{grid.shape[1]}" size="{-low_x} {-low_y} {top} 0.5"'
    assets = f'<hfield name="terrain" {shape} elevation="{values}"/>'
    field = '<geom name="terrain" class="ground" type="hfield" hfield="terrain" rgba="0.80 0.82 0.80 1"/>'
    return Terrain(plane + field, assets, grid, low_x, low_y, levels)


def _tile(kind: Kind, difficulty: float, number: int) -> Reals:
    """Heights of one tile, m; 0 along its rim."""
    cells = round(TILE_M / CELL_M)
    axis = np.arange(cells + 1) * CELL_M
    from_rim = np.minimum(axis, TILE_M - axis)
    rim: Reals = np.minimum(from_rim[:, None], from_rim[None, :])
    if kind == "rough":
        coarse = counter_rng.uniform(_SEED, np.arange(number * 10_000, number * 10_000 + (cells // 2 + 1) ** 2), 1)
        # every coarse value covers a square of two by two cells
        bumps = coarse.reshape(cells // 2 + 1, -1).repeat(2, axis=0).repeat(2, axis=1)[: cells + 1, : cells + 1]
        return ROUGH_M * difficulty * bumps * (rim > 0)
    run = np.minimum(rim, (TILE_M - PLATFORM_M) / 2)
    if kind == "slopes":
        return SLOPE * difficulty * run
    return STEP_RISE_M * difficulty * np.floor(run / STEP_RUN_M + 1e-9)


def elevation(model: Any) -> Reals:
    """Heights (rows, columns), m, of a model's height field as stored by MuJoCo."""
    rows, columns = int(model.hfield_nrow[0]), int(model.hfield_ncol[0])
    return np.asarray(model.hfield_data).reshape(rows, columns) * float(model.hfield_size[0][2])
