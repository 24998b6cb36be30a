"""Converts a `RoadBuilder` to a `RoadMap`: conflicts, routes, drawn surface, and grid of nearest lane segments."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError
from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.roads.kerbs import from_kerb_to_kerb
from robotrl.sims.driving.roads.lanes import (
    CLEARANCE_M,
    NONE,
    SPACING_M,
    Control,
    Crosswalk,
    PathRoute,
    Points,
    RoadBuilder,
    RouteChoice,
    headings,
    resampled,
)
from robotrl.sims.driving.roads.levels import CELL_M, FLAT, LEVEL_M, NO_LAYERS, Levels, SurfaceStrip, levels_of, stamp
from robotrl.sims.driving.roads.spots import NO_SPOTS, Spots, spots_of

Records = NDArray[Any]
Offsets = NDArray[np.float64]

MARGIN_M = 8.0
"""Margin of the drawn surface around the lanes."""
SHOULDER_M = 1.5
CHANGE_M = 30.0
"""Length of a lane change on a route."""
NEAREST = 16
"""Number of segments listed in each grid cell."""
GRID_M = 16.0
SEGMENT_M = 8.0
MAX_SUCCESSORS = 6
ONWARDS_RAD = math.pi / 3.0
"""Change of heading up to which a lane through a junction may be the one that goes on from its road."""
JOINS_RAD = math.pi / 36.0
"""Change of heading by which a lane that joins a road must exceed that of the lane that goes on."""
MAX_TILE_CELLS = 1 << 28
"""Maximum size of the drawn surface, cells (1 byte each): 8 km by 8 km."""


class RoadMap(NamedTuple):
    """A finished map; references between its records are relative to the map's own arrays."""

    name: str
    lanes: Records
    points: Records
    conflicts: Records
    crossings: Records
    walks: Records
    signals: Records
    entries: NDArray[np.int32]
    parked: Records
    routes: Records
    route_points: Records
    tile: NDArray[np.uint8]
    """(rows, columns) surface bits; rows along y."""
    origin: tuple[float, float]
    """x, y of the corner of the first cell, m."""
    segments: Records
    nearest: NDArray[np.int32]
    """(grid rows, grid columns, NEAREST) indices of nearby segments; -1 if there are fewer."""
    heights: NDArray[np.float32]
    """Height of each of `points`, m."""
    spots: Spots
    """Places for traffic around the ego; none unless `with_spots` adds some."""
    levels: Levels
    """Surface in levels; empty where no lane lies above another."""


