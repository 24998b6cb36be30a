"""Reads a world's snapshot into the arrays of `robotrl.sims.carla.scene`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import carla
import numpy as np

from robotrl.sims.carla.scene import CAR, CYCLIST, LIGHT, OBSTACLE, PEDESTRIAN, ROAD_USER
from robotrl.sims.driving.reported.phases import GREEN, OFF, RED, YELLOW

STATES = {
    carla.TrafficLightState.Green: GREEN,
    carla.TrafficLightState.Yellow: YELLOW,
    carla.TrafficLightState.Red: RED,
}


class _Body(NamedTuple):
    """Unchanging part of an actor."""

    kind: int
    length: float
    width: float
    dx: float
    """Center of the box in the actor's frame, m ahead."""
    dy: float
    """m to the right, as CARLA counts."""


def kind_of(type_id: str, wheels: int = 4) -> int:
    """Kind of road user of a blueprint's name; 0 for what takes no place on the road."""
    if type_id.startswith("vehicle."):
        return CYCLIST if wheels == 2 else CAR
    if type_id.startswith("walker."):
        return PEDESTRIAN
    return OBSTACLE if type_id.startswith("static.prop") else 0


class Readout:
    """Latest snapshot of a world."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._bodies: dict[int, _Body | None] = {}
        self._lights = sorted(
            (actor for actor in world.get_actors() if str(actor.type_id) == "traffic.traffic_light"),
            key=lambda actor: actor.id,
        )
        self.light_ids = {str(k): (light.get_opendrive_id(),) for k, light in enumerate(self._lights)}
        """OpenDRIVE ids of the lights, by their index."""
        self.users = np.zeros(0, ROAD_USER)
        """Road users of the latest snapshot, the ego first."""

    def read(self, snapshot: Any, ego_id: int) -> None:
        """Take over a snapshot.

        Raises:
            RuntimeError: the ego is not among its actors.
        """
        rows: list[tuple[float, ...]] = []
        unknown = [one.id for one in snapshot if one.id not in self._bodies]
        if unknown:
            self._learn(unknown)
        bodies = self._bodies
        for one in snapshot:
            body = bodies[one.id]
            if body is None:
                continue
            transform, velocity, acceleration = one.get_transform(), one.get_velocity(), one.get_acceleration()
            place = transform.location
            yaw = math.radians(transform.rotation.yaw)
            cos, sin = math.cos(yaw), math.sin(yaw)
            x, y = place.x + body.dx * cos - body.dy * sin, place.y + body.dx * sin + body.dy * cos
            turning = -math.radians(one.get_angular_velocity().z)
            row = (one.id, body.kind, x, -y, -yaw, velocity.x, -velocity.y, acceleration.x, -acceleration.y, turning)
            rows.append((*row, body.length, body.width))
        # the ego first, the others by their ids: a server may list its actors in any order
        rows.sort(key=lambda row: (row[0] != ego_id, row[0]))
        if not rows or rows[0][0] != ego_id:
            raise RuntimeError("the ego is no longer in the world: another client may have removed it or loaded a map")
        self.users = np.array(rows, ROAD_USER)

    def _learn(self, ids: list[int]) -> None:
        found = {actor.id: actor for actor in self._world.get_actors(ids)}
        for number in ids:
            actor = found.get(number)
            self._bodies[number] = None
            if actor is None:
                continue
            wheels = int(actor.attributes.get("number_of_wheels", "4"))
            kind = kind_of(str(actor.type_id), wheels)
            if kind:
                box = actor.bounding_box
                size = 2.0 * box.extent.x, 2.0 * box.extent.y
                self._bodies[number] = _Body(kind, *size, box.location.x, box.location.y)

    def lights(self) -> np.ndarray[Any, Any]:
        """State of each light, in the order of `light_ids`."""
        out = np.zeros(len(self._lights), LIGHT)
        for row, light in zip(out, self._lights, strict=True):
            row["state"] = STATES.get(light.get_state(), OFF)
            row["elapsed_s"] = light.get_elapsed_time()
            row["green_s"], row["yellow_s"] = light.get_green_time(), light.get_yellow_time()
            row["red_s"] = light.get_red_time()
        return out

    def ego_speed_mps(self) -> float:
        """Speed of the ego along its heading."""
        ego = self.users[0]
        return float(ego["vx"] * math.cos(ego["yaw"]) + ego["vy"] * math.sin(ego["yaw"]))
