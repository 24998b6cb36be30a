"""Motion of a robot to its start pose, as its driver describes it, for a servo that moves the robot there."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

StartedBy = Literal["servo", "driver", "simulation"]
"""Mover of a robot to the start of an episode: the servo, by commands that pass its safety chain; the driver, by a
motion of its own that the chain does not see; a simulation, which moves nothing real."""


class StartMotion(NamedTuple):
    """Start pose of a robot of position targets, in the order of its action elements."""

    pose: tuple[float, ...]
    """(A,) action under which it stands at its start."""
    speed: tuple[float, ...]
    """(A,) largest speed of the commands, in units of the action each second; above 0."""
    tolerance: tuple[float, ...]
    """(A,) distance from the pose within which the measured position must lie; above 0."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {name: list(map(float, values)) for name, values in self._asdict().items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StartMotion:
        """Inverse of `to_json`.

        Raises:
            ValueError, TypeError, KeyError: it is none.
        """
        return cls(*(tuple(float(x) for x in data[name]) for name in cls._fields))


@runtime_checkable
class StartsByCommands(Protocol):
    """A robot that the servo moves to its start: its `reset` moves nothing, and returns at once."""

    start_motion: StartMotion


@runtime_checkable
class IsSimulated(Protocol):
    """A robot in a simulation alone: it stands nowhere before its first reset, and a reset moves nothing real."""

    simulated: Literal[True]


def started_by(robot: object) -> StartedBy:
    """Mover of a robot to its starts."""
    if isinstance(robot, StartsByCommands):
        return "servo"
    return "simulation" if isinstance(robot, IsSimulated) else "driver"