def finish(builder: RoadBuilder) -> RoadMap:
    """Build the map from lanes and their relations.

    Raises:
        ConfigError: no lane, no route, more successors than a lane may have, or a surface too large to draw.
    """
    if not builder.lanes:
        raise ConfigError(f"map {builder.name!r} has no lanes: expected one or more")
    if not builder.routes:
        raise ConfigError(f"map {builder.name!r} has no routes: expected one or more")
    lanes = np.zeros(len(builder.lanes), tables.LANE)
    centers = [lane.points for lane in builder.lanes]
    points = np.concatenate([_poses(center) for center in centers])
    leads_in = {n for lane in builder.lanes for n in lane.next}
    first = junctions = 0
    for i, (lane, center) in enumerate(zip(builder.lanes, centers, strict=True)):
        if len(lane.next) > MAX_SUCCESSORS:
            raise ConfigError(
                f"map {builder.name!r}, lane {i} leads into {len(lane.next)} lanes: expected {MAX_SUCCESSORS} or fewer"
            )
        row = lanes[i]
        row["first"], row["count"] = first, len(center)
        row["length"], row["spacing"] = lane.length_m, lane.length_m / (len(center) - 1)
        row["per_m"] = (len(center) - 1) / lane.length_m
        row["speed"], row["width"] = lane.speed_mps, lane.width_m
        row["left"], row["right"] = lane.left, lane.right
        row["beside_left"], row["beside_right"] = lane.beside_left, lane.beside_right
        row["next"] = [*lane.next, *[NONE] * (MAX_SUCCESSORS - len(lane.next))]
        row["nexts"] = len(lane.next)
        row["stop"], row["control"], row["group"] = lane.stop_s, lane.control, lane.group
        row["junction"] = junctions if lane.junction else NONE
        # a lane that starts beside a continuing lane is no entry to the map
        row["entry"] = int(not lane.junction and not leads_in.intersection(_row(builder, i)))
        row["ends"] = _ends(builder, i)
        junctions += lane.junction
        first += len(center)
    lanes["before"] = _before(builder)
    _part(builder, lanes, centers)
    heights = [np.zeros(len(lane.points)) if lane.heights_m is None else lane.heights_m for lane in builder.lanes]
    conflicts = _conflicts(builder, lanes, centers, heights)
    crosswalks = from_kerb_to_kerb(builder, heights)
    crossings = _crossings(crosswalks, lanes, centers, heights)
    routes, route_points = _routes(builder, lanes, centers)
    tile, origin, strips = _surface(builder, lanes, points)
    levels = levels_of(tile, origin, strips, heights, centers)
    segments, nearest = _segments(lanes, points, np.concatenate(heights), tile.shape, origin)
    signals = np.zeros(len(builder.signals), tables.SIGNAL)
    for row, signal in zip(signals, builder.signals, strict=True):
        row["start"], row["green"], row["yellow"], row["cycle"] = *signal, builder.cycle_s
    walks = np.zeros(len(crosswalks), tables.WALK)
    for row, walk in zip(walks, crosswalks, strict=True):
        (row["x0"], row["y0"]), (row["x1"], row["y1"]), row["width"], row["z"] = walk
    parked = np.zeros(len(builder.parked), tables.PARKED)
    for row, box in zip(parked, builder.parked, strict=True):
        row["x"], row["y"], row["length"], row["width"] = box.x, box.y, box.length_m, box.width_m
        row["cos"], row["sin"] = math.cos(box.yaw), math.sin(box.yaw)
    return RoadMap(
        name=builder.name,
        lanes=lanes,
        points=points,
        conflicts=conflicts,
        crossings=crossings,
        walks=walks,
        signals=signals,
        entries=np.flatnonzero(lanes["entry"]).astype(np.int32),
        parked=parked,
        routes=routes,
        route_points=route_points,
        tile=tile,
        origin=origin,
        segments=segments,
        nearest=nearest,
        heights=np.concatenate(heights).astype(np.float32),
        spots=NO_SPOTS,
        levels=levels,
    )


def with_spots(road: RoadMap) -> RoadMap:
    """The map with spots for traffic around the ego, if it is a large one; see `roads.spots`."""
    return road._replace(spots=spots_of(road.lanes, road.points, road.nearest.shape[:2], road.origin, GRID_M))


def _poses(center: Points) -> Records:
    yaw = headings(center)
    out = np.zeros(len(center), tables.POINT)
    out["x"], out["y"] = center.T
    out["cos"], out["sin"] = np.cos(yaw), np.sin(yaw)
    return out


def _row(builder: RoadBuilder, lane: int) -> list[int]:
    """A lane and all lanes of its direction beside it."""
    row = [lane]
    for side in ("beside_left", "beside_right"):
        row += _aside(builder, lane, side)
    return row


def _aside(builder: RoadBuilder, lane: int, side: str) -> list[int]:
    """Lanes of a lane's direction to one side of it, the nearest first."""
    found, here = [lane], lane
    while (here := int(getattr(builder.lanes[here], side))) != NONE and here not in found:
        found.append(here)
    return found[1:]


