"""Route planner: the shortest way along lanes through given waypoints.

A way goes from lane to following lane, and to a neighbouring lane where the map allows a change (never in a junction).
A lane change costs as much as some metres of way, more on a short lane. Every waypoint may lie on several lanes, where
lanes overlap; the cheapest combination is found by dynamic programming: one search by Dijkstra's algorithm for each
waypoint, from all of its places at once, with their costs so far.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robotrl.errors import ConfigError, check_number
from robotrl.sims.driving.roads.lane_index import LaneIndex, LanePlace, lane_index, lanes_near, nearest_lane
from robotrl.sims.driving.roads.lanes import NONE, Lane, RoadBuilder, RouteChoice
from robotrl.sims.driving.roads.maps import CHANGE_M

CHANGE_COST_M = 30.0
"""Cost of a lane change, m of way."""
SHORT_COST = 3.0
"""Cost of each metre that a lane lacks for its changes."""
LEAST_CHANGE_M = 5.0
"""Length of a lane, for each change, below which none is planned."""
AMBIGUOUS_M = 1.0
"""A waypoint may lie on any lane at most this much farther away than the nearest."""
BACK_M = 1.5
"""Distance by which a waypoint may lie behind the one before on a lane."""
STRAY_M = 500.0
"""Detour beyond the nearest place of a waypoint up to which its other places are looked for at first."""
SHORTEST_M = 10.0
TOLERANCE_M = 5.0


class LaneGraph(NamedTuple):
    """Ways between the beginnings of lanes: of all lane changes on a lane, then to a successor (CSR)."""

    lengths_m: NDArray[np.float64]
    """(lanes,) length of each lane."""
    first: NDArray[np.int32]
    """(lanes + 1,) first way from each lane."""
    to: NDArray[np.int32]
    """(ways,) lane that is entered."""
    changes: NDArray[np.int32]
    """(ways,) lane changes before it; positive to the left."""
    cost_m: NDArray[np.float64]


def lane_graph(builder: RoadBuilder, change_cost_m: float = CHANGE_COST_M) -> LaneGraph:
    """Build the graph that ways are searched in.

    Args:
        builder: road network.
        change_cost_m: cost of a lane change, m of way; infinite for none.
    """
    lengths = np.array([lane.length_m for lane in builder.lanes])
    rows = [
        [
            (n, changes, lengths[there] + _change_cost(changes, lengths[lane], change_cost_m))
            for there, changes in _beside(builder.lanes, lane)
            for n in builder.lanes[there].next
        ]
        for lane in range(len(builder.lanes))
    ]
    rows = [[way for way in ways if way[2] < math.inf] for ways in rows]
    flat = list(itertools.chain.from_iterable(rows))
    to, changes, cost = (np.array([way[k] for way in flat]) for k in range(3))
    first = np.concatenate([[0], np.cumsum([len(ways) for ways in rows])])
    return LaneGraph(lengths, first.astype(np.int32), to.astype(np.int32), changes.astype(np.int32), cost.astype(float))


def _beside(lanes: Sequence[Lane], lane: int) -> Iterator[tuple[int, int]]:
    """The lane itself and those that may be changed to, with the changes that this takes (positive: left)."""
    yield lane, 0
    for sign in (1, -1):
        here, changes, seen = lane, 0, {lane}
        while not lanes[here].junction:
            here = lanes[here].left if sign > 0 else lanes[here].right
            if here == NONE or here in seen:
                break
            seen.add(here)
            changes += sign
            yield here, changes


def _change_cost(changes: int, room_m: float, change_cost_m: float) -> float:
    count = abs(changes)
    if not count:
        return 0.0
    if room_m < count * LEAST_CHANGE_M:
        return math.inf
    return count * change_cost_m + SHORT_COST * max(count * CHANGE_M - room_m, 0.0)


class _Leg(NamedTuple):
    """Way from one waypoint to the next: lane changes and lanes entered."""

    place: int
    """Place of the waypoint before, where it begins."""
    steps: tuple[tuple[int, int], ...]
    """Lane changes on each lane, and the successor entered then; the last enters none (NONE)."""


class _Best(NamedTuple):
    cost_m: float
    leg: _Leg


class RoutePlanner:
    """Planner for many routes on one map.

    Args:
        builder: road network.
        change_cost_m: cost of a lane change, m of way; infinite for none.
    """

    def __init__(self, builder: RoadBuilder, change_cost_m: float = CHANGE_COST_M) -> None:
        self.builder = builder
        self.change_cost_m = change_cost_m
        self.index: LaneIndex = lane_index(builder)
        self.graph = lane_graph(builder, change_cost_m)
        ways = list(zip(*(part.tolist() for part in self.graph[2:]), strict=True))
        self._ways = [ways[begin:end] for begin, end in itertools.pairwise(self.graph.first.tolist())]
        self._lengths: list[float] = self.graph.lengths_m.tolist()
        self._beside = [tuple(_beside(builder.lanes, lane)) for lane in range(len(builder.lanes))]
        self._reached_from: list[list[tuple[int, int]]] = [[] for _ in builder.lanes]
        for lane, beside in enumerate(self._beside):
            for there, changes in beside:
                self._reached_from[there].append((lane, changes))

    def plan(
        self, waypoints: ArrayLike, yaws: ArrayLike | None = None, tolerance_m: float = TOLERANCE_M
    ) -> RouteChoice:
        """Plan a route; see `plan_route`.

        Raises:
            ConfigError: see `plan_route`.
        """
        points, headings = _checked(waypoints, yaws)
        check_number("tolerance_m", tolerance_m, 1e-3, 1e4, "m")
        places = [self._places(i, points, headings, tolerance_m) for i in range(len(points))]
        legs, ends, missing = self._search(places, STRAY_M)
        if missing:
            legs, ends, missing = self._search(places, math.inf)
        if missing:
            raise ConfigError(
                f"waypoints[{missing}] is {_text(points[missing])}: no way leads there from waypoints[{missing - 1}]"
                f" {_text(points[missing - 1])} along the lanes of map {self.builder.name!r}: expected waypoints in"
                " driving order"
            )
        choice = self._choice(places, legs, min(ends, key=lambda i: ends[i].cost_m))
        length = route_length_m(self.builder, choice)
        if length < SHORTEST_M:
            raise ConfigError(
                f"waypoints make a route of {length:.1f} m on map {self.builder.name!r}: expected {SHORTEST_M:g} m or"
                " more"
            )
        return choice

    def _places(
        self, number: int, points: NDArray[np.float64], yaws: list[float | None], tolerance_m: float
    ) -> list[LanePlace]:
        """Places of a waypoint on the lanes where it may be meant to lie."""
        found = sorted(lanes_near(self.index, points[number], yaws[number], tolerance_m), key=lambda p: p.distance_m)
        if not found:
            nearest = nearest_lane(self.index, points[number])
            raise ConfigError(
                f"waypoints[{number}] is {_text(points[number])}, {nearest.distance_m:.1f} m from the nearest lane of"
                f" map {self.builder.name!r}: expected {tolerance_m:g} m or less"
            )
        along = [place for place in found if abs(place.heading_rad) <= math.pi / 2] or found
        return [place for place in along if place.distance_m <= along[0].distance_m + AMBIGUOUS_M]

    def _search(
        self, places: list[list[LanePlace]], stray_m: float
    ) -> tuple[list[dict[int, _Leg]], dict[int, _Best], int]:
        """Cheapest leg to each place of each waypoint, the costs of the ends, and the first waypoint not reached."""
        start = _Leg(NONE, ())
        best = {i: _Best(place.distance_m, start) for i, place in enumerate(places[0])}
        legs: list[dict[int, _Leg]] = []
        for number in range(1, len(places)):
            best = self._leg(places[number - 1], best, places[number], stray_m)
            if not best:
                return legs, best, number
            legs.append({i: found.leg for i, found in best.items()})
        return legs, best, 0

    def _leg(
        self, sources: list[LanePlace], costs: dict[int, _Best], targets: list[LanePlace], stray_m: float
    ) -> dict[int, _Best]:
        """Cheapest ways to the places of the next waypoint, from any place of this one."""
        found: dict[int, _Best] = {}
        # where a way ends that has entered a lane at its beginning, or is on it already: target and lane changes
        goals: dict[int, list[tuple[int, int]]] = {}
        for i, target in enumerate(targets):
            for lane, changes in self._reached_from[target.lane]:
                goals.setdefault(lane, []).append((i, changes))
        entered: dict[int, tuple[float, int, int, int]] = {}
        heap: list[tuple[float, int]] = []

        def enter(lane: int, cost: float, source: int, before: int, changes: int) -> None:
            if cost < entered.get(lane, (math.inf,))[0]:
                entered[lane] = cost, source, before, changes
                heapq.heappush(heap, (cost, lane))

        def arrive(at: int, cost: float, source: int, before: int, changes: int) -> None:
            cost += targets[at].distance_m
            if at not in found or cost < found[at].cost_m:
                steps = [(changes, NONE)]
                while before != NONE:
                    _, source, earlier, over = entered[before]
                    steps.append((over, before))
                    before = earlier
                found[at] = _Best(cost, _Leg(source, tuple(reversed(steps))))

        for source, best in costs.items():
            lane, s, *_ = sources[source]
            share = s / self._lengths[lane]
            for goal, changes in goals.get(lane, ()):
                whole = self._lengths[targets[goal].lane]
                cost = best.cost_m + _change_cost(changes, (1.0 - share) * whole, self.change_cost_m)
                if cost < math.inf and targets[goal].s_m >= share * whole - BACK_M:
                    arrive(goal, cost + max(targets[goal].s_m - share * whole, 0.0), source, NONE, changes)
            for there, changes in self._beside[lane]:
                rest = (1.0 - share) * self._lengths[there]
                cost = best.cost_m + _change_cost(changes, rest, self.change_cost_m) + rest
                if cost < math.inf:
                    for follower in self.builder.lanes[there].next:
                        enter(follower, cost, source, NONE, changes)
        while heap:
            cost, lane = heapq.heappop(heap)
            if cost > entered[lane][0]:
                continue
            costliest = max(best.cost_m for best in found.values()) if found else math.inf
            if cost > (costliest if len(found) == len(targets) else costliest + stray_m):
                break
            for goal, changes in goals.get(lane, ()):
                over = _change_cost(changes, self._lengths[targets[goal].lane], self.change_cost_m)
                if over < math.inf:
                    arrive(goal, cost + over + targets[goal].s_m, NONE, lane, changes)
            for follower, changes, more in self._ways[lane]:
                enter(follower, cost + more, NONE, lane, changes)
        return found

    def _choice(self, places: list[list[LanePlace]], legs: list[dict[int, _Leg]], end: int) -> RouteChoice:
        chosen, way = [end], list[_Leg]()
        for options in reversed(legs):
            way.append(options[chosen[-1]])
            chosen.append(way[-1].place)
        chosen.reverse()
        way.reverse()
        start = places[0][chosen[0]]
        lanes, begins = [start.lane], list[float]()
        for number, leg in enumerate(way):
            source, target = places[number][chosen[number]], places[number + 1][chosen[number + 1]]
            share = source.s_m / self._lengths[source.lane]
            for changes, follower in leg.steps:
                upper = target.s_m / self._lengths[target.lane] if follower == NONE else 1.0
                lower = start.s_m / self._lengths[start.lane] if len(lanes) == 1 else 0.0
                begins += self._change(lanes, changes, share, upper, lower)
                if follower != NONE:
                    lanes.append(follower)
                share = 0.0
        return RouteChoice(tuple(lanes), start.s_m, places[-1][chosen[-1]].s_m, tuple(begins))

    def _change(self, lanes: list[int], changes: int, share: float, upper: float, lower: float) -> list[float]:
        """Append the lanes of lane changes between two shares of a lane's length; positions where they begin."""
        begins = []
        for k in range(abs(changes)):
            here = self.builder.lanes[lanes[-1]]
            length = self._lengths[lanes[-1]]
            middle = (share + (upper - share) * (k + 0.5) / abs(changes)) * length
            begins.append(max(min(middle - CHANGE_M / 2, length - CHANGE_M), lower * length))
            lanes.append(here.left if changes > 0 else here.right)
        return begins


