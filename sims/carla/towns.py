"""Maps of CARLA towns as our road maps, their routes, and the start of each episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError
from robotrl.sims import starts
from robotrl.sims.carla.routes import CarlaRoute
from robotrl.sims.driving.opendrive import reader
from robotrl.sims.driving.roads import maps
from robotrl.sims.driving.roads.lane_index import LaneIndex
from robotrl.sims.driving.roads.lanes import Parked, RoadBuilder, RouteChoice
from robotrl.sims.driving.roads.planner import RoutePlanner
from robotrl.sims.driving.roads.routes import pick_routes, split_rows, warn_if_shared
from robotrl.spec import Split

PARKED_M = 30.0
"""Distance from a lane up to which a parked car of the map counts."""


class CarlaTown(NamedTuple):
    """A town with its routes."""

    road: maps.RoadMap
    lanes: LaneIndex
    signal_ids: tuple[tuple[str, ...], ...]
    """OpenDRIVE ids of the signals of each light of the map."""


def town_of(
    name: str, text: str, parked: NDArray[Any], planned: Sequence[CarlaRoute], count: int, length_m: float
) -> CarlaTown:
    """Build a town.

    Args:
        name: its name.
        text: its OpenDRIVE text.
        parked: (n,) `scene.STATIC_BOX`.
        planned: its routes from a file; if there are none, up to `count` routes are drawn.
        count: largest number of routes to draw.
        length_m: their length, m.

    Raises:
        DataError: the text is no usable OpenDRIVE, or has left-hand traffic.
        ConfigError: a route leaves the map, or the map has no way of 10 m.
    """
    builder = reader.parse(text, name, own_lights=True, mirror=False)
    planner = RoutePlanner(builder)
    for route in planned:
        builder.routes.append(_planned(planner, route))
    if not planned:
        pick_routes(builder, count=count, seed=0, length_m=length_m)
        warn_if_shared(name, len(builder.routes))
    for box in parked:
        if _near(builder, float(box["x"]), float(box["y"])):
            builder.parked.append(Parked(*(float(box[key]) for key in ("x", "y", "yaw", "length", "width"))))
    return CarlaTown(maps.finish(builder), planner.index, tuple(builder.signal_ids))


def _planned(planner: RoutePlanner, route: CarlaRoute) -> RouteChoice:
    try:
        return planner.plan(route.waypoints, route.yaws)
    except ConfigError as error:
        raise ConfigError(f"route {route.id!r}: {error}") from None


def _near(builder: RoadBuilder, x: float, y: float) -> bool:
    return any(np.hypot(*(lane.points - (x, y)).T).min() < PARKED_M for lane in builder.lanes)


class Start(NamedTuple):
    """Start of an episode."""

    town: str
    route: int
    """Index among the routes of the town's map."""
    planned: CarlaRoute | None
    """Route of a file; None for one that was drawn."""


class StartPlan:
    """Starts by id: routes of a file one after another, or the drawn routes of a town, a part of them in each split.

    Args:
        town: name of the town; without routes of a file.
        planned: routes of a file.
        count: largest number of drawn routes.
    """

    def __init__(self, town: str, planned: Sequence[CarlaRoute], count: int) -> None:
        self._town, self._planned, self._count = town, tuple(planned), count
        self._place = {id(route): k for some in self._by_town().values() for k, route in enumerate(some)}

    def _by_town(self) -> Mapping[str, list[CarlaRoute]]:
        found: dict[str, list[CarlaRoute]] = {}
        for route in self._planned:
            found.setdefault(route.town, []).append(route)
        return found

    def routes_of(self, town: str) -> list[CarlaRoute]:
        """Routes of the file in a town, in the order of the map's routes."""
        return self._by_town().get(town, [])

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each route in turn, as the names of scenarios."""
        return tuple(route.id for route in self._planned) or (self._town,)

    def town(self, state_id: int) -> str:
        """Town of a start."""
        return self._planned[state_id % len(self._planned)].town if self._planned else self._town

    def start(self, state_id: int, drawn: int | None = None) -> Start:
        """Start of an id: in turn, so that as many ids of a split as it has routes cover each once.

        Args:
            state_id: the id.
            drawn: number of routes that could be drawn in the town; None for as many as were asked for.
        """
        if self._planned:
            route = self._planned[state_id % len(self._planned)]
            return Start(route.town, self._place[id(route)], route)
        split: Split = next(name for name, ids in starts.SPLITS.items() if state_id in ids)
        first, end = split_rows(self._count if drawn is None else drawn)[split]
        return Start(self._town, first + state_id % (end - first), None)