def _ends(builder: RoadBuilder, lane: int) -> int:
    """Side to which cars must change before the end of a lane that does not go on, where one beside it does."""
    own = builder.lanes[lane]
    if own.next or own.junction:
        return 0
    # lanes to pass until one that goes on; a side to which one may not change is none
    passed = [
        next((k for k, n in enumerate(_aside(builder, lane, f"beside_{side}")) if builder.lanes[n].next), math.inf)
        if getattr(own, side) != NONE
        else math.inf
        for side in ("left", "right")
    ]
    return 0 if min(passed) == math.inf else 1 + passed.index(min(passed))


def _before(builder: RoadBuilder) -> list[int]:
    """For each lane outside junctions the only one that leads into it, unless that is in a junction."""
    leading: list[list[int]] = [[] for _ in builder.lanes]
    for i, lane in enumerate(builder.lanes):
        for n in lane.next:
            leading[n].append(i)
    return [
        own[0] if len(own) == 1 and not lane.junction and not builder.lanes[own[0]].junction else NONE
        for own, lane in zip(leading, builder.lanes, strict=True)
    ]


# conflicts


def _part(builder: RoadBuilder, lanes: Records, centers: list[Points]) -> None:
    """Compute how far lanes that leave the same lane into a junction run together."""
    lanes["origin"] = NONE
    for i, lane in enumerate(builder.lanes):
        ways = [n for n in lane.next if builder.lanes[n].junction]
        for n in ways:
            lanes[n]["origin"] = i
            for other in ways:
                if other != n:
                    apart = np.linalg.norm(centers[n][:, None] - centers[other][None], axis=2).min(1) > CLEARANCE_M
                    first = int(apart.argmax()) if apart.any() else len(apart) - 1
                    lanes[n]["part"] = max(lanes[n]["part"], first * lanes[n]["spacing"])


def _gives_way(builder: RoadBuilder, origin: dict[int, int], a: int, b: int, merge: bool) -> bool:
    """True if lane `a` gives way to lane `b`.

    The order is that of signs (stop, then yield), then of the map's own priorities, then: a lane that goes on from its
    road goes before one that joins it, by how much they bend; then turns, the left one last.
    """
    signs = _sign(builder, origin, a), _sign(builder, origin, b)
    if signs[0] != signs[1]:
        return signs[0] > signs[1]
    if ((a, b) in builder.priorities) != ((b, a) in builder.priorities):
        return (b, a) in builder.priorities
    one, other = builder.lanes[a], builder.lanes[b]
    bends = abs(one.bend_rad), abs(other.bend_rad)
    if merge and min(bends) < ONWARDS_RAD and abs(bends[0] - bends[1]) > JOINS_RAD:
        return bends[0] > bends[1]
    return (int(one.turn), a) > (int(other.turn), b)


def _sign(builder: RoadBuilder, origin: dict[int, int], lane: int) -> int:
    """Rank of the sign before a lane in a junction: the higher one yields."""
    control = builder.lanes[origin[lane]].control if lane in origin else Control.NONE
    return {Control.STOP: 2, Control.YIELD: 1}.get(control, 0)


def _leads(builder: RoadBuilder, a: int, b: int, left_m: float = 2 * CLEARANCE_M) -> bool:
    """True if lane `b` follows lane `a`, directly or over `left_m` of other lanes at most."""
    follows = builder.lanes[a].next
    return b in follows or any(
        _leads(builder, n, b, left_m - builder.lanes[n].length_m) for n in follows if builder.lanes[n].length_m < left_m
    )


