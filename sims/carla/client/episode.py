"""One episode in a CARLA world: the ego, its sensors, traffic, scenarios, and the scene after each tick."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import carla
import numpy as np

from robotrl.errors import ConfigError, unknown
from robotrl.sims.carla.channel import Arrays
from robotrl.sims.carla.client import traffic
from robotrl.sims.carla.client.hooks import Hook, hooks_of
from robotrl.sims.carla.client.pedals import PedalControl
from robotrl.sims.carla.client.readout import Readout
from robotrl.sims.carla.client.sensors import CameraQueue, CollisionLog
from robotrl.sims.carla.faults import CarlaFault
from robotrl.sims.carla.scene import HIT, touches_ego

HEIGHTS_M = (0.3, 0.6, 1.2, 2.4)
"""Heights above the road at which the ego is tried to be spawned, one after another."""
CONTACT_M, CONTACT_S = 0.1, 0.1
"""A collision event is waited for, so long at most, while another box is this near."""


@dataclass(frozen=True)
class EpisodeOrder:
    """Contents of an episode."""

    seed: int
    """Seed of everything that is drawn: traffic, its manager, walkers."""
    ego: str
    """Blueprint of the ego."""
    x: float
    """Start of the ego, m, in our frame."""
    y: float
    yaw: float
    vehicles: int = 0
    walkers: int = 0
    track: bool = True
    """Control the acceleration by feedback instead of the pedals' position."""
    ticks: int = 1
    """Ticks before the first scene, in which cars settle on the road."""
    camera: Mapping[str, float] | None = None
    """Width, height and fov_deg of a camera at the windscreen; None without."""
    weather: Mapping[str, float] = field(default_factory=dict[str, float])
    scenarios: Sequence[Mapping[str, Any]] = ()