def plan_route(
    builder: RoadBuilder,
    waypoints: ArrayLike,
    yaws: ArrayLike | None = None,
    tolerance_m: float = TOLERANCE_M,
    change_cost_m: float = CHANGE_COST_M,
) -> RouteChoice:
    """Plan the shortest route through waypoints in order; for several routes on a map use a `RoutePlanner`.

    Args:
        builder: road network; the route is not added to it.
        waypoints: (n, 2) or (n, 3) points, m, two or more; heights are ignored.
        yaws: (n,) headings, rad; without them a waypoint between opposite lanes may lie on either.
        tolerance_m: largest distance of a waypoint from the centre of its lane.
        change_cost_m: cost of a lane change, m of way; infinite for none.

    Raises:
        ConfigError: a waypoint that is farther from every lane, no way from one to the next, a route under 10 m, or
            arrays of other shapes.
    """
    return RoutePlanner(builder, change_cost_m).plan(waypoints, yaws, tolerance_m)


def route_length_m(builder: RoadBuilder, choice: RouteChoice) -> float:
    """Length of a route along its lanes, m; a lane change leads to the same share of the other lane's length."""
    length, s = 0.0, choice.start_s
    for before, after in itertools.pairwise(choice.lanes):
        here = builder.lanes[before].length_m
        if after in builder.lanes[before].next:
            length, s = length + here - s, 0.0
        else:
            s *= builder.lanes[after].length_m / here
    return length + choice.end_s - s


def _checked(waypoints: ArrayLike, yaws: ArrayLike | None) -> tuple[NDArray[np.float64], list[float | None]]:
    points = np.asarray(waypoints, np.float64)
    if points.ndim != 2 or points.shape[1] not in (2, 3) or len(points) < 2 or not np.isfinite(points[:, :2]).all():
        raise ConfigError(f"waypoints have shape {points.shape}: expected two or more rows of 2 or 3 finite numbers")
    if yaws is None:
        return points[:, :2], [None] * len(points)
    turned = np.asarray(yaws, np.float64)
    if turned.shape != points.shape[:1] or not np.isfinite(turned).all():
        raise ConfigError(f"yaws have shape {turned.shape}: expected {len(points)} finite numbers, one a waypoint")
    return points[:, :2], turned.tolist()


def _text(point: NDArray[np.float64]) -> str:
    return f"({point[0]:.1f}, {point[1]:.1f})"