def _conflicts(builder: RoadBuilder, lanes: Records, centers: list[Points], heights: list[Offsets]) -> Records:
    inside = [i for i, lane in enumerate(builder.lanes) if lane.junction]
    origin = {n: i for i, lane in enumerate(builder.lanes) for n in lane.next}
    found: dict[int, list[tuple[Any, ...]]] = {i: [] for i in inside}
    low = np.array([centers[i].min(0) - CLEARANCE_M for i in inside]).reshape(-1, 2)
    high = np.array([centers[i].max(0) for i in inside]).reshape(-1, 2)
    meet = (low[:, None] <= high[None]).all(2)
    for row, column in np.argwhere(np.triu(meet & meet.T, 1)):
        a, b = inside[row], inside[column]
        if origin.get(a, NONE) == origin.get(b, -2):
            continue  # diverging lanes from one origin: the order on the origin decides
        if _leads(builder, a, b) or _leads(builder, b, a):
            continue  # one behind the other: the order along the way decides
        near = np.linalg.norm(centers[a][:, None] - centers[b][None], axis=2) < CLEARANCE_M
        near &= np.abs(heights[a][:, None] - heights[b][None]) <= LEVEL_M
        if not near.any():
            continue
        at_a, at_b = np.flatnonzero(near.any(1)), np.flatnonzero(near.any(0))
        spans = [
            (float(at[0] * lanes[i]["spacing"]), float(at[-1] * lanes[i]["spacing"]))
            for i, at in ((a, at_a), (b, at_b))
        ]
        merges = int(bool(set(builder.lanes[a].next) & set(builder.lanes[b].next)))
        later = _gives_way(builder, origin, a, b, bool(merges))
        found[a].append((*spans[0], b, *spans[1], int(later), merges))
        found[b].append((*spans[1], a, *spans[0], int(not later), merges))
    rows: list[tuple[Any, ...]] = []
    for i in inside:
        lanes[i]["conflict"], lanes[i]["conflicts"] = len(rows), len(found[i])
        rows += sorted(found[i])
    return np.array(rows, tables.CONFLICT) if rows else np.zeros(0, tables.CONFLICT)


def _crossings(crosswalks: list[Crosswalk], lanes: Records, centers: list[Points], heights: list[Offsets]) -> Records:
    rows: list[tuple[Any, ...]] = []
    ends = np.array([(walk.start, walk.end) for walk in crosswalks]).reshape(-1, 2, 2)
    wide = np.array([walk.width_m for walk in crosswalks])[:, None]
    low, high = ends.min(1) - wide, ends.max(1) + wide
    for i, center in enumerate(centers):
        lanes[i]["crossing"] = len(rows)
        for number in np.flatnonzero((low <= center.max(0)).all(1) & (high >= center.min(0)).all(1)):
            walk = crosswalks[number]
            start, end = np.array(walk.start), np.array(walk.end)
            length = float(np.linalg.norm(end - start))
            along = (end - start) / length
            rel = center - start
            u, w = rel @ along, np.abs(rel @ np.array([-along[1], along[0]]))
            # tolerance: up to half a metre beyond the strip's edge counts as on the crosswalk
            level = np.abs(heights[i] - walk.height_m) <= LEVEL_M
            over = np.flatnonzero((u > 0) & (u < length) & (w <= walk.width_m / 2 + 0.5) & level)
            if len(over):
                spacing = float(lanes[i]["spacing"])
                rows.append((number, over[0] * spacing, over[-1] * spacing))
        lanes[i]["crossings"] = len(rows) - lanes[i]["crossing"]
    return np.array(rows, tables.CROSSING) if rows else np.zeros(0, tables.CROSSING)


# routes


def _at(center: Points, s: NDArray[np.float64], length: float) -> Points:
    along = np.linspace(0.0, length, len(center))
    return np.stack([np.interp(s, along, center[:, 0]), np.interp(s, along, center[:, 1])], axis=1)


class _Piece(NamedTuple):
    points: Points
    lane: NDArray[np.int64]
    s: NDArray[np.float64]


