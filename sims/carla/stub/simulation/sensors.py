"""Frames of sensors."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

from robotrl.sims.carla.stub import wire
from robotrl.sims.carla.stub.simulation import camera
from robotrl.sims.carla.stub.simulation.actors import StubActor
from robotrl.sims.carla.stub.simulation.blueprints import Kind
from robotrl.sims.carla.stub.simulation.world import World

GRAVITY_MPSS = 9.81
_CAMERAS = {
    "sensor.camera.rgb": wire.RGB,
    "sensor.camera.semantic_segmentation": wire.SEMANTIC,
    "sensor.camera.instance_segmentation": wire.INSTANCE,
    "sensor.camera.depth": wire.DEPTH,
}
_LABELED = ("sensor.camera.semantic_segmentation", "sensor.camera.instance_segmentation")


class SensorFrame(NamedTuple):
    """A message of a sensor's stream, and the blueprint of the sensor; `world` for snapshots."""

    stream: int
    blueprint: str
    message: bytes


class Sensors:
    """Sensors of a world, and when each has measured last."""

    def __init__(self) -> None:
        self._due_s: dict[int, float] = {}

    def frames(self, world: World, wanted: Container[int], host: str, port: int) -> Iterator[SensorFrame]:
        """Frames of the sensors that measure now and that somebody listens to.

        Args:
            world: after a step.
            wanted: streams with listeners.
            host: of the streams.
            port: of the streams.
        """
        for row in world.actors.rows(Kind.SENSOR):
            sensor = world.actors.list[row]
            if sensor.stream not in wanted or not self._is_due(world, sensor):
                continue
            pose = world.actors.pose(sensor.id)
            for kind, payload in _measure(world, sensor, host, port):
                message = wire.frame(kind, world.frame, world.seconds, pose, payload)
                yield SensorFrame(sensor.stream, sensor.blueprint.id, message)

    def _is_due(self, world: World, sensor: StubActor) -> bool:
        period = _number(sensor, "sensor_tick", 0.0)
        if world.seconds + 1e-9 < self._due_s.get(sensor.stream, 0.0):
            return False
        self._due_s[sensor.stream] = world.seconds + period
        return True


def packed_actor(world: World, actor: StubActor, host: str, port: int) -> list[Any]:
    """An actor in the form of the protocol."""
    blueprint = actor.blueprint
    token = wire.token(actor.stream, port, host) if actor.stream else b""
    description = [actor.uid, blueprint.id, actor.attributes_packed]
    tags = bytes([blueprint.tag]) if blueprint.tag else b""
    return [actor.id, actor.parent, description, box_of(actor), tags, token]


def box_of(actor: StubActor) -> list[Any]:
    """Bounding box of an actor in its own frame: center, half size, rotation; the area of lights and signs."""
    if actor.areas:
        return actor.areas[0]
    return [[0.0, 0.0, actor.blueprint.center_z], list(actor.blueprint.extent), [0.0, 0.0, 0.0]]


def _measure(world: World, sensor: StubActor, host: str, port: int) -> Iterator[tuple[int, bytes]]:
    """Kind and payload of each frame."""
    name = sensor.blueprint.id
    if name in _CAMERAS and world.rendering:
        width, height = int(_number(sensor, "image_size_x", 800)), int(_number(sensor, "image_size_y", 600))
        lens = camera.Lens(width, height, _number(sensor, "fov", 90.0))
        picture = camera.draw(world.actors, world.actors.pose(sensor.id), lens, sensor.parent, name in _LABELED)
        yield _CAMERAS[name], wire.image(*lens, picture.tobytes())
    elif name == "sensor.other.collision":
        for collision in world.collisions:
            other = world.actors.of(collision.other)
            parent = world.actors.of(sensor.parent)
            if collision.actor == sensor.parent and other is not None and parent is not None:
                both = [packed_actor(world, actor, host, port) for actor in (parent, other)]
                yield wire.COLLISION, wire.packed([*both, list(collision.impulse)])
    elif name == "sensor.other.imu" and sensor.parent in world.actors.row:
        yield wire.IMU, wire.packed(_inertia(world, sensor))


def _inertia(world: World, sensor: StubActor) -> list[Any]:
    """Acceleration (m/s^2) and rates (rad/s) in the frame of the parent, and the angle from north (rad)."""
    record = world.actors.record[world.actors.row[sensor.parent]]
    yaw = math.radians(float(record["rotation"][1]))
    x, y, z = (float(part) for part in record["acceleration"])
    accelerometer = [math.cos(yaw) * x + math.sin(yaw) * y, math.cos(yaw) * y - math.sin(yaw) * x, z + GRAVITY_MPSS]
    gyroscope = [math.radians(float(part)) for part in record["angular_velocity"]]
    return [accelerometer, gyroscope, (yaw + math.pi / 2) % (2 * math.pi)]


def _number(sensor: StubActor, name: str, default: float) -> float:
    try:
        return float(sensor.attributes.get(name, default))
    except ValueError:
        return default
