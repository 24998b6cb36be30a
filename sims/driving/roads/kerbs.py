"""Places beside the lanes where people wait before a crosswalk.

Files draw a crosswalk as its stripes, which may end on a lane. People wait at its ends, so these are moved outwards to
the edge of the lanes, or to an island between carriageways.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.driving.roads.lanes import Crosswalk, Points, RoadBuilder
from robotrl.sims.driving.roads.levels import LEVEL_M

FARTHEST_M = 15.0
"""Largest distance by which an end is moved."""
STEP_M = 0.1
ISLAND_M = 1.0
"""Width of the strip without lanes on which somebody can wait."""
STAND_M = 0.5
"""Distance of who waits from the edge of the lanes."""
INSIDE_M = 0.01
"""Distance within a lane's edge that counts as beside it."""


def from_kerb_to_kerb(builder: RoadBuilder, heights: Sequence[NDArray[np.float64]]) -> list[Crosswalk]:
    """Crosswalks of a map; ends on a lane are moved outwards to where people can wait.

    Args:
        builder: the map.
        heights: (n,) height at each point of each lane, m.
    """
    if not builder.crosswalks:
        return []
    lanes = _Pieces(builder, heights)
    return [
        walk._replace(
            start=_moved(lanes, walk.end, walk.start, walk.height_m),
            end=_moved(lanes, walk.start, walk.end, walk.height_m),
        )
        for walk in builder.crosswalks
    ]


def _moved(
    lanes: _Pieces, source: tuple[float, float], end: tuple[float, float], height_m: float
) -> tuple[float, float]:
    """End of a crosswalk from `source`, moved on in its direction if it is on a lane and there is a place to wait."""
    way = np.subtract(end, source)
    length = float(np.hypot(*way))
    if length < 1e-6:
        return end
    ahead = np.arange(0.0, FARTHEST_M + ISLAND_M, STEP_M)
    covered = lanes.cover(np.asarray(end) + ahead[:, None] * way / length, height_m)
    if not covered[0]:
        return end
    needed = round(ISLAND_M / STEP_M)
    free = np.lib.stride_tricks.sliding_window_view(~covered, needed).all(1)
    if not free.any():
        return end
    x, y = np.asarray(end) + (ahead[int(free.argmax())] + STAND_M) * way / length
    return float(x), float(y)


class _Pieces:
    """Pieces between the points of all lanes."""

    def __init__(self, builder: RoadBuilder, heights: Sequence[NDArray[np.float64]]) -> None:
        self.start = np.concatenate([lane.points[:-1] for lane in builder.lanes])
        step = np.concatenate([np.diff(lane.points, axis=0) for lane in builder.lanes])
        self.length = np.linalg.norm(step, axis=1)
        self.along = step / self.length[:, None]
        self.height = np.concatenate([height[:-1] for height in heights])
        widths = [np.full(len(x.points), x.width_m) if x.widths_m is None else x.widths_m for x in builder.lanes]
        self.half = np.concatenate([0.5 * np.maximum(width[:-1], width[1:]) for width in widths])

    def cover(self, points: Points, height_m: float) -> NDArray[np.bool_]:
        """True for each of (k, 2) points that lies on a lane at about this height."""
        low, high = points.min(0), points.max(0)
        reach = self.half + self.length
        near = ((self.start + reach[:, None] >= low) & (self.start - reach[:, None] <= high)).all(1)
        near &= np.abs(self.height - height_m) <= LEVEL_M
        apart = points[:, None] - self.start[near]
        cos, sin = self.along[near].T
        u, w = apart[..., 0] * cos + apart[..., 1] * sin, apart[..., 1] * cos - apart[..., 0] * sin
        on = (u >= 0.0) & (u <= self.length[near]) & (np.abs(w) < self.half[near] - INSIDE_M)
        return on.any(1)