def _route_line(builder: RoadBuilder, centers: list[Points], choice: RouteChoice | PathRoute) -> _Piece:
    """Dense points of a route with lane and position of each; neighbouring lanes are joined by a lane change."""
    if isinstance(choice, PathRoute):
        return _Piece(choice.points, choice.lane, choice.lane_s)
    pieces: list[_Piece] = []
    start, begins = choice.start_s, iter(choice.change_s)
    for k, lane in enumerate(choice.lanes):
        length = builder.lanes[lane].length_m
        following = choice.lanes[k + 1] if k + 1 < len(choice.lanes) else None
        changes = following is not None and following not in builder.lanes[lane].next
        end = choice.end_s if following is None else length
        if changes:
            begin = next(begins, max(start + 5.0, (start + length - CHANGE_M) / 2))
            end = min(max(begin, start), max(length - CHANGE_M, start))
        s = np.arange(start, max(end, start + 0.01), 0.5)
        pieces.append(_Piece(_at(centers[lane], s, length), np.full(len(s), lane), s))
        start = 0.0
        if changes and following is not None:
            other = builder.lanes[following].length_m
            # the same fraction of both lanes: neighbours differ in length in a bend
            over = np.linspace(end, min(end + CHANGE_M, length), 60)
            share = np.linspace(0.0, 1.0, 60)
            blend = (share * share * (3 - 2 * share))[:, None]
            here, there = _at(centers[lane], over, length), _at(centers[following], over / length * other, other)
            second = share > 0.5
            pieces.append(
                _Piece(
                    here * (1 - blend) + there * blend,
                    np.where(second, following, lane),
                    np.where(second, over / length * other, over),
                )
            )
            start = float(over[-1] / length * other) + 0.5
    return _Piece(*(np.concatenate(part) for part in zip(*pieces, strict=True)))


def _extent(builder: RoadBuilder, lane: int, side: str) -> float:
    """Distance, m, from a lane's centre to the outer edge of the lanes of its direction."""
    edge = builder.lanes[lane].width_m / 2 + sum(builder.lanes[n].width_m for n in _aside(builder, lane, side))
    return edge + (0.5 if builder.lanes[lane].junction else 0.0)


def _routes(builder: RoadBuilder, lanes: Records, centers: list[Points]) -> tuple[Records, Records]:
    routes = np.zeros(len(builder.routes), tables.ROUTE)
    parts: list[Records] = []
    first = 0
    for row, choice in zip(routes, builder.routes, strict=True):
        part = _route(builder, lanes, centers, _route_line(builder, centers, choice))
        row["first"], row["count"] = first, len(part)
        row["length"] = (len(part) - 1) * SPACING_M
        parts.append(part)
        first += len(part)
    return routes, np.concatenate(parts)


def _route(builder: RoadBuilder, lanes: Records, centers: list[Points], line: _Piece) -> Records:
    length = float(np.linalg.norm(np.diff(line.points, axis=0), axis=1).sum())
    # exactly 1 m apart, so that distance along the route is an index; up to 1 m is cut off at the end
    count = int(length / SPACING_M)
    if count < 10:
        raise ConfigError(f"map {builder.name!r}: a route is {length:.1f} m long: expected 10 m or more")
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(line.points, axis=0), axis=1))])
    at = np.arange(count + 1) * SPACING_M
    out = np.zeros(count + 1, tables.ROUTE_POINT)
    center = np.stack([np.interp(at, along, line.points[:, 0]), np.interp(at, along, line.points[:, 1])], axis=1)
    yaw = headings(center)
    source = np.clip(np.searchsorted(along, at), 1, len(along) - 1)
    # interpolate between two dense points of one lane, or extrapolate back from the first point of the next
    step = np.maximum(along[source] - along[source - 1], 1e-9)
    same = line.lane[source] == line.lane[source - 1]
    rate = np.where(same, (line.s[source] - line.s[source - 1]) / step, 1.0)
    lane_s = np.maximum(line.s[source] - rate * (along[source] - at), 0.0)
    out["x"], out["y"] = center.T
    out["cos"], out["sin"] = np.cos(yaw), np.sin(yaw)
    turned = np.diff(np.unwrap(yaw), append=np.unwrap(yaw)[-1])
    out["curvature"] = np.convolve(turned / SPACING_M, np.ones(5) / 5, "same")
    out["lane"], out["lane_s"] = line.lane[source], lane_s
    for lane in np.unique(out["lane"]):
        on = out["lane"] == lane
        there = _at(centers[lane], out["lane_s"][on].astype(np.float64), float(lanes[lane]["length"]))
        left = (center[on] - there)[:, 1] * np.cos(yaw[on]) - (center[on] - there)[:, 0] * np.sin(yaw[on])
        out["lane_left"][on] = left
        out["left"][on] = _extent(builder, int(lane), "beside_left") - left
        out["right"][on] = _extent(builder, int(lane), "beside_right") + left
    out["speed"] = lanes["speed"][out["lane"]]
    out["inside"] = lanes["junction"][out["lane"]] >= 0
    _mark_ahead(out, lanes)
    return out


