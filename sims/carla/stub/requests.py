"""Requests of clients about actors, in the form of the protocol; calls and commands of batches share them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robotrl.sims.carla.stub.simulation.actors import StubActor
from robotrl.sims.carla.stub.simulation.blueprints import Kind
from robotrl.sims.carla.stub.simulation.town import Pose
from robotrl.sims.carla.stub.simulation.world import Refusal, World

Numbers = Sequence[float]


def pose_of(transform: Sequence[Numbers]) -> Pose:
    """Pose of a transform: location (m), and pitch, yaw and roll (degrees)."""
    (x, y, z), (pitch, yaw, roll) = transform
    return (float(x), float(y), float(z), float(pitch), float(yaw), float(roll))


def spawn(world: World, description: Any, transform: Any, parent: int = 0) -> StubActor:
    """Make an actor.

    Raises:
        Refusal: see `World.spawn`.
    """
    uid, name, attributes = description
    world.admit(name)
    return world.spawn(name, attributes, pose_of(transform), parent, uid)


def control_vehicle(world: World, actor: int, control: Sequence[Any]) -> None:
    """Set throttle, steer, brake, hand brake, reverse, manual gear shift and gear; numbers are clipped."""
    row = _row(world, actor, Kind.VEHICLE)
    record = world.actors.record
    throttle, steer, brake, hand_brake, reverse, manual, gear = control
    record["throttle"][row] = min(max(throttle, 0.0), 1.0)
    record["steer"][row] = min(max(steer, -1.0), 1.0)
    record["brake"][row] = min(max(brake, 0.0), 1.0)
    record["hand_brake"][row], record["manual_gear_shift"][row] = hand_brake, manual
    record["reverse"][row] = reverse
    record["gear"][row] = -1 if reverse else max(gear, 1)


def control_walker(world: World, actor: int, control: Sequence[Any]) -> None:
    """Set direction, speed (m/s) and jump."""
    row = _row(world, actor, Kind.WALKER)
    record = world.actors.record
    record["walk_direction"][row], record["walk_speed"][row], record["jump"][row] = control


def transform(world: World, actor: int, to: Sequence[Numbers]) -> None:
    """Put an actor elsewhere."""
    world.place(actor, pose_of(to))


def walker_state(world: World, actor: int, to: Sequence[Numbers], speed: float) -> None:
    """Put a walker elsewhere, walking at a speed (m/s)."""
    transform(world, actor, to)
    row = _row(world, actor, Kind.WALKER)
    world.actors.body["speed"][row] = speed


def location(world: World, actor: int, to: Numbers) -> None:
    """Put an actor elsewhere without turning it."""
    x, y, z = (float(part) for part in to)
    world.place(actor, (x, y, z, *world.actors.pose(actor)[3:]))


def velocity(world: World, actor: int, to: Numbers) -> None:
    """Set a velocity, m/s."""
    world.set_velocity(actor, to)


def impulse(world: World, actor: int, by: Numbers) -> None:
    """Add an impulse, N s."""
    body, row = world.actors.body, world.actors.row[actor]
    mass = float(body["mass"][row])
    world.set_velocity(actor, [float(v) + part / mass for v, part in zip(body["velocity"][row], by, strict=True)])


def simulate_physics(world: World, actor: int, on: bool) -> None:
    """Let an actor move by itself, or not."""
    row = world.actors.row[actor]
    body = world.actors.body
    body["simulated"][row] = on and body["kind"][row] in (Kind.VEHICLE, Kind.WALKER)


def vehicle_lights(world: World, actor: int, state: int | Sequence[int]) -> None:
    """Set the lights of a vehicle, as flags."""
    found = world.actors.of(actor)
    assert found is not None
    found.light_state = state if isinstance(state, int) else state[0]


def _row(world: World, actor: int, kind: Kind) -> int:
    row = world.actors.row[actor]
    if world.actors.body["kind"][row] != kind:
        raise Refusal(f"actor {actor} is no {kind.name.lower()}")
    return row
