"""Calls of the protocol, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from robotrl.errors import ConfigError
from robotrl.sims.carla.stub import batch, requests, wire
from robotrl.sims.carla.stub.simulation import physics
from robotrl.sims.carla.stub.simulation.actors import StubActor
from robotrl.sims.carla.stub.simulation.blueprints import LIBRARY
from robotrl.sims.carla.stub.simulation.sensors import box_of, packed_actor
from robotrl.sims.carla.stub.simulation.town import Town
from robotrl.sims.carla.stub.simulation.world import WORLD_STREAM, Refusal, World

_ROADS = 1
"""Semantic label."""
OPENDRIVE_MAP = "OpenDriveMap"
"""Name of the map that a client sends."""


@dataclass
class Session:
    """Objects that calls work on.

    Attributes:
        publish: publishes a frame of no simulated time.
        tick: simulates a frame, publishes it, and returns its number.
    """

    world: World
    host: str
    stream_port: int
    publish: Callable[[], None]
    tick: Callable[[], int]
    version: str = wire.VERSION
    map_name: str | None = None
    """Name of the map that is told instead of the true one; one that can be loaded is told with its lanes."""
    managers: dict[int, str] | None = None

    def packed(self, actor: StubActor) -> list[Any]:
        """An actor in the form of the protocol."""
        return packed_actor(self.world, actor, self.host, self.stream_port)

    def town(self) -> Town:
        """Map that clients are told."""
        return self.world.towns.get(self.map_name or "", self.world.town)


Call = Callable[..., Any]
_VALUES: dict[str, Call] = {}
_NOTHINGS: dict[str, Call] = {}


def _value(call: Call) -> Call:
    """Register a call that returns something."""
    _VALUES[call.__name__.strip("_")] = call
    return call


def _nothing(call: Call) -> Call:
    """Register a call that returns nothing."""
    _NOTHINGS[call.__name__.strip("_")] = call
    return call


def perform(session: Session, name: str, arguments: Sequence[Any]) -> Any:
    """Result of a call in the form of the protocol.

    Raises:
        KeyError: an unknown name.
    """
    if name == "apply_batch":
        results = batch.run(session.world, arguments[0])
        if arguments[1]:
            session.tick()
        return results
    if name in _VALUES:
        try:
            return wire.value(_VALUES[name](session, *arguments))
        except Refusal as refused:
            return wire.failure(str(refused))
    call = _NOTHINGS[name]
    try:
        call(session, *arguments)
    except Refusal as refused:
        return wire.void_failure(str(refused))
    return wire.NOTHING


# server and episode


@_value
def _version(session: Session) -> str:
    return session.version


@_value
def _get_episode_info(session: Session) -> list[Any]:
    return [session.world.episode, [wire.token(WORLD_STREAM, session.stream_port, session.host)]]


@_value
def _get_sensor_token(session: Session, stream: int) -> list[Any]:
    return [wire.token(stream, session.stream_port, session.host)]


@_value
def _get_episode_settings(session: Session) -> list[Any]:
    return session.world.settings


@_value
def _set_episode_settings(session: Session, settings: list[Any]) -> int:
    session.world.settings = [*settings, *session.world.settings[len(settings) :]]
    session.publish()
    return session.world.frame


@_value
def _tick_cue(session: Session) -> int:
    return session.tick()


@_value
def _get_available_maps(session: Session) -> list[str]:
    return [f"/Game/Carla/Maps/{name}" for name in session.world.towns]


@_nothing
def _load_new_episode(session: Session, name: str, reset_settings: bool = True, *_: object) -> None:
    world = session.world
    town = world.towns.get(PurePosixPath(name).name) if name else world.town  # no name: once more
    if town is None:
        raise Refusal(f"map not found: {name}")
    if reset_settings:
        world.settings[:3] = [False, False, [False]]
    world.load(town)  # the client ticks until it sees the new episode


@_nothing
def _load_map_layer(session: Session, layer: int) -> None:
    """Layers of a map: there are none."""


@_nothing
def _unload_map_layer(session: Session, layer: int) -> None:
    """Layers of a map: there are none."""


@_nothing
def _copy_opendrive_to_file(session: Session, opendrive: str, *_: object) -> None:
    try:
        session.world.towns[OPENDRIVE_MAP] = Town(OPENDRIVE_MAP, opendrive)
    except ConfigError as error:
        raise Refusal(str(error)) from error


@_value
def _get_map_info(session: Session) -> list[Any]:
    town = session.town()
    points = [[pose[:3], pose[3:]] for pose in town.spawn_points]
    return [f"Carla/Maps/{session.map_name or town.name}", points]


@_value
def _get_map_data(session: Session) -> str:
    return session.town().opendrive


@_value
def _get_required_files(session: Session, *_: object) -> list[str]:
    return []


@_value
def _get_navigation_mesh(session: Session) -> bytes:
    return b""


@_value
def _get_weather_parameters(session: Session) -> list[float]:
    return session.world.weather


@_nothing
def _set_weather_parameters(session: Session, weather: list[float]) -> None:
    session.world.weather = weather


@_value
def _query_lights_state(session: Session, *_: object) -> list[Any]:
    return []


@_nothing
def _update_lights_state(session: Session, *_: object) -> None:
    """Street lights: there are none."""


@_value
def _project_point(session: Session, at: list[float], direction: list[float], distance: float) -> list[Any]:
    """Place where a ray downwards meets the ground; other rays meet nothing."""
    x, y, z = at
    ground = session.world.town.ground(x, y, z)
    return [direction[2] < 0 and z - distance <= ground <= z, [[x, y, ground], _ROADS]]


@_value
def _get_all_level_BBs(session: Session, *_: object) -> list[Any]:
    return []


@_value
def _get_environment_objects(session: Session, *_: object) -> list[Any]:
    return []


@_value
def _get_names_of_all_objects(session: Session) -> list[str]:
    return []


# traffic manager: it runs in a client, and clients find each other's here


@_value
def _is_traffic_manager_running(session: Session, port: int) -> bool:
    return port in (session.managers or {})


@_value
def _get_traffic_manager_running(session: Session, port: int) -> list[Any]:
    return [(session.managers or {}).get(port, ""), port]


@_value
def _add_traffic_manager_running(session: Session, manager: list[Any]) -> bool:
    managers = session.managers = session.managers or {}
    if manager[1] in managers:
        return False
    managers[manager[1]] = manager[0]
    return True


@_value
def _destroy_traffic_manager(session: Session, port: int) -> bool:
    return (session.managers or {}).pop(port, None) is not None


# actors


@_value
def _get_actor_definitions(session: Session) -> list[Any]:
    return [blueprint.packed(uid) for uid, blueprint in enumerate(LIBRARY.values(), 1)]


@_value
def _get_spectator(session: Session) -> list[Any]:
    return session.packed(session.world.spectator)


@_value
def _get_actors_by_id(session: Session, ids: list[int]) -> list[Any]:
    return [session.packed(actor) for actor in map(session.world.actors.of, ids) if actor is not None]


@_value
def _spawn_actor(session: Session, description: Any, transform: Any) -> list[Any]:
    return session.packed(requests.spawn(session.world, description, transform))


@_value
def _spawn_actor_with_parent(session: Session, description: Any, transform: Any, parent: int, *_: object) -> list[Any]:
    return session.packed(requests.spawn(session.world, description, transform, parent))


@_value
def _destroy_actor(session: Session, actor: int) -> bool:
    if not session.world.destroy(actor):
        raise Refusal("unable to destroy actor: not found")
    return True


def _known(session: Session, actor: int) -> StubActor:
    found = session.world.actors.of(actor)
    if found is None:
        raise Refusal("unable to find actor")
    return found


@_value
def _get_actor_bounding_box(session: Session, actor: int) -> list[Any]:
    return box_of(_known(session, actor))


def _acts(name: str, act: Callable[..., None]) -> None:
    """Register a call that does something to an actor."""

    def call(session: Session, actor: int, *arguments: Any) -> None:
        _known(session, actor)
        act(session.world, actor, *arguments)

    _NOTHINGS[name] = call


_acts("apply_control_to_vehicle", requests.control_vehicle)
_acts("apply_control_to_walker", requests.control_walker)
_acts("set_actor_transform", requests.transform)
_acts("set_actor_location", requests.location)
_acts("set_actor_target_velocity", requests.velocity)
_acts("enable_actor_constant_velocity", lambda world, actor, to: world.hold_velocity(actor, to))
_acts("disable_actor_constant_velocity", lambda world, actor: world.hold_velocity(actor, None))
_acts("add_actor_impulse", requests.impulse)
_acts("set_actor_simulate_physics", requests.simulate_physics)
_acts("set_vehicle_light_state", requests.vehicle_lights)
for _ignored in (
    "set_actor_target_angular_velocity",
    "set_actor_enable_gravity",
    "set_actor_collisions",
    "set_actor_autopilot",
    "add_actor_force",
    "add_actor_torque",
    "add_actor_angular_impulse",
    "apply_physics_control",
    "show_vehicle_debug_telemetry",
    "open_vehicle_door",
    "close_vehicle_door",
):
    _acts(_ignored, lambda world, actor, *_: None)


@_value
def _get_wheel_steer_angle(session: Session, actor: int, wheel: int) -> float:
    """Angle of a wheel, degrees; only the front wheels (0 and 1) turn."""
    _known(session, actor)
    steer = float(session.world.actors.record["steer"][session.world.actors.row[actor]])
    return steer * math.degrees(physics.MAX_STEER_RAD) if wheel < 2 else 0.0


@_value
def _get_vehicle_light_state(session: Session, actor: int) -> list[int]:
    return [_known(session, actor).light_state]


@_value
def _get_vehicle_light_states(session: Session) -> list[Any]:
    from_vehicles = (a for a in session.world.actors.list if a.blueprint.id.startswith("vehicle."))
    return [[actor.id, actor.light_state] for actor in from_vehicles]


@_value
def _get_physics_control(session: Session, actor: int) -> list[Any]:
    blueprint = _known(session, actor).blueprint
    wheel = [3.5, 0.25, 70.0, 35.0, 1500.0, 3000.0, 17.0, 3.0, 20.0, [0.0, 0.0, 0.0]]
    gears = [[ratio, 0.5, 0.65] for ratio in (1.0,)]
    return [
        [[0.0, 400.0], [5000.0, 400.0]],
        6000.0,
        1.0,
        0.15,
        2.0,
        0.35,
        True,
        0.5,
        10.0,
        1.0,
        gears,
        blueprint.mass_kg,
        0.3,
        [0.0, 0.0, 0.0],
        [[0.0, 1.0], [20.0, 1.0]],
        [wheel] * (2 if blueprint.wheelbase < 2.0 else 4),
        False,
    ]


# traffic lights


def _light(session: Session, light: int) -> Any:
    found = session.world.lights.by_id.get(light)
    if found is None:
        raise Refusal("unable to find traffic light")
    return found


@_nothing
def _set_traffic_light_state(session: Session, light: int, state: int) -> None:
    _light(session, light)
    session.world.lights.show(light, state)


@_nothing
def _set_traffic_light_green_time(session: Session, light: int, seconds: float) -> None:
    _light(session, light).green_s = seconds


@_nothing
def _set_traffic_light_yellow_time(session: Session, light: int, seconds: float) -> None:
    _light(session, light).yellow_s = seconds


@_nothing
def _set_traffic_light_red_time(session: Session, light: int, seconds: float) -> None:
    _light(session, light).red_s = seconds


@_nothing
def _freeze_traffic_light(session: Session, light: int, frozen: bool) -> None:
    _light(session, light)
    session.world.lights.of_junction[light].frozen = frozen


@_nothing
def _freeze_all_traffic_lights(session: Session, frozen: bool) -> None:
    for junction in session.world.lights.junctions:
        junction.frozen = frozen


@_nothing
def _reset_traffic_light_group(session: Session, light: int) -> None:
    _light(session, light)
    session.world.lights.of_junction[light].restart()


@_nothing
def _reset_all_traffic_lights(session: Session) -> None:
    for junction in session.world.lights.junctions:
        junction.restart()


@_value
def _get_group_traffic_lights(session: Session, light: int) -> list[int]:
    _light(session, light)
    return [other.id for other in session.world.lights.of_junction[light].lights]


@_value
def _get_light_boxes(session: Session, light: int) -> list[Any]:
    return _known(session, light).areas


NAMES = frozenset({*_VALUES, *_NOTHINGS, "apply_batch"})
"""Names of the calls."""