@kernel
def _enters_over(before: Any, here: Any, lane: Any) -> bool:
    """True if a route enters a lane at its beginning between two points, and passes its stop line by the second."""
    return before.lane != here.lane and here.lane_s <= SPACING_M and lane.stop <= here.lane_s


@kernel
def _leaves_over(before: Any, lane: Any) -> bool:
    """True if a route leaves a lane at its end after a point."""
    return lane.length - before.lane_s <= SPACING_M


@kernel
def _mark_ahead(out: Any, lanes: Any) -> None:
    """Store at each point the next stop line and the next junction, going backwards from the end."""

    stop, control, group, junction = tables.FAR, 0, NONE, tables.FAR
    for i in range(len(out) - 1, -1, -1):
        here = out[i]
        lane = lanes[here.lane]
        if i > 0:
            before = out[i - 1]
            passes = before.lane == here.lane and before.lane_s < lane.stop <= here.lane_s
            if lane.stop >= 0.0 and (passes or _enters_over(before, here, lane)):
                stop, control, group = i * SPACING_M - (here.lane_s - lane.stop), lane.control, lane.group
            leaves = lanes[before.lane]
            if before.lane != here.lane and before.lane_s < leaves.stop and _leaves_over(before, leaves):
                stop, control, group = (i - 1) * SPACING_M + leaves.stop - before.lane_s, leaves.control, leaves.group
            if here.inside == 1 and before.inside == 0:
                junction = i * SPACING_M
        if stop >= i * SPACING_M:
            here.stop, here.control, here.group = stop, control, group
        else:
            here.stop, here.control, here.group = tables.FAR, 0, NONE
        here.conflict = junction


# the drawn surface


