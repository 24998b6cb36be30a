"""Mapping from a stick's or key's deflection to an action: dead zone, scale, bounds, and held axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, out_of_range, unknown
from robotrl.spec import Spec

Real = NDArray[np.float64]
Verdict = Literal["keep", "discard", "finish"]
"""A human's verdict on an episode: record it, drop it, or drop it and end the recording."""


class Binding(NamedTuple):
    """Effect of a key, button or stick."""

    axis: str
    """Name of an element of the action."""
    value: float
    """Deflection in [-1, 1]; for a stick, the factor of its own deflection."""


class DeviceState(NamedTuple):
    """State of a device at one moment."""

    deflection: Real
    """(A,) in [-1, 1], 0 at rest."""
    touched: bool
    """True if anything is deflected or pressed."""
    toggled: bool
    """True if the human pressed the button that takes over until it is pressed again."""
    verdict: Verdict | None = None
    """The human's verdict since the last poll; interventions do not read it."""


class Device(Protocol):
    """Interface of devices for teleoperation."""

    def poll(self, now_s: float) -> DeviceState:
        """Return the current state, without waiting; `now_s` in seconds of any monotonic clock."""
        ...

    def close(self) -> None:
        """Release the device."""
        ...


def past_dead_zone(deflection: float, dead_zone: float) -> float:
    """Apply a dead zone to a deflection in [-1, 1]: 0 inside, and rising from 0 at its edge to 1.

    Args:
        deflection: of the device; clipped to [-1, 1].
        dead_zone: 0 or more, below 1.
    """
    x = max(-1.0, min(1.0, deflection))
    return float(np.sign(x)) * max(0.0, abs(x) - dead_zone) / (1.0 - dead_zone)


@dataclass(frozen=True)
class VelocityMap:
    """Maps deflections to actions: 0 to the middle of the bounds, full deflection to `scale` of the way to a bound.

    Raises:
        ConfigError: a bound is infinite, `scale` is out of range, or a held axis is unknown.
    """

    action_spec: Spec
    scale: float = 1.0
    """Fraction of the bounds, above 0, at most 1: at half the policy's speed, a human is more precise."""
    held: tuple[str, ...] = ()
    """Axes that keep their last value, such as a gripper; initially the policy's, when a human takes over."""

    def __post_init__(self) -> None:
        spec = self.action_spec
        for name, low, high in zip(spec.names, spec.low, spec.high, strict=True):
            if not (np.isfinite(low) and np.isfinite(high)):
                raise ConfigError(f"action {name!r} has the bounds {low} to {high}: expected finite ones to steer it")
        if not 0 < self.scale <= 1:
            raise out_of_range("scale", self.scale, "above 0, at most 1")
        for name in self.held:
            if name not in spec.names:
                raise unknown("held axis", name, spec.names)

    def action(self, deflection: Real) -> Real:
        """Map (A,) deflections in [-1, 1] to an action in the sim's units; held axes use their full bounds."""
        low, high = np.asarray(self.action_spec.low), np.asarray(self.action_spec.high)
        whole = np.array([name in self.held for name in self.action_spec.names])
        share = np.where(whole, 1.0, self.scale) * np.clip(deflection, -1.0, 1.0)
        return (low + high) / 2 + share * (high - low) / 2

    def is_held(self) -> NDArray[np.bool_]:
        """Return (A,) True for held axes."""
        return np.array([name in self.held for name in self.action_spec.names])


def check_bindings(what: str, bindings: Mapping[str, Binding] | Mapping[int, Binding], action_spec: Spec) -> None:
    """Check that bindings use axes of the action, and values in [-1, 1] other than 0.

    Raises:
        ConfigError: a binding is invalid; names it, its value and the expectation.
    """
    for name, binding in bindings.items():
        if binding.axis not in action_spec.names:
            raise unknown(f"{what} {name!r}: axis", binding.axis, action_spec.names)
        if not -1 <= binding.value <= 1 or binding.value == 0:
            raise out_of_range(f"{what} {name!r}: value", binding.value, "from -1 to 1, not 0")


def grippers(action_spec: Spec) -> tuple[str, ...]:
    """Return the names of axes that open and close a gripper."""
    return tuple(name for name in action_spec.names if "grip" in name or "finger" in name)
