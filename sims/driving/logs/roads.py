"""Roads of driving logs: lanes of a map on disk, and routes that were driven.

A map is a file `maps/NAME.npz` of arrays (L lanes, P points, E successions, W crosswalks, K parked cars):

    lane_sizes (L,) int: points of each lane          lane_points (P, 2): center lines, in driving direction, m
    lane_width (L,): m                                lane_speed (L,): limit, m/s
    lane_junction (L,) bool: inside a junction        lane_left, lane_right (L,) int: lane to change to, -1 without
    lane_next (E, 2) int: lane and its successor      lane_control (L,) int: 0 none, 1 light, 2 stop sign, 3 yield sign
    lane_stop_m (L,): stop line along it, -1 without  lane_light (L,) int: light at it, -1 without
    crosswalks (W, 5): x0, y0, x1, y1, width, m       parked (K, 5): x, y, yaw, length, width
"""

from __future__ import annotations

import itertools
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import DataError, short
from robotrl.sims.driving.roads.lane_index import LaneIndex, LanePlace, lanes_near, nearest_lane
from robotrl.sims.driving.roads.lanes import (
    NONE,
    Control,
    Crosswalk,
    JunctionTurn,
    Parked,
    PathRoute,
    Points,
    RoadBuilder,
    headings,
    resampled,
)
from robotrl.sims.driving.world import Maps

RoadArrays = Mapping[str, NDArray[Any]]
SHAPES: Mapping[str, tuple[str, int, str]] = {
    "lane_sizes": ("lanes", 1, "i"),
    "lane_points": ("points", 2, "f"),
    "lane_width": ("lanes", 1, "f"),
    "lane_speed": ("lanes", 1, "f"),
    "lane_junction": ("lanes", 1, "b"),
    "lane_left": ("lanes", 1, "i"),
    "lane_right": ("lanes", 1, "i"),
    "lane_next": ("successions", 2, "i"),
    "lane_control": ("lanes", 1, "i"),
    "lane_stop_m": ("lanes", 1, "f"),
    "lane_light": ("lanes", 1, "i"),
    "crosswalks": ("crosswalks", 2, "f"),
    "parked": ("parked cars", 2, "f"),
}
"""Arrays of a map: what its first axis counts, number of axes, kind of numbers."""
COLUMNS = {"lane_points": 2, "lane_next": 2, "crosswalks": 5, "parked": 5}
STOP_INSIDE_M = 1.0
"""Least distance of a stop line from the ends of its lane."""
TURN_RAD = 0.5
"""Heading difference of its ends from which a lane in a junction is a turn."""
NEAR_M = 5.0
"""Distance up to which lanes are candidates below a driven way."""
HEADING_M2 = 18.0
"""Weight of 1 - cos of the heading difference against the squared distance."""
CHANGE_M2, JUMP_M2 = 1.0, 25.0
"""Cost of going on on a neighboring lane, and on a lane that does not follow."""
GRACE_M = 30.0
"""Length by which the way of a clip without a map, or of one without a route, is continued straight ahead."""
WAY_WIDTH_M, WAY_MPS = 9.0, 14.0
"""Width and speed limit of the only lane of a clip without a map."""


def road_arrays(maps: Maps, number: int) -> dict[str, NDArray[Any]]:
    """Arrays of a map for a log, from a map pool's records."""
    row = maps.maps[number]
    lanes = maps.lanes[row["lane"] : row["lane"] + row["lanes"]]
    points = np.concatenate([maps.points[lane["first"] : lane["first"] + lane["count"]] for lane in lanes])
    base = int(row["lane"])

    def local(numbers: NDArray[Any]) -> NDArray[np.int32]:
        return np.where(numbers >= 0, numbers - base, NONE).astype(np.int32)

    following = [(i, int(n) - base) for i, lane in enumerate(lanes) for n in lane["next"][: lane["nexts"]]]
    walks = maps.walks[row["walk"] : row["walk"] + row["walks"]]
    parked = maps.parked[row["parked"] : row["parked"] + row["parkeds"]]
    boxes = (parked["x"], parked["y"], np.arctan2(parked["sin"], parked["cos"]), parked["length"], parked["width"])
    return {
        "lane_sizes": lanes["count"].astype(np.int32),
        "lane_points": np.stack([points["x"], points["y"]], axis=1).astype(np.float64),
        "lane_width": lanes["width"].astype(np.float64),
        "lane_speed": lanes["speed"].astype(np.float64),
        "lane_junction": lanes["junction"] >= 0,
        "lane_left": local(lanes["left"]),
        "lane_right": local(lanes["right"]),
        "lane_next": np.array(following, np.int32).reshape(-1, 2),
        "lane_control": lanes["control"].astype(np.int32),
        "lane_stop_m": np.where(lanes["control"] > 0, lanes["stop"], NONE).astype(np.float64),
        "lane_light": lanes["group"].astype(np.int32),
        "crosswalks": np.stack([walks[k] for k in ("x0", "y0", "x1", "y1", "width")], axis=1).astype(np.float64),
        "parked": np.stack(boxes, axis=1).astype(np.float64),
    }


