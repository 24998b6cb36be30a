"""Library of actors that can be spawned: names, attributes, sizes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

BOOL, INT, FLOAT, STRING, COLOR = range(1, 6)
"""Types of attributes."""


class Kind(IntEnum):
    """Kinds of actors, as far as they behave in different ways."""

    VEHICLE = 0
    WALKER = 1
    PROP = 2
    SENSOR = 3
    LIGHT = 4
    SIGN = 5
    OTHER = 6
    """Spectator and controllers of walkers: no body."""


class Attribute(NamedTuple):
    """An attribute of a blueprint; `choices` are the recommended values, of which the first is the default."""

    name: str
    type: int
    value: str
    choices: tuple[str, ...] = ()
    modifiable: bool = False

    def packed(self) -> list[Any]:
        """The form of the protocol."""
        return [self.name, self.type, self.value, list(self.choices), self.modifiable, False]


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A kind of actor that can be spawned.

    Attributes:
        extent: half of its length, width and height, m.
        center_z: height of the center of its box over its origin, m.
        wheelbase: distance of its axles, m; 0 without wheels.
        tag: semantic label.
    """

    id: str
    kind: Kind
    attributes: tuple[Attribute, ...] = ()
    extent: tuple[float, float, float] = (0.0, 0.0, 0.0)
    center_z: float = 0.0
    wheelbase: float = 0.0
    mass_kg: float = 1.0
    tag: int = 0

    def packed(self, uid: int) -> list[Any]:
        """The form of the protocol."""
        return [uid, self.id, self.id.replace(".", ","), [attribute.packed() for attribute in self.attributes]]


def _settable(name: str, kind: int, *choices: str) -> Attribute:
    return Attribute(name, kind, choices[0], choices, True)


def _fixed(name: str, kind: int, value: str) -> Attribute:
    return Attribute(name, kind, value)


class _Model(NamedTuple):
    name: str
    base: str
    extent: tuple[float, float, float]
    mass_kg: float
    tag: int


_CAR, _TRUCK, _BUS, _MOTORCYCLE, _BICYCLE, _PEDESTRIAN, _STATIC, _DYNAMIC = 14, 15, 16, 18, 19, 12, 20, 21
_MODELS = (
    _Model("tesla.model3", "car", (2.4, 1.08, 0.74), 1850.0, _CAR),
    _Model("lincoln.mkz_2020", "car", (2.45, 1.06, 0.74), 1700.0, _CAR),
    _Model("audi.tt", "car", (2.09, 1.0, 0.69), 1325.0, _CAR),
    _Model("mini.cooper_s", "car", (1.9, 0.99, 0.74), 1260.0, _CAR),
    _Model("nissan.patrol_2021", "car", (2.78, 1.07, 1.02), 2400.0, _CAR),
    _Model("mercedes.sprinter", "van", (2.96, 0.99, 1.28), 2800.0, _CAR),
    _Model("carlamotors.firetruck", "truck", (4.23, 1.45, 1.91), 12000.0, _TRUCK),
    _Model("mitsubishi.fusorosa", "bus", (5.14, 1.97, 2.13), 9000.0, _BUS),
    _Model("yamaha.yzf", "motorcycle", (1.1, 0.43, 0.76), 200.0, _MOTORCYCLE),
    _Model("bh.crossbike", "bicycle", (0.74, 0.43, 0.8), 90.0, _BICYCLE),
    _Model("diamondback.century", "bicycle", (0.82, 0.19, 0.8), 90.0, _BICYCLE),
)
_TWO_WHEELS = ("motorcycle", "bicycle")
_ROLES = ("autopilot", "scenario", "ego_vehicle")
_COLORS = ("17,37,103", "180,0,0", "211,142,0", "255,255,255", "0,0,0")


def _vehicle(model: _Model) -> Blueprint:
    attributes = (
        _settable("role_name", STRING, *_ROLES),
        _settable("color", COLOR, *_COLORS),
        _settable("sticky_control", BOOL, "true", "false"),
        _fixed("object_type", STRING, ""),
        _fixed("base_type", STRING, model.base),
        _fixed("special_type", STRING, "emergency" if "firetruck" in model.name else ""),
        _fixed("number_of_wheels", INT, "2" if model.base in _TWO_WHEELS else "4"),
        _fixed("generation", INT, "2"),
        _fixed("has_lights", BOOL, "false" if model.base == "bicycle" else "true"),
    )
    wheelbase = 1.2 * model.extent[0]
    extent = model.extent
    name = f"vehicle.{model.name}"
    return Blueprint(name, Kind.VEHICLE, attributes, extent, extent[2], wheelbase, model.mass_kg, model.tag)


def _walker(number: int) -> Blueprint:
    attributes = (
        _settable("role_name", STRING, "pedestrian"),
        _settable("is_invincible", BOOL, "true", "false"),
        _settable("speed", FLOAT, "0.0", "1.43", "2.83"),
        _fixed("gender", STRING, "female" if number % 2 else "male"),
        _fixed("age", STRING, "child" if number in (9, 10, 11, 12, 13, 14) else "adult"),
        _fixed("generation", INT, "1"),
    )
    name = f"walker.pedestrian.{number:04d}"
    return Blueprint(name, Kind.WALKER, attributes, (0.19, 0.19, 0.93), mass_kg=75.0, tag=_PEDESTRIAN)


def _prop(name: str, extent: tuple[float, float, float], tag: int = _DYNAMIC) -> Blueprint:
    attributes = (_settable("role_name", STRING, "prop"), _fixed("size", STRING, "medium"))
    return Blueprint(f"static.prop.{name}", Kind.PROP, attributes, extent, extent[2], mass_kg=1e4, tag=tag)


_SENSOR = (_settable("role_name", STRING, "front"), _settable("sensor_tick", FLOAT, "0.0"))
_CAMERA = (
    *_SENSOR,
    _settable("image_size_x", INT, "800"),
    _settable("image_size_y", INT, "600"),
    _settable("fov", FLOAT, "90.0"),
)


def _library() -> dict[str, Blueprint]:
    found = [_vehicle(model) for model in _MODELS]
    found += [_walker(number) for number in range(1, 15)]
    found += [
        _prop("streetbarrier", (0.6, 0.19, 0.53)),
        _prop("trafficcone01", (0.18, 0.18, 0.25)),
        _prop("trafficwarning", (1.4, 1.2, 1.5)),
        _prop("box01", (0.3, 0.3, 0.3)),
        _prop("busstop", (2.1, 1.0, 1.4), _STATIC),
    ]
    cameras = ("rgb", "semantic_segmentation", "instance_segmentation", "depth")
    found += [Blueprint(f"sensor.camera.{name}", Kind.SENSOR, _CAMERA) for name in cameras]
    found += [Blueprint(f"sensor.other.{name}", Kind.SENSOR, _SENSOR) for name in ("collision", "lane_invasion", "imu")]
    found.append(Blueprint("controller.ai.walker", Kind.OTHER, (_settable("role_name", STRING, "default"),)))
    return {blueprint.id: blueprint for blueprint in found}


LIBRARY = _library()
"""Blueprints by name."""
SPECTATOR = Blueprint("spectator", Kind.OTHER)
TRAFFIC_LIGHT = Blueprint("traffic.traffic_light", Kind.LIGHT)


def sign(name: str) -> Blueprint:
    """Blueprint of a traffic sign: `stop`, `yield` or `speed_limit.30`."""
    return Blueprint(f"traffic.{name}", Kind.SIGN)
