"""Meaning of a robot's actions beyond their spec: kind, default pose and gains, for the manifest of a bundle."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, runtime_checkable

ActuationKind = Literal["delta", "position", "velocity", "torque"]


class Actuation(NamedTuple):
    """Kind, default pose and gains of an action's joints; each tuple has one entry for each element of the action."""

    kind: ActuationKind
    """Quantity that an action sets."""
    default_pose: tuple[float, ...] | None = None
    """Joint positions of the default pose, rad or m; None if unknown."""
    stiffness: tuple[float, ...] | None = None
    """Proportional gains, N m/rad or N/m; None if unknown."""
    damping: tuple[float, ...] | None = None
    """Derivative gains, N m s/rad or N s/m; None if unknown."""


@runtime_checkable
class HasActuation(Protocol):
    """The sim states the meaning of its actions; an exported bundle carries it."""

    @property
    def actuation(self) -> Actuation | None:
        """Meaning of the actions; None if the env describes none."""
        ...
