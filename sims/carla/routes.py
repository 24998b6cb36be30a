"""Route files: CARLA leaderboard 1.0, 2.0 and 2.1, and Bench2Drive.

A file holds routes with an id and a town. In leaderboard 1.0 a route's waypoints (<waypoint>, with yaw) stand directly
in it; since 2.0 they are positions in <waypoints>, without a heading, and <weathers> and <scenarios> may follow.
Waypoints and trigger points are returned in this project's frame: x forward, y left, angles counter-clockwise in rad.
CARLA's frame is left-handed: y and yaw change sign. Positions in a scenario's parameters stay as they are in the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, DataError, nearest, unknown
from robotrl.sims.driving.opendrive.xml import number, shown, tree, word
from robotrl.utils.files import read_plain

FEWEST = 2
"""Number of waypoints that a route needs at least."""
PARTS = ("waypoint", "waypoints", "weather", "weathers", "scenarios", "metrics")
"""Elements of a route; metrics (of a benchmark) are left to the benchmark."""
WEATHER = (
    "cloudiness",
    "precipitation",
    "precipitation_deposits",
    "wind_intensity",
    "sun_azimuth_angle",
    "sun_altitude_angle",
    "fog_density",
    "fog_distance",
    "fog_falloff",
    "wetness",
    "scattering_intensity",
    "mie_scattering_scale",
    "rayleigh_scattering_scale",
    "dust_storm",
)
"""Parameters of CARLA's weather."""


@dataclass(frozen=True)
class CarlaWeather:
    """Weather at one place of a route; between two of them it changes linearly."""

    route_percentage: float
    """Place, percent of the route's length."""
    parameters: Mapping[str, float]
    """Those of `WEATHER` that the file gives, in CARLA's units."""


@dataclass(frozen=True)
class CarlaScenario:
    """Scenario that starts when the ego passes its trigger point."""

    name: str
    type: str
    """Class of the scenario in ScenarioRunner."""
    trigger_xy: tuple[float, float]
    """m."""
    trigger_yaw: float
    """rad."""
    parameters: Mapping[str, Mapping[str, str]]
    """Attributes of each further element, by its tag; of several with one tag the second has the key "tag#2"."""


@dataclass(frozen=True)
class CarlaRoute:
    """One route of a file."""

    id: str
    town: str
    waypoints: NDArray[np.float64]
    """(n, 3) x, y, z, m."""
    yaws: NDArray[np.float64] | None
    """(n,) headings, rad; None in files since leaderboard 2.0."""
    weathers: tuple[CarlaWeather, ...]
    scenarios: tuple[CarlaScenario, ...]


def read_routes(source: Path | str, route_ids: Sequence[str] = ()) -> tuple[CarlaRoute, ...]:
    """Read a route file.

    Args:
        source: path of the XML file.
        route_ids: ids of the routes wanted, in this order; none for all, in the file's order.

    Raises:
        DataError: the file cannot be read or is no usable route file.
        ConfigError: an id that the file does not have, or has twice in `route_ids`.
    """
    path = Path(source)
    try:
        content = read_plain(path, "it")
    except (OSError, DataError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path}: cannot be read ({reason}): expected a route file") from None
    return parse_routes(content, str(path), route_ids)


def parse_routes(content: bytes | str, name: str, route_ids: Sequence[str] = ()) -> tuple[CarlaRoute, ...]:
    """Read routes from a file's content; see `read_routes`.

    Raises:
        DataError: see `read_routes`.
        ConfigError: see `read_routes`.
    """
    root = tree(content, name, "a route file")
    if root.tag != "routes":
        raise DataError(f"{name}: its root element is <{root.tag}>: expected <routes>")
    found: dict[str, CarlaRoute] = {}
    for element in root:
        if element.tag != "route":
            raise DataError(f"{name}: <routes> holds <{element.tag}>: expected <route>")
        route = _route(element, name)
        if route.id in found:
            raise DataError(f"{name}: <route> id is {shown(route.id)} for the second time: expected another for each")
        found[route.id] = route
    if not found:
        raise DataError(f"{name}: <routes> holds no <route>: expected one or more")
    for wanted in route_ids:
        if wanted not in found:
            raise unknown("route_ids", wanted, found)
    if len(set(route_ids)) < len(route_ids):
        raise ConfigError(f"route_ids is {list(route_ids)}: expected each id once")
    return tuple(found[wanted] for wanted in route_ids or found)


