"""Actions below the policy: what they set on a robot, and the servo's clock, which repeats them at a higher rate."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from robotrl.spec.arrays import Spec

if TYPE_CHECKING:
    from torch import Tensor

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


class ServoTick(NamedTuple):
    """State of all envs at a servo tick, before its action is sent."""

    obs: Tensor
    """(N, S) float32, measured at this tick; see `HasServoClock.servo_spec`."""
    action: Tensor
    """(N, A) the policy's action of this control step, in the units of `action_spec`."""
    tick: int
    """Number of the tick in its control step, from 0."""
    started: Tensor
    """(N,) bool: the tick is the first one of an episode."""


class Reflex(Protocol):
    """Decides at each servo tick whether the policy's action is sent or another one."""

    def act(self, tick: ServoTick) -> Tensor:
        """Actions (N, A) to send at this tick; the policy's own where there is nothing to fear."""
        ...

    def felt(self, obs: Tensor, hazard: Tensor) -> None:
        """Take what the last actions led to.

        Args:
            obs: (N, S) measured after the tick, before any episode is restarted.
            hazard: (N,) the hazard, a violation where it is above the sim's `hazard_limit`.
        """
        ...


@runtime_checkable
class HasReflex(Protocol):
    """The policy has a reflex, which acts in sims with `HasServoClock`."""

    def reflex(self) -> Reflex:
        """A reflex for one rollout."""
        ...


@runtime_checkable
class HasServoClock(Protocol):
    """The sim has two clocks: a control step holds the policy's action, and a servo sends it several times.

    A reflex acts at the servo's rate. Without one, the policy's action is sent at each tick.
    """

    servo_ticks: int
    """Servo ticks in a control step, 2 or more; a tick takes `control_dt_s / servo_ticks`."""
    servo_spec: Spec
    """(S,) what is measured at each tick; columns of the observation "state", by their names."""
    hazard: str
    """Name and unit of the hazard ("contact force, N")."""
    hazard_limit: float
    """Hazard above which a tick is a violation."""
    retract: tuple[float, ...]
    """Action (A) that leads away from the hazard, stated by the sim's author."""

    def set_reflex(self, reflex: Reflex | None) -> None:
        """Have a reflex act at each tick from now on; None removes it. It is no part of the sim's state."""
        ...


@contextmanager
def reflex_of(policy: object, sim: object) -> Generator[None]:
    """Have a policy's reflex act in a sim meanwhile; does nothing if either has none."""
    if not (isinstance(policy, HasReflex) and isinstance(sim, HasServoClock)):
        yield
        return
    sim.set_reflex(policy.reflex())
    try:
        yield
    finally:
        sim.set_reflex(None)