class CarlaEpisode:
    """An episode; ends with `end`."""

    def __init__(
        self, client: Any, world: Any, manager: Callable[[int], Any], order: EpisodeOrder, timeout_s: float
    ) -> None:
        self.client, self.world, self.order = client, world, order
        self._make_manager = manager
        self.map = world.get_map()
        self.draw = random.Random(order.seed)
        self.actors: list[Any] = []
        """Actors of this episode besides sensors, the ego first; hooks add theirs."""
        self.driven: list[int] = []
        """Ids of the vehicles that the traffic manager drives."""
        self.refused = 0
        """Actors that could not be spawned."""
        self._timeout_s = timeout_s
        self._tick_s = float(world.get_settings().fixed_delta_seconds)
        self._pedals = PedalControl()
        self._sensors: list[Any] = []
        self._hooks: list[Hook] = []
        self.readout = Readout(world)

    @cached_property
    def manager(self) -> Any:
        """Traffic manager, with this episode's seed."""
        return self._make_manager(self.order.seed)

    @property
    def ego(self) -> Any:
        """The ego's actor."""
        return self.actors[0]

    def start(self) -> tuple[dict[str, Any], Arrays]:
        """Spawn everything, and return the first scene.

        Raises:
            CarlaFault: the ego cannot be spawned.
            ConfigError: an unknown blueprint.
        """
        order = self.order
        if order.weather:
            self.world.set_weather(_weather(self.world.get_weather(), order.weather))
        self.actors.append(self._spawn_ego())
        self._collisions = CollisionLog(self._sensor("sensor.other.collision", carla.Transform(), {}))
        self._camera: CameraQueue | None = None
        if order.camera is not None:
            attributes = {
                "image_size_x": str(int(order.camera["width"])),
                "image_size_y": str(int(order.camera["height"])),
                "fov": str(order.camera["fov_deg"]),
            }
            at = carla.Transform(carla.Location(x=1.3, z=2.3))
            self._camera = CameraQueue(self._sensor("sensor.camera.rgb", at, attributes))
        traffic.add_vehicles(self, order.vehicles)
        traffic.add_walkers(self, order.walkers)
        self._hooks, unknown_types = hooks_of(order.scenarios)
        for hook in self._hooks:
            hook.begin(self)
        frame = self._tick()
        for _ in range(order.ticks - 1):
            frame = self._tick()
        fields, arrays = self._scene(frame, ())
        lights = {light: list(ids) for light, ids in self.readout.light_ids.items()}
        return fields | {"unknown": sorted(unknown_types), "refused_actors": self.refused, "lights": lights}, arrays

    def step(self, controls: np.ndarray[Any, Any]) -> tuple[dict[str, Any], Arrays]:
        """Run ticks with controls (ticks, 3), and return the scene.

        Args:
            controls: steer, left positive, and pedal, throttle positive, -1 to 1; and the acceleration that is wanted
                instead of the pedal's position, m/s^2.
        """
        hits: list[tuple[int, int]] = []
        frame = 0
        for steer, pedal, accel in controls.tolist():
            throttle, brake = max(pedal, 0.0), max(-pedal, 0.0)
            if self.order.track:
                throttle, brake = self._pedals.pedals(accel, self.readout.ego_speed_mps(), self._tick_s)
            # CARLA does not clamp; our bounds are checked by the sim. A positive steer turns right there
            self.ego.apply_control(carla.VehicleControl(throttle=throttle, steer=-steer, brake=brake))
            for hook in self._hooks:
                hook.tick(self)
            frame = self._tick()
            near = touches_ego(self.readout.users, CONTACT_M)
            hits += self._collisions.take(frame, CONTACT_S if near else 0.0)
        return self._scene(frame, hits)

    def _tick(self) -> int:
        """Advance by a tick; returns its frame.

        Raises:
            RuntimeError: the frame does not arrive.
        """
        frame = int(self.world.tick(self._timeout_s))
        end = time.monotonic() + self._timeout_s
        while (snapshot := self.world.get_snapshot()).frame < frame:
            if time.monotonic() > end:
                raise RuntimeError(f"a stale frame: the world shows {snapshot.frame} after tick {frame}")
            time.sleep(0.0005)
        self.readout.read(snapshot, self.ego.id)
        return frame

    def _scene(self, frame: int, hits: Sequence[tuple[int, int]]) -> tuple[dict[str, Any], Arrays]:
        arrays: Arrays = {
            "users": self.readout.users,
            "lights": self.readout.lights(),
            "hits": np.array(list(hits), HIT),
        }
        if self._camera is not None:
            arrays["image"] = self._camera.take(frame, self._timeout_s)
        return {"frame": frame}, arrays

    def server_answers(self) -> bool:
        """True if the server is there."""
        try:
            self.client.get_server_version()
        except RuntimeError:
            return False
        return True

    def blueprint(self, name: str) -> Any:
        """Blueprint by its name.

        Raises:
            ConfigError: the server has none of that name.
        """
        library = self.world.get_blueprint_library()
        names = [blueprint.id for blueprint in library]
        if name not in names:
            family = name.split(".")[0]
            raise unknown("blueprint", name, [one for one in names if one.startswith(family)] or names)
        return library.find(name)

    def on_road(self, x: float, y: float, yaw: float, above_m: float = 0.3) -> Any:
        """Transform of a place in our frame, at the height of the road."""
        place = carla.Location(x=x, y=-y, z=0.0)
        waypoint = self.map.get_waypoint(place, project_to_road=True)
        z = waypoint.transform.location.z if waypoint is not None else 0.0
        return carla.Transform(carla.Location(x=x, y=-y, z=z + above_m), carla.Rotation(yaw=-math.degrees(yaw)))

    def _spawn_ego(self) -> Any:
        order = self.order
        blueprint = self.blueprint(order.ego)
        blueprint.set_attribute("role_name", "hero")
        for height in HEIGHTS_M:
            ego = self.world.try_spawn_actor(blueprint, self.on_road(order.x, order.y, order.yaw, height))
            if ego is not None:
                return ego
        raise CarlaFault(
            f"the ego, {order.ego}, cannot be spawned at x {order.x:.1f} m, y {order.y:.1f} m: expected a free place;"
            " the server may still hold actors of another client"
        )

    def _sensor(self, name: str, at: Any, attributes: Mapping[str, str]) -> Any:
        blueprint = self.blueprint(name)
        for key, value in attributes.items():
            blueprint.set_attribute(key, value)
        sensor = self.world.spawn_actor(blueprint, at, attach_to=self.ego)
        self._sensors.append(sensor)
        return sensor

    def end(self) -> None:
        """Stop the sensors, then destroy all actors of this episode.

        Raises:
            ConfigError: a hook of the user's raised an error; all else is done.
        """
        failed: ConfigError | None = None
        for sensor in self._sensors:
            with suppress(RuntimeError):
                sensor.stop()
        for hook in self._hooks:
            try:
                hook.end(self)
            except ConfigError as error:
                failed = failed or error
            except RuntimeError:  # the server is gone, which the next call says as well
                pass
        self._hooks = []
        driven, self.driven = self.driven, []
        if driven:
            # the traffic manager's threads would look for a destroyed vehicle, and end the process
            port = self.manager.get_port()
            self.client.apply_batch_sync([carla.command.SetAutopilot(one, False, port) for one in driven], False)
        gone = [*self._sensors, *reversed(self.actors)]
        self._sensors, self.actors = [], []
        if gone:
            self.client.apply_batch_sync([carla.command.DestroyActor(actor.id) for actor in gone], False)
        if failed is not None:
            raise failed


def _weather(present: Any, given: Mapping[str, float]) -> Any:
    """Present weather with other values; the names are those of `routes.WEATHER`."""
    for name, value in given.items():
        setattr(present, name, float(value))
    return present