def read_roads(path: Path) -> dict[str, NDArray[Any]]:
    """Read and check the arrays of a map.

    Raises:
        DataError: missing, truncated, or arrays that do not fit together.
    """
    where = f"driving log's map {path}"
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise DataError(f"{where} does not exist: expected the lanes of the clips that name it") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(f"{where} cannot be read ({short(str(error), 160)})") from error
    check_roads(where, arrays)
    return arrays


def count_lights(arrays: RoadArrays) -> int:
    """Number of lights of a map, those included that no lane names below the highest one."""
    return 1 + int(arrays["lane_light"].max(initial=NONE))


def check_roads(where: str, arrays: RoadArrays) -> None:
    """Check that the arrays of a map are complete and fit together.

    Raises:
        DataError: they do not.
    """
    for name, (what, axes, kind) in SHAPES.items():
        if name not in arrays:
            raise DataError(f"{where} has no array {name!r}: expected {', '.join(SHAPES)}")
        array = arrays[name]
        columns = COLUMNS.get(name)
        numbers = {"i": "iu", "f": "f", "b": "b"}[kind]
        if array.ndim != axes or array.dtype.kind not in numbers or (columns and array.shape[1] != columns):
            wanted = f"({what}, {columns})" if columns else f"({what},)"
            raise DataError(f"{where}: {name} is {array.dtype} {array.shape}: expected {wanted} of kind {kind!r}")
        if kind == "f" and not np.isfinite(array).all():
            raise DataError(f"{where}: {name} holds a number that is not finite")
    lanes = len(arrays["lane_sizes"])
    for name, (what, _, _) in SHAPES.items():
        if what == "lanes" and len(arrays[name]) != lanes:
            raise DataError(f"{where}: {name} has {len(arrays[name])} lanes and lane_sizes {lanes}: expected as many")
    if lanes == 0 or (arrays["lane_sizes"] < 2).any() or arrays["lane_sizes"].sum() != len(arrays["lane_points"]):
        raise DataError(
            f"{where} has {lanes} lanes of {int(arrays['lane_sizes'].sum())} points, and {len(arrays['lane_points'])}"
            " points: expected one lane or more, two points or more on each, and as many in all"
        )
    for name in ("lane_left", "lane_right", "lane_next"):
        if (arrays[name] >= lanes).any() or (arrays[name] < NONE).any():
            raise DataError(f"{where}: {name} names lane {int(arrays[name].max())}: expected -1 to {lanes - 1}")
    control = arrays["lane_control"]
    if ((control < 0) | (control > int(Control.YIELD))).any():
        raise DataError(f"{where}: lane_control holds {int(control.max())}: expected 0 to {int(Control.YIELD)}")
    if ((control == int(Control.LIGHT)) & (arrays["lane_light"] < 0)).any():
        raise DataError(f"{where}: a lane with a light has lane_light -1: expected its number")


