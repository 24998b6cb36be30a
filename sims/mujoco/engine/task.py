"""What a task on MuJoCo is: the model, and what is read from it and written to it, for all envs at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.engine.physics import Derived, Physics
from robotrl.sims.mujoco.render.views import AnyView
from robotrl.spec import Spec

Real = NDArray[np.floating[Any]]
"""float32 in training; float64 where a sim was asked for it."""
Ids = NDArray[np.int64]


class Param(NamedTuple):
    """A physical parameter that may differ between envs, as a multiplier of the model's own values."""

    fields: tuple[str, ...]
    """MjModel fields that it multiplies."""
    rows: tuple[int, ...]
    """Rows of those fields (geom ids, body ids, actuator ids)."""
    low: float
    """Smallest value accepted."""
    high: float
    """Largest value accepted."""
    columns: tuple[int, ...] | None = None
    """Columns multiplied, all when None."""


class Outcome(NamedTuple):
    """What a task says of the step just made."""

    reward: NDArray[np.float64]
    """(N,)."""
    success: NDArray[np.bool_]
    """(N,)."""
    failure: NDArray[np.bool_]
    """(N,): the episode ends without success."""


class Task(Protocol):
    """One task on MuJoCo: the model and what is read from and written to it, for all envs at once."""

    name: str
    control_dt_s: float
    substeps: int
    limit_steps: int
    reads_derived_fields: Derived
    """Which fields that MuJoCo derives (site_xpos, sensordata) `observe` and `outcome` read: "none", those "fresh" at
    each new state, at a cost, or, through `Physics.field`, those that the step left ("stepped"). The coordinates qpos,
    qvel, ctrl and mocap poses are always fresh."""
    observation_spec: dict[str, Spec]
    action_spec: Spec
    """Actions and rewards have its dtype."""
    survival: bool
    """Whether success means to reach the time limit; otherwise `Outcome.success` says it."""

    @property
    def views(self) -> Mapping[str, AnyView]:
        """Cameras by name."""
        ...

    def xml(self) -> str:
        """The MJCF."""
        ...

    def bind(self, physics: Physics) -> None:
        """Take views of the simulations' arrays; called once."""
        ...

    def memory(self) -> Mapping[str, NDArray[Any]]:
        """Arrays (N, ...) of the task's own that outlive a step and are not in the physics state: they are saved and
        restored (in place) with the exact state. `start` must set their rows."""
        ...

    def params(self) -> dict[str, Param]:
        """Parameters that may be randomised."""
        ...

    def plan(self, state_ids: Ids) -> NDArray[np.float64]:
        """The start states (n, W), in a form of the task's own; each a function of its id alone."""
        ...

    def start(self, env_ids: Ids, plans: NDArray[np.float64]) -> None:
        """Write planned start states into the envs `env_ids`."""
        ...

    def command(self, actions: Real) -> None:
        """Write controls for actions (N, A)."""
        ...

    def observe(self, out: Mapping[str, Real], env_ids: Ids | slice) -> None:
        """Write the observations of `env_ids` into the same rows of `out`."""
        ...

    def outcome(self, actions: Real) -> Outcome:
        """Reward and end of the step just made."""
        ...