def _surface(
    builder: RoadBuilder, lanes: Records, points: Records
) -> tuple[NDArray[np.uint8], tuple[float, float], list[SurfaceStrip]]:
    """Draw the surface; returns its cells, the corner of the first, m, and what was drawn."""
    widest = max(lane.width_m if lane.widths_m is None else float(lane.widths_m.max()) for lane in builder.lanes)
    margin = MARGIN_M + float(np.float32(widest)) / 2 + max((w.width_m for w in builder.crosswalks), default=0.0)
    ends = np.array([end for walk in builder.crosswalks for end in (walk.start, walk.end)]).reshape(-1, 2)
    aside = [paved.points for paved in builder.paved]
    drawn = np.concatenate([np.stack([points["x"], points["y"]], axis=1), ends, *aside]).astype(np.float64)
    low, high = drawn.min(0) - margin, drawn.max(0) + margin
    columns, rows = (int(n) for n in np.ceil((high - low) / CELL_M))
    if rows * columns > MAX_TILE_CELLS:
        raise ConfigError(
            f"map {builder.name!r} is {columns * CELL_M:.0f} m by {rows * CELL_M:.0f} m: its surface would take"
            f" {rows * columns / 2**20:.0f} MiB, expected at most {MAX_TILE_CELLS / 2**20:.0f}"
        )
    tile = np.zeros((rows, columns), np.uint8)
    strips: list[SurfaceStrip] = []
    for paved in builder.paved:
        line, half = _poses(paved.points), paved.widths_m / 2
        strips.append(SurfaceStrip(NONE, line, -half, half, tables.DRIVABLE, 0.0, paved.height_m))
        stamp(tile, NO_LAYERS, low[0], low[1], *strips[-1][1:6], FLAT)

    def strip(i: int, right: Offsets, left: Offsets, bit: int, dash: float = 0.0) -> None:
        row = lanes[i]
        first, count = int(row["first"]), int(row["count"])
        strips.append(SurfaceStrip(i, points[first : first + count], right, left, bit, dash))
        stamp(tile, NO_LAYERS, low[0], low[1], *strips[-1][1:6], FLAT)

    halves = [
        np.full(len(lane.points), lane.width_m / 2) if lane.widths_m is None else lane.widths_m / 2
        for lane in builder.lanes
    ]
    for i, (lane, half) in enumerate(zip(builder.lanes, halves, strict=True)):
        strip(i, -half, half, tables.DRIVABLE)
        if not lane.junction:
            strip(i, half, half + SHOULDER_M, tables.SHOULDER)
            strip(i, -half - SHOULDER_M, -half, tables.SHOULDER)
    for i, (lane, half) in enumerate(zip(builder.lanes, halves, strict=True)):
        if not lane.junction:
            for at, neighbor, solid in ((half, lane.left, lane.left_solid), (-half, lane.right, lane.right_solid)):
                if neighbor != NONE and not solid:
                    strip(i, at, at, tables.BROKEN, 3.0)
                else:
                    strip(i, at, at, tables.SOLID)
    tile[(tile & tables.DRIVABLE) > 0] &= ~np.uint8(tables.SHOULDER)
    for walk in builder.crosswalks:
        line = _poses(resampled(np.array([walk.start, walk.end]), 0.5))
        half = np.full(len(line), walk.width_m / 2)
        strips.append(SurfaceStrip(NONE, line, -half, half, tables.CROSSWALK, 0.6, walk.height_m))
        stamp(tile, NO_LAYERS, low[0], low[1], *strips[-1][1:6], FLAT)
    return tile, (float(low[0]), float(low[1])), strips


def _segments(
    lanes: Records, points: Records, heights: Offsets, shape: tuple[int, ...], origin: tuple[float, float]
) -> tuple[Records, NDArray[np.int32]]:
    rows: list[tuple[float, ...]] = []
    for lane in lanes:
        parts = max(round(float(lane["length"]) / SEGMENT_M), 1)
        at = lane["first"] + np.round(np.linspace(0, lane["count"] - 1, parts + 1)).astype(int)
        z = 0.5 * (heights[at[1:]] + heights[at[:-1]])
        for (a, b), height in zip(itertools.pairwise(points[at]), z, strict=True):
            rows.append((a["x"], a["y"], b["x"], b["y"], lane["speed"], float(lane["junction"] >= 0), height))
    segments = np.array(rows, tables.SEGMENT)
    grid = [math.ceil(n * CELL_M / GRID_M) for n in shape]
    y = origin[1] + (np.arange(grid[0]) + 0.5) * GRID_M
    x = origin[0] + (np.arange(grid[1]) + 0.5) * GRID_M
    middle = np.stack([segments["x0"] + segments["x1"], segments["y0"] + segments["y1"]], axis=1) / 2
    nearest = np.full((*grid, NEAREST), NONE, np.int32)
    kept = min(NEAREST, len(segments))
    for r in range(grid[0]):  # row by row: the distance table of a whole town would not fit in memory
        distance = np.hypot(x[:, None] - middle[:, 0], y[r] - middle[:, 1])
        nearest[r, :, :kept] = np.argsort(distance, axis=1, kind="stable")[:, :kept]
    return segments, nearest
