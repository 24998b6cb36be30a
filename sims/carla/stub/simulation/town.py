"""Maps: the OpenDRIVE text, and what the server places on it: spawn points, traffic lights and signs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import carla

from robotrl.errors import ConfigError

SPAWN_SPACING_M, SPAWN_HEIGHT_M, SPAWN_APART_M = 20.0, 0.5, 6.0
_LIGHT = "1000001"
_SIGNS = {"206": "stop", "205": "yield"}
_SPEED_LIMIT = "274"
_AREA_HALF_LENGTH_M = 2.5
"""Half length of the piece of a lane on which a vehicle is at its light."""

Pose = tuple[float, float, float, float, float, float]
"""x, y, z (m), pitch, yaw, roll (degrees), in CARLA's left-handed frame."""
ORIGIN: Pose = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class Area(NamedTuple):
    """A piece of a lane that belongs to a light or a sign."""

    x: float
    y: float
    z: float
    yaw_deg: float
    half_length: float
    half_width: float


class Signal(NamedTuple):
    """A light or sign: its blueprint's name, its OpenDRIVE id, where it stands, and the lanes that it rules."""

    name: str
    opendrive_id: str
    pose: Pose
    areas: tuple[Area, ...]


class Town:
    """A map that the stub can load.

    Args:
        name: its short name, such as `Town01`.
        opendrive: text of the OpenDRIVE file.

    Raises:
        ConfigError: a text that the client library cannot read.
    """

    def __init__(self, name: str, opendrive: str) -> None:
        self.name, self.opendrive = name, opendrive
        try:
            self.lanes = carla.Map(name, opendrive)
            root = ElementTree.fromstring(opendrive)
        except (RuntimeError, ElementTree.ParseError) as error:
            raise ConfigError(f"map {name!r} is no OpenDRIVE text: {error}") from error
        self.spawn_points = _spawn_points(self.lanes)
        self.flat = _flat(self.lanes)
        self.signals = _signals(self.lanes)
        self.phases = _phases(root, [signal.opendrive_id for signal in self.signals if signal.name == "traffic_light"])
        """Junctions of lights: a list of phases each, a phase the OpenDRIVE ids that are green together."""

    def ground(self, x: float, y: float, z: float) -> float:
        """Height of the nearest lane, m; `z` on a map without lanes."""
        found: Any = self.lanes.get_waypoint(carla.Location(x, y, z), True, carla.LaneType.Any)
        return z if found is None else float(found.transform.location.z)


def read_town(text: str) -> Town:
    """Read a map given as `FILE` or `NAME=FILE`.

    Raises:
        ConfigError: no such file, or no OpenDRIVE text.
    """
    name, _, path = text.rpartition("=")
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"map is {path!r}: expected an OpenDRIVE file (.xodr)")
    return Town(name or file.stem, file.read_text(encoding="utf-8"))


def pose_of(transform: carla.Transform) -> Pose:
    """Numbers of a transform."""
    at, turned = transform.location, transform.rotation
    return (at.x, at.y, at.z, turned.pitch, turned.yaw, turned.roll)


def _flat(lanes: carla.Map) -> bool:
    heights = [waypoint.transform.location.z for waypoint in lanes.generate_waypoints(SPAWN_SPACING_M)]
    return not heights or max(heights) - min(heights) < 0.01


def _spawn_points(lanes: carla.Map) -> list[Pose]:
    """One about every 20 m of each driving lane outside junctions."""
    found: list[Pose] = []
    for waypoint in lanes.generate_waypoints(SPAWN_SPACING_M):
        if waypoint.is_junction or waypoint.lane_type != carla.LaneType.Driving:
            continue
        x, y, z, pitch, yaw, roll = pose_of(waypoint.transform)
        near = (abs(x - other[0]) < SPAWN_APART_M and abs(y - other[1]) < 1.0 for other in found)
        if not any(near):
            found.append((x, y, z + SPAWN_HEIGHT_M, pitch, yaw, roll))
    return found


def _signals(lanes: carla.Map) -> list[Signal]:
    found: dict[str, Signal] = {}
    for landmark in lanes.get_all_landmarks():
        name = _name_of(landmark)
        if name is None:
            continue
        areas = _areas(lanes, landmark)
        known = found.get(landmark.id)
        if known is None:
            found[landmark.id] = Signal(name, landmark.id, pose_of(landmark.transform), areas)
        else:  # a reference to a signal of another road
            found[landmark.id] = known._replace(areas=known.areas + areas)
    return [found[key] for key in sorted(found)]


def _name_of(landmark: carla.Landmark) -> str | None:
    if landmark.type == _LIGHT:
        return "traffic_light"
    if landmark.type == _SPEED_LIMIT:
        return f"speed_limit.{landmark.value:.0f}"
    return _SIGNS.get(landmark.type)


def _areas(lanes: carla.Map, landmark: carla.Landmark) -> tuple[Area, ...]:
    ruled = [lane for low, high in landmark.get_lane_validities() for lane in range(low, high + 1) if lane]
    found: list[Area] = []
    for lane in ruled:
        waypoint = lanes.get_waypoint_xodr(landmark.road_id, lane, landmark.s)
        if waypoint is not None and waypoint.lane_type == carla.LaneType.Driving:
            at = waypoint.transform.location
            yaw = waypoint.transform.rotation.yaw
            found.append(Area(at.x, at.y, at.z, yaw, _AREA_HALF_LENGTH_M, 0.5 * waypoint.lane_width))
    return tuple(found)


def _phases(root: ElementTree.Element, lights: list[str]) -> list[list[list[str]]]:
    """Phases of each junction, from its controllers; a light without one is a junction of its own."""
    ruled = {
        controller.get("id", ""): [control.get("signalId", "") for control in controller.iter("control")]
        for controller in root.iterfind("controller")
    }
    left = set(lights)
    found: list[list[list[str]]] = []
    for junction in root.iterfind("junction"):
        phases: list[list[str]] = []
        for controller in junction.iterfind("controller"):
            phase = [light for light in ruled.get(controller.get("id", ""), []) if light in left]
            left.difference_update(phase)
            phases.extend([phase] if phase else [])
        found.extend([phases] if phases else [])
    return found + [[[light]] for light in lights if light in left]
