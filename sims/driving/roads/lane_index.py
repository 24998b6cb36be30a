"""Grid index of lane centre lines: lanes near a point, and the lane of each road user of an env.

A world that is told positions only (by a server, say) finds lanes, distances along them and offsets here.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.roads.lanes import NONE, Points, RoadBuilder, headings
from robotrl.sims.driving.roads.maps import RoadMap
from robotrl.sims.driving.world import Records

CELL_M = 4.0
HEADING_M = 3.0
"""Lateral offset that weighs as much as a heading difference of 1 rad when candidates are compared, m."""
BESIDE_M = 1.0
"""Distance beyond the edge of a lane up to which a road user belongs to it, m."""
LEAST_COSINE = 0.5
"""Cosine of the heading difference, 60 degrees, up to which a road user belongs to a lane."""
HALF_POINT_SPACING_M = 0.51
"""Largest distance from the middle of a segment to its ends: lanes have a point at least each metre."""

PIECE = np.dtype(
    [
        ("x", tables.F),  # its start
        ("y", tables.F),
        ("cos", tables.F),
        ("sin", tables.F),
        ("length", tables.F),  # m
        ("s", tables.F),  # m along the lane, of its start
        ("reach", tables.F),  # m from the centre line to where road users still belong to the lane
        ("lane", tables.J),  # index within the map
    ],
    align=True,
)
"""Segment between two points of a centre line."""


class LaneIndex(NamedTuple):
    """Segments of all centre lines of a map, sorted by the grid cell of their middle; lanes are numbered as in the map.

    Kernels may be given the tuple as it is.
    """

    pieces: Records
    """(P,) `PIECE` records."""
    first: NDArray[np.int32]
    """(rows * columns + 1,) index of the first piece of each cell; rows along y."""
    straight: NDArray[np.int32]
    """(lanes,) successor at whose end the heading differs least from that at the lane's end; -1 without."""
    rows: int
    columns: int
    x0: float
    """x of the corner of the first cell, m."""
    y0: float
    reach: float
    """Largest `reach` of any piece, m."""


class LanePlace(NamedTuple):
    """Place on a lane near a point."""

    lane: int
    s_m: float
    """Distance along the lane, m."""
    lateral_m: float
    """Offset of the point from the lane's centre, m, left positive."""
    heading_rad: float
    """Heading of the point relative to the lane, -pi to pi; 0 for a point without a heading."""
    distance_m: float
    """Distance from the centre line, m; more than the offset for a point before or behind the lane."""


def lane_index(road: RoadBuilder | RoadMap) -> LaneIndex:
    """Build the index of a map, finished or under construction."""
    if isinstance(road, RoadBuilder):
        centers = [lane.points for lane in road.lanes]
        widths = np.array([lane.width_m for lane in road.lanes])
        successors = [lane.next for lane in road.lanes]
    else:
        points = np.stack([road.points["x"], road.points["y"]], axis=1).astype(np.float64)
        centers = np.split(points, road.lanes["first"][1:])
        widths = road.lanes["width"].astype(np.float64)
        successors = [[int(n) for n in lane["next"] if n != NONE] for lane in road.lanes]
    pieces, middles = _pieces(centers, widths)
    low = middles.min(0)
    columns, rows = (np.floor((middles.max(0) - low) / CELL_M).astype(int) + 1).tolist()
    column, row = ((middles - low) / CELL_M).astype(int).T
    cell = row * columns + column
    order = np.argsort(cell, kind="stable")
    return LaneIndex(
        pieces=pieces[order],
        first=np.searchsorted(cell[order], np.arange(rows * columns + 1)).astype(np.int32),
        straight=_straightest(centers, successors),
        rows=rows,
        columns=columns,
        x0=float(low[0]),
        y0=float(low[1]),
        reach=float(pieces["reach"].max()),
    )


def _pieces(centers: list[Points], widths: NDArray[np.float64]) -> tuple[Records, Points]:
    """Unsorted pieces of all lanes, and their middles (P, 2)."""
    counts = np.array([len(center) for center in centers])
    points = np.concatenate(centers)
    lane = np.repeat(np.arange(len(centers)), counts)
    inner = lane[1:] == lane[:-1]
    start, step = points[:-1][inner], np.diff(points, axis=0)[inner]
    length = np.linalg.norm(step, axis=1)
    lane = lane[:-1][inner]
    # along is 0 at the first piece of each lane
    along = np.concatenate([[0.0], np.cumsum(length)[:-1]])
    firsts = np.concatenate([[0], np.cumsum(counts - 1)[:-1]])
    out = np.zeros(len(lane), PIECE)
    out["x"], out["y"] = start.T
    out["cos"], out["sin"] = (step / length[:, None]).T
    out["length"], out["s"] = length, along - along[firsts][lane]
    out["reach"], out["lane"] = widths[lane] / 2 + BESIDE_M, lane
    return out, start + step / 2


def _straightest(centers: list[Points], successors: list[list[int]]) -> NDArray[np.int32]:
    ends = np.array([headings(center[-2:])[-1] for center in centers])
    out = np.full(len(centers), NONE, np.int32)
    for lane, following in enumerate(successors):
        if following:
            out[lane] = min(following, key=lambda n: 1.0 - math.cos(ends[n] - ends[lane]))
    return out


