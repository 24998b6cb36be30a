"""Spots on the lanes of a large map, by cell of its grid: places where traffic may appear around the ego."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.driving import tables

SPOT_M = 8.0
"""Distance of spots along the lanes."""
LOCAL_M = 2000.0
"""Length of the lanes outside junctions from which a map has spots; the procedural roads have 1,520 m at most, and
never spots."""


class Spots(NamedTuple):
    """Spots of a map, cell by cell."""

    spots: NDArray[Any]
    """(S,) `tables.SPOT`; none on a small map."""
    first: NDArray[np.int32]
    """(cells + 1,) first spot of each cell of the grid."""


NO_SPOTS = Spots(np.zeros(0, tables.SPOT), np.zeros(0, np.int32))


def spots_of(
    lanes: NDArray[Any], points: NDArray[Any], grid: tuple[int, ...], origin: tuple[float, float], cell_m: float
) -> Spots:
    """Spots at equal distances along the lanes outside junctions.

    Args:
        lanes: `tables.LANE` records.
        points: `tables.POINT` records.
        grid: rows and columns of the grid.
        origin: x, y of the corner of its first cell, m.
        cell_m: size of its cells.
    """
    open_lanes = np.flatnonzero(lanes["junction"] < 0)
    ends = np.cumsum(lanes["length"][open_lanes].astype(np.float64))
    if not len(ends) or ends[-1] <= LOCAL_M:
        return NO_SPOTS
    at = np.arange(0.5 * SPOT_M, ends[-1], SPOT_M)
    which = np.minimum(np.searchsorted(ends, at, "right"), len(ends) - 1)
    rows = lanes[open_lanes[which]]
    s = at - ends[which] + rows["length"]
    place = points[rows["first"] + np.minimum((s * rows["per_m"]).astype(np.int64), rows["count"] - 1)]
    row, column = ((place[axis] - low) / cell_m for axis, low in (("y", origin[1]), ("x", origin[0])))
    number = np.clip(row.astype(int), 0, grid[0] - 1) * grid[1] + np.clip(column.astype(int), 0, grid[1] - 1)
    order = np.argsort(number, kind="stable")
    out = np.zeros(len(at), tables.SPOT)
    out["lane"], out["s"] = open_lanes[which][order], s[order]
    return Spots(out, np.searchsorted(number[order], np.arange(grid[0] * grid[1] + 1)).astype(np.int32))