def _route(element: Element, name: str) -> CarlaRoute:
    own = _word(element, "id", f"{name}: route")
    where = f"{name}: route {shown(own)}"
    town = _word(element, "town", where)
    for part in element:
        if part.tag not in PARTS:
            close = nearest(part.tag, PARTS)
            hint = f"did you mean <{close}>? " if close else ""
            raise DataError(f"{where}: <route> holds <{part.tag}>: {hint}expected one of {', '.join(PARTS)}")
    old, new = element.findall("waypoint"), _inside(element, "waypoints", "position", where)
    if old and new:
        raise DataError(f"{where}: holds both <waypoint> and <waypoints>: expected one of them")
    points = old or new
    if len(points) < FEWEST:
        raise DataError(f"{where}: has {len(points)} waypoints: expected {FEWEST} or more")
    with_yaw = [point.get("yaw") is not None for point in points]
    if any(with_yaw) and not all(with_yaw):
        raise DataError(
            f"{where}: <{points[0].tag}> yaw is missing at waypoint {with_yaw.index(False)}: expected it at all or none"
        )
    weathers = [*element.findall("weather"), *_inside(element, "weathers", "weather", where)]
    return CarlaRoute(
        own,
        town,
        np.array([_xyz(point, f"{where}, waypoint {i}") for i, point in enumerate(points)]),
        np.array([_yaw(point, f"{where}, waypoint {i}") for i, point in enumerate(points)]) if all(with_yaw) else None,
        tuple(_weather(weather, where) for weather in weathers),
        tuple(_scenario(scenario, where) for scenario in _inside(element, "scenarios", "scenario", where)),
    )


def _inside(element: Element, group: str, tag: str, where: str) -> list[Element]:
    """All `tag` elements in the `group` elements, which may hold no others."""
    found = [child for parent in element.findall(group) for child in parent]
    for child in found:
        if child.tag != tag:
            raise DataError(f"{where}: <{group}> holds <{child.tag}>: expected <{tag}>")
    return found


def _xyz(element: Element, where: str) -> tuple[float, float, float]:
    """Position in our frame; a missing height is 0."""
    x, y = number(element, "x", where), number(element, "y", where)
    return x, 0.0 - y, number(element, "z", where, default=0.0)


def _yaw(element: Element, where: str) -> float:
    """Heading in our frame, rad, -pi to pi."""
    yaw = -math.radians(number(element, "yaw", where))
    return math.atan2(math.sin(yaw), math.cos(yaw))


def _weather(element: Element, where: str) -> CarlaWeather:
    place = number(element, "route_percentage", where, default=0.0, low=0.0, high=100.0)
    names = [key for key in element.keys() if key not in ("route_percentage", "id")]  # noqa: SIM118 (an Element)
    for key in names:
        if key not in WEATHER:
            close = nearest(key, WEATHER)
            hint = f"did you mean {close!r}? " if close else ""
            raise DataError(f"{where}: <weather> has {key}: {hint}expected one of {', '.join(WEATHER)}")
    return CarlaWeather(place, MappingProxyType({key: number(element, key, where) for key in names}))


def _scenario(element: Element, where: str) -> CarlaScenario:
    name = _word(element, "name", f"{where}: scenario")
    where = f"{where}, scenario {shown(name)}"
    kind = _word(element, "type", where)
    triggers = element.findall("trigger_point")
    if len(triggers) != 1:
        raise DataError(f"{where}: has {len(triggers)} <trigger_point>: expected one")
    x, y, _ = _xyz(triggers[0], where)
    parameters: dict[str, Mapping[str, str]] = {}
    counts: dict[str, int] = {}
    for child in element:
        if child.tag != "trigger_point":
            counts[child.tag] = counts.get(child.tag, 0) + 1
            key = child.tag if counts[child.tag] == 1 else f"{child.tag}#{counts[child.tag]}"
            parameters[key] = MappingProxyType(dict(child.attrib))
    return CarlaScenario(name, kind, (x, y), _yaw(triggers[0], where), MappingProxyType(parameters))


def _word(element: Element, key: str, where: str) -> str:
    """A required attribute that is not empty."""
    value = word(element, key, where)
    if not value.strip():
        raise DataError(f"{where}: <{element.tag}> {key} is '': expected a name")
    return value
