"""Road networks of the driving sim: lanes as polylines with their relations.

A `RoadMap` consists of flat arrays, so that many maps can be concatenated and read by kernels. It is built with a
`RoadBuilder`, from procedural roads or from an OpenDRIVE file: both describe lanes, successors, stop lines, signals,
crosswalks and parked cars. Conflicts between lanes, route geometry and the drawn surface are computed from these.

Frame: x forward, y left, metres; headings counter-clockwise from x; traffic keeps to the right.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError

Points = NDArray[np.float64]
"""Points (n, 2), m."""

LANE_WIDTH_M = 3.5
SPACING_M = 1.0
"""Approximate distance between points of resampled lanes and routes."""
CLEARANCE_M = 2.4
"""Distance of the centres below which two lanes are in conflict."""
NONE = -1


class Control(IntEnum):
    """Kind of control at a lane's stop line."""

    NONE = 0
    LIGHT = 1
    STOP = 2
    YIELD = 3


class JunctionTurn(IntEnum):
    """Turn direction of a lane inside a junction, ordered by right of way."""

    STRAIGHT = 0
    RIGHT = 1
    LEFT = 2


class LightTimes(NamedTuple):
    """Timing of a light within its map's cycle: green from `start_s` for `green_s`, then yellow, then red."""

    start_s: float
    green_s: float
    yellow_s: float = 3.0


@dataclass
class Lane:
    """Lane of a map under construction; see `RoadBuilder.lane` for the fields."""

    points: Points
    speed_mps: float
    width_m: float
    junction: bool
    turn: JunctionTurn
    widths_m: NDArray[np.float64] | None = None
    """(n,) width at each point, m; None where it is `width_m` everywhere."""
    heights_m: NDArray[np.float64] | None = None
    """(n,) height at each point, m; None on a map without heights."""
    bend_rad: float = 0.0
    left: int = NONE
    right: int = NONE
    beside_left: int = NONE
    """Lane of the same direction to the left, whether or not cars may change to it."""
    beside_right: int = NONE
    left_solid: bool = True
    right_solid: bool = True
    next: list[int] = field(default_factory=list)
    control: Control = Control.NONE
    stop_s: float = NONE
    group: int = NONE

    @property
    def length_m(self) -> float:
        """Length along the centre line, m."""
        return float(np.linalg.norm(np.diff(self.points, axis=0), axis=1).sum())


class Crosswalk(NamedTuple):
    """Strip on which pedestrians cross, from kerb to kerb."""

    start: tuple[float, float]
    end: tuple[float, float]
    width_m: float
    height_m: float = 0.0


class Paved(NamedTuple):
    """Surface that is no lane: a strip along a line."""

    points: Points
    widths_m: NDArray[np.float64]
    height_m: float


class Parked(NamedTuple):
    """Parked car: a static box."""

    x: float
    y: float
    yaw: float
    length_m: float
    width_m: float


class RouteChoice(NamedTuple):
    """Route through the network as a sequence of lanes."""

    lanes: tuple[int, ...]
    """Lanes; each is a successor or neighbour of the one before."""
    start_s: float
    """Start position on the first lane, m."""
    end_s: float
    """End position on the last lane, m."""
    change_s: tuple[float, ...] = ()
    """Position on its lane at which each lane change begins, m, in order; empty: chosen by the lanes' lengths."""


class PathRoute(NamedTuple):
    """Route as a driven way, which need not keep to the centers of lanes."""

    points: Points
    lane: NDArray[np.int64]
    """(n,) lane below each point."""
    lane_s: NDArray[np.float64]
    """(n,) m along that lane."""


def resampled(points: Points, spacing: float = SPACING_M) -> Points:
    """Resample a polyline at equal distances of at most `spacing`, keeping both ends."""
    steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    kept = np.concatenate([[True], steps > 1e-6])
    points = points[kept]
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
    count = max(int(np.ceil(along[-1] / spacing - 1e-9)), 1) + 1
    at = np.linspace(0.0, along[-1], count)
    return np.stack([np.interp(at, along, points[:, 0]), np.interp(at, along, points[:, 1])], axis=1)