def builder_of(name: str, arrays: RoadArrays) -> RoadBuilder:
    """Road network of a map, without routes.

    Raises:
        ConfigError: a lane without length, or with a width or speed that is not above 0.
    """
    builder = RoadBuilder(name)
    ends = np.cumsum(arrays["lane_sizes"])
    for k, points in enumerate(np.split(arrays["lane_points"], ends[:-1])):
        inside = bool(arrays["lane_junction"][k])
        number = builder.lane(
            points,
            float(arrays["lane_speed"][k]),
            float(arrays["lane_width"][k]),
            inside,
            turn_of(points) if inside else JunctionTurn.STRAIGHT,
        )
        lane = builder.lanes[number]
        lane.left, lane.right = int(arrays["lane_left"][k]), int(arrays["lane_right"][k])
        lane.left_solid, lane.right_solid = lane.left == NONE, lane.right == NONE
        control = Control(int(arrays["lane_control"][k]))
        if control != Control.NONE:
            # a line at the very end of a lane would fall between two of a route's points, which are 1 m apart
            inner = min(STOP_INSIDE_M, 0.5 * lane.length_m)
            stop = min(max(float(arrays["lane_stop_m"][k]), inner), lane.length_m - inner)
            builder.stop(number, control, int(arrays["lane_light"][k]), stop)
    for lane, successor in arrays["lane_next"].tolist():
        builder.follow(lane, successor)
    for _ in range(count_lights(arrays)):
        builder.signal(0.0, 0.0)
    for x0, y0, x1, y1, width in arrays["crosswalks"].tolist():
        builder.crosswalks.append(Crosswalk((x0, y0), (x1, y1), width))
    builder.parked += [Parked(*box) for box in arrays["parked"].tolist()]
    return builder


def turn_of(points: Points) -> JunctionTurn:
    """Turn direction of a lane inside a junction, from the headings of its ends."""
    yaw = np.unwrap(headings(points))
    turned = float(yaw[-1] - yaw[0])
    if abs(turned) < TURN_RAD:
        return JunctionTurn.STRAIGHT
    return JunctionTurn.LEFT if turned > 0 else JunctionTurn.RIGHT


def way_builder(name: str, way: Points) -> RoadBuilder:
    """Road network of a clip without a map: one wide lane along a way."""
    builder = RoadBuilder(name)
    builder.lane(way, WAY_MPS, WAY_WIDTH_M)
    return builder


def continued(way: Points, yaw: float, length_m: float = GRACE_M) -> Points:
    """A way with `length_m` more straight ahead from its end; `yaw` is the heading of a way without length."""
    moved = np.concatenate([[True], np.hypot(*np.diff(way, axis=0).T) > 0.05])
    way = way[moved]
    if len(way) > 1:
        dx, dy = way[-1] - way[-2]
        yaw = math.atan2(dy, dx)
    return np.concatenate([way, way[-1:] + length_m * np.array([[math.cos(yaw), math.sin(yaw)]])])


def path_route(builder: RoadBuilder, index: LaneIndex, way: Points) -> PathRoute:
    """Route along a way, with the sequence of lanes that explains it best.

    Each point may lie on any lane near by, at a cost of its squared distance and heading difference; the sequence with
    the least sum is taken, where going on on a lane that does not follow costs extra (Viterbi).
    """
    points = resampled(way)
    yaw = headings(points)
    # the margin: a point far from all lanes takes the nearest one
    candidates = [
        lanes_near(index, point, float(angle), NEAR_M) or [nearest_lane(index, point)]
        for point, angle in zip(points, yaw, strict=True)
    ]
    costs = _own_costs(candidates[0])
    before: list[NDArray[np.int64]] = []
    for earlier, here in itertools.pairwise(candidates):
        change = np.array([[_change_cost(builder, a.lane, b.lane) for b in here] for a in earlier])
        total = costs[:, None] + change
        before.append(total.argmin(0))
        costs = total.min(0) + _own_costs(here)
    chosen = [int(costs.argmin())]
    for back in reversed(before):
        chosen.append(int(back[chosen[-1]]))
    places = [options[k] for options, k in zip(candidates, reversed(chosen), strict=True)]
    return PathRoute(points, np.array([p.lane for p in places]), np.array([p.s_m for p in places]))


def _own_costs(places: Sequence[LanePlace]) -> NDArray[np.float64]:
    return np.array([place.distance_m**2 + HEADING_M2 * (1.0 - math.cos(place.heading_rad)) for place in places])


def _change_cost(builder: RoadBuilder, before: int, after: int) -> float:
    lane = builder.lanes[before]
    if after == before or after in lane.next:
        return 0.0
    return CHANGE_M2 if after in (lane.left, lane.right) else JUMP_M2
