"""Commands of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from robotrl.sims.carla.stub import requests, wire
from robotrl.sims.carla.stub.simulation.world import Refusal, World

(
    SPAWN,
    DESTROY,
    VEHICLE_CONTROL,
    ACKERMANN_CONTROL,
    WALKER_CONTROL,
    PHYSICS_CONTROL,
    TRANSFORM,
    WALKER_STATE,
    TARGET_VELOCITY,
    TARGET_ANGULAR_VELOCITY,
    IMPULSE,
    FORCE,
    ANGULAR_IMPULSE,
    TORQUE,
    SIMULATE_PHYSICS,
    GRAVITY,
    AUTOPILOT,
    DEBUG_TELEMETRY,
    LIGHT_STATE,
) = range(19)
"""Numbers of the commands."""


def run(world: World, commands: Sequence[Any]) -> list[Any]:
    """Run commands one after the other, and answer each with the actor's id or an error."""
    return [_run(world, command, 0) for command in commands]


def _run(world: World, command: Sequence[Any], future: int) -> list[Any]:
    """Run one command; actor 0 in it is `future`, the actor that the command around it has made."""
    number, arguments = command[0] if len(command) == 1 else command
    try:
        if number == SPAWN:
            return wire.value(_spawn(world, *arguments))
        actor = arguments[0] or future
        if actor not in world.actors.row:
            raise Refusal("unable to find actor")
        _COMMANDS.get(number, _ignore)(world, actor, *arguments[1:])
    except Refusal as refused:
        return wire.failure(str(refused))
    return wire.value(actor)


def _spawn(world: World, description: Any, transform: Any, parent: Any, *rest: Any) -> int:
    attached = int(parent[1]) if parent[0] else 0
    actor = requests.spawn(world, description, transform, attached)
    for command in rest[-1]:
        _run(world, command, actor.id)
    return actor.id


def _ignore(world: World, actor: int, *_: object) -> None:
    """Commands that change nothing here."""


def _destroy(world: World, actor: int) -> None:
    if not world.destroy(actor):
        raise Refusal("unable to destroy actor")


_COMMANDS: dict[int, Callable[..., None]] = {
    DESTROY: _destroy,
    VEHICLE_CONTROL: requests.control_vehicle,
    WALKER_CONTROL: requests.control_walker,
    TRANSFORM: requests.transform,
    WALKER_STATE: requests.walker_state,
    TARGET_VELOCITY: requests.velocity,
    IMPULSE: requests.impulse,
    SIMULATE_PHYSICS: requests.simulate_physics,
    LIGHT_STATE: requests.vehicle_lights,
}