def headings(points: Points) -> NDArray[np.float64]:
    """Headings (n,), rad: direction of the chord between the neighbours of each point."""
    ahead = np.concatenate([points[1:], points[-1:]])
    behind = np.concatenate([points[:1], points[:-1]])
    delta = ahead - behind
    return np.arctan2(delta[:, 1], delta[:, 0])


def shifted(points: Points, left_m: float | NDArray[np.float64]) -> Points:
    """Offset a polyline to the left by `left_m`."""
    yaw = headings(points)
    normal = np.stack([-np.sin(yaw), np.cos(yaw)], axis=1)
    return points + normal * np.broadcast_to(np.asarray(left_m, np.float64), len(points))[:, None]


class RoadBuilder:
    """Collects lanes and their relations; `robotrl.sims.driving.roads.maps.finish` converts it to a `RoadMap`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lanes: list[Lane] = []
        self.signals: list[LightTimes] = []
        self.signal_ids: list[tuple[str, ...]] = []
        """Names, in the map's source, of the signals that each light stands for."""
        self.cycle_s = 1.0
        self.crosswalks: list[Crosswalk] = []
        self.parked: list[Parked] = []
        self.paved: list[Paved] = []
        self.priorities: set[tuple[int, int]] = set()
        """Pairs of lanes in a junction of which the first goes before the second."""
        self.routes: list[RouteChoice | PathRoute] = []

    def lane(
        self,
        points: Points,
        speed_mps: float,
        width_m: float = LANE_WIDTH_M,
        junction: bool = False,
        turn: JunctionTurn = JunctionTurn.STRAIGHT,
        spacing_m: float = SPACING_M,
        widths_m: NDArray[np.float64] | None = None,
        heights_m: NDArray[np.float64] | None = None,
        bend_rad: float = 0.0,
    ) -> int:
        """Add a lane and return its index.

        Args:
            points: (n, 2) centre line in driving direction, m; at least two different points.
            speed_mps: speed limit.
            width_m: width of the lane, its mean if it varies.
            junction: true for a lane inside a junction: no lane changes, and conflicts with other lanes count.
            turn: turn direction, for a lane in a junction.
            spacing_m: largest distance of the points that the lane is resampled to.
            widths_m: (n,) width at each point, 0 or more, of a lane that widens or narrows; for its drawn surface.
            heights_m: (n,) height at each point, by which lanes on different levels are told apart.
            bend_rad: change of heading, for a lane in a junction: of two that merge, the one that goes on from its road
                has the right of way over one that bends more; 0 for both leaves it to `turn`.

        Raises:
            ConfigError: fewer than two different points, a number that is not finite, a speed or width not above 0.
        """
        array = np.asarray(points, np.float64)
        where = f"map {self.name!r}, lane {len(self.lanes)}"
        if array.ndim != 2 or array.shape[1] != 2 or not np.isfinite(array).all():
            raise ConfigError(f"{where}: points have shape {array.shape}: expected finite numbers (n, 2)")
        if len(array) < 2 or np.ptp(array, axis=0).max() < 1e-3:
            raise ConfigError(f"{where}: its centre line has no length: expected two different points or more")
        if not (speed_mps > 0 and width_m > 0):
            raise ConfigError(f"{where}: speed is {speed_mps} m/s, width {width_m} m: expected both above 0")
        center = resampled(array, spacing_m)
        along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(array, axis=0), axis=1))])
        at = np.linspace(0.0, along[-1], len(center))
        widths_m, heights_m = (
            None if value is None else np.interp(at, along, value) for value in (widths_m, heights_m)
        )
        self.lanes.append(Lane(center, speed_mps, width_m, junction, turn, widths_m, heights_m, bend_rad))
        return len(self.lanes) - 1

    def beside(self, left: int, right: int, to_right: bool = True, to_left: bool | None = None) -> None:
        """Make two lanes of one direction neighbours.

        Args:
            left: the left one of the two.
            right: the right one.
            to_right: cars may change from the left lane to the right one; draws a broken line on that side.
            to_left: likewise from the right lane to the left one; None: as `to_right`.
        """
        to_left = to_right if to_left is None else to_left
        one, other = self.lanes[left], self.lanes[right]
        one.beside_right, other.beside_left = right, left
        one.right, other.left = right if to_right else NONE, left if to_left else NONE
        one.right_solid, other.left_solid = not to_right, not to_left

    def give_way(self, lane: int, to: int) -> None:
        """Make a lane in a junction give way to another one there, before the rules by turns, but after signs."""
        self.priorities.add((to, lane))

    def pave(self, points: Points, widths_m: NDArray[np.float64], height_m: float = 0.0) -> None:
        """Add road surface along a line (n, 2), m, with its width at each point, where there is no lane."""
        self.paved.append(Paved(np.asarray(points, np.float64), widths_m, height_m))

    def follow(self, lane: int, *successors: int) -> None:
        """Add successors of `lane`."""
        for successor in successors:
            if successor not in self.lanes[lane].next:
                self.lanes[lane].next.append(successor)

    def stop(self, lane: int, control: Control, group: int = NONE, s: float | None = None) -> None:
        """Put a stop line on a lane at `s` m, or 1 m before its end; `group` is the index of its light."""
        length = self.lanes[lane].length_m
        self.lanes[lane].control = control
        self.lanes[lane].stop_s = max(length - 1.0, 0.0) if s is None else s
        self.lanes[lane].group = group

    def signal(self, start_s: float, green_s: float, ids: tuple[str, ...] = ()) -> int:
        """Add a light with its timing in the cycle and return its index; `ids` name the signals of the source."""
        self.signal_ids.append(ids)
        self.signals.append(LightTimes(start_s, green_s))
        return len(self.signals) - 1

    def crosswalk(
        self, start: Sequence[float], end: Sequence[float], width_m: float = 3.0, height_m: float = 0.0
    ) -> None:
        """Add a crosswalk."""
        self.crosswalks.append(Crosswalk((start[0], start[1]), (end[0], end[1]), width_m, height_m))

    def park(self, lane: int, s: float, left_m: float, length_m: float = 4.5, width_m: float = 1.9) -> None:
        """Park a car along a lane, `left_m` to the left of its centre (negative: right)."""
        points = self.lanes[lane].points
        spacing = self.lanes[lane].length_m / (len(points) - 1)
        i = int(np.clip(round(s / spacing), 0, len(points) - 1))
        yaw = float(headings(points)[i])
        x, y = points[i] + left_m * np.array([-np.sin(yaw), np.cos(yaw)])
        self.parked.append(Parked(float(x), float(y), yaw, length_m, width_m))

    def route(
        self,
        lanes: Sequence[int],
        start_s: float = 5.0,
        end_s: float | None = None,
        change_s: Sequence[float] = (),
    ) -> None:
        """Add a route for the ego; see `RouteChoice`.

        Raises:
            ConfigError: two consecutive lanes are neither successors nor neighbours, an end is outside its lane, or
                there is not one position for each lane change.
        """
        changes = 0
        for before, after in itertools.pairwise(lanes):
            here = self.lanes[before]
            changes += after not in here.next
            if after not in (*here.next, here.left, here.right):
                raise ConfigError(
                    f"map {self.name!r}: route goes from lane {before} to lane {after}: expected one of its successors"
                    f" {here.next} or neighbours {[i for i in (here.left, here.right) if i != NONE]}"
                )
        last = self.lanes[lanes[-1]].length_m
        end = last - 5.0 if end_s is None else end_s
        for name, s, lane in (("start", start_s, lanes[0]), ("end", end, lanes[-1])):
            length = self.lanes[lane].length_m
            if not 0.0 <= s <= length:
                raise ConfigError(
                    f"map {self.name!r}: route {name} is {s:.1f} m along lane {lane}: expected 0 to {length:.1f}"
                )
        if change_s and len(change_s) != changes:
            raise ConfigError(
                f"map {self.name!r}: route has {changes} lane changes and {len(change_s)} positions change_s: expected"
                " one for each, or none"
            )
        self.routes.append(RouteChoice(tuple(lanes), start_s, end, tuple(change_s)))