def lanes_near(index: LaneIndex, xy: ArrayLike, yaw: float | None, radius_m: float) -> list[LanePlace]:
    """Nearest place on each lane near a point.

    Args:
        index: index of the map's lanes.
        xy: (2,) point, m.
        yaw: its heading, rad; None to compare distances only.
        radius_m: largest distance from a centre line.

    Returns:
        One place for each lane within the radius, best first: by distance and, with a heading, heading difference
        (`HEADING_M`). Equally good ones are in the order of their lanes.
    """
    x, y = np.asarray(xy, np.float64)
    span = radius_m + HALF_POINT_SPACING_M
    low, high = (np.array([x, y]) - [index.x0, index.y0] - span, np.array([x, y]) - [index.x0, index.y0] + span)
    c0, r0 = np.maximum(np.floor(low / CELL_M), 0).astype(int)
    c1, r1 = np.minimum(np.floor(high / CELL_M), [index.columns - 1, index.rows - 1]).astype(int)
    if c1 < c0 or r1 < r0:
        return []
    rows = np.arange(r0, r1 + 1) * index.columns
    spans = zip(index.first[rows + c0].tolist(), index.first[rows + c1 + 1].tolist(), strict=True)
    near = np.concatenate([index.pieces[begin:end] for begin, end in spans])
    cos, sin = near["cos"].astype(np.float64), near["sin"].astype(np.float64)
    dx, dy = x - near["x"], y - near["y"]
    along = np.clip(dx * cos + dy * sin, 0.0, near["length"])
    distance = np.hypot(dx - along * cos, dy - along * sin)
    turned = np.zeros(len(near))
    if yaw is not None:
        turned = np.arctan2(math.sin(yaw) * cos - math.cos(yaw) * sin, math.cos(yaw) * cos + math.sin(yaw) * sin)
    cost = distance**2 + 2.0 * HEADING_M**2 * (1.0 - np.cos(turned))
    places: dict[int, LanePlace] = {}
    for i in np.lexsort((near["lane"], cost)):
        lane = int(near["lane"][i])
        if distance[i] <= radius_m and lane not in places:
            places[lane] = LanePlace(
                lane,
                float(near["s"][i] + along[i]),
                float(dy[i] * cos[i] - dx[i] * sin[i]),
                float(turned[i]),
                float(distance[i]),
            )
    return list(places.values())


def nearest_lane(index: LaneIndex, xy: ArrayLike) -> LanePlace:
    """Place on the lane nearest to a point, however far."""
    x, y = np.asarray(xy, np.float64)
    far = np.hypot(index.pieces["x"] - x, index.pieces["y"] - y).min()
    return lanes_near(index, (x, y), None, float(far) + 1.0)[0]


@kernel
def match_agents(agents: Any, row: Any, index: Any) -> None:
    """Write lane, s, d and next of all road users of one env from kind, x, y, cos and sin.

    A road user's lane is the one that fits best by distance and heading difference (`HEADING_M`). Its lane is -1 if it
    is a pedestrian, farther than half the width and `BESIDE_M` from every lane, or turned by more than 60 degrees. Next
    is the straightest successor.

    Args:
        agents: (A,) `tables.AGENT` records.
        row: `tables.MAP` record of the env's map: lanes are numbered as in `world.Maps`.
        index: `LaneIndex` of that map.
    """
    for i in range(len(agents)):
        agent = agents[i]
        agent.lane, agent.next = NONE, NONE
        agent.s, agent.d = 0.0, 0.0
        x, y = agent.x - index.x0, agent.y - index.y0
        wanted = agent.kind == tables.CAR or agent.kind == tables.CYCLIST or agent.kind == tables.OBSTACLE
        if not (wanted and abs(x) < 1e6 and abs(y) < 1e6):
            continue
        span = index.reach + HALF_POINT_SPACING_M
        c0 = max(math.floor((x - span) / CELL_M), 0)
        c1 = min(math.floor((x + span) / CELL_M), index.columns - 1)
        r0 = max(math.floor((y - span) / CELL_M), 0)
        r1 = min(math.floor((y + span) / CELL_M), index.rows - 1)
        if c1 < c0:
            continue
        least = math.inf
        for r in range(r0, r1 + 1):
            for k in range(index.first[r * index.columns + c0], index.first[r * index.columns + c1 + 1]):
                piece = index.pieces[k]
                cosine = agent.cos * piece.cos + agent.sin * piece.sin
                if cosine < LEAST_COSINE:
                    continue
                dx, dy = agent.x - piece.x, agent.y - piece.y
                along = min(max(dx * piece.cos + dy * piece.sin, 0.0), piece.length)
                ex, ey = dx - along * piece.cos, dy - along * piece.sin
                far = ex * ex + ey * ey
                cost = far + 2.0 * HEADING_M * HEADING_M * (1.0 - cosine)
                if far <= piece.reach * piece.reach and (
                    cost < least or (cost == least and row.lane + piece.lane < agent.lane)
                ):
                    least = cost
                    agent.lane, agent.next = row.lane + piece.lane, index.straight[piece.lane]
                    agent.s, agent.d = piece.s + along, dy * piece.cos - dx * piece.sin
        if agent.next != NONE:
            agent.next += row.lane
