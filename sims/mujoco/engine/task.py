"""Interface of a MuJoCo task: model, start states, actions, observations, reward and end, for all envs at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import mujoco
import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.engine.arrays import Array, ArrayNamespace
from robotrl.sims.mujoco.engine.physics import Derived, Physics
from robotrl.sims.mujoco.render.views import AnyView
from robotrl.spec import Spec

Real = NDArray[np.floating[Any]]
"""Array of float32 (default) or float64 (option of a sim)."""
Ids = NDArray[np.int64]


class Param(NamedTuple):
    """Physical parameter that may differ between envs, as a multiplier of the model's own values."""

    fields: tuple[str, ...]
    """MjModel fields that it multiplies."""
    rows: tuple[int, ...]
    """Rows of these fields (geom ids, body ids, actuator ids)."""
    low: float
    """Smallest multiplier accepted."""
    high: float
    """Largest multiplier accepted."""
    columns: tuple[int, ...] | None = None
    """Columns multiplied; None for all."""


class Outcome(NamedTuple):
    """Reward, success and failure of the last step."""

    reward: Array
    """(N,) rewards."""
    success: Array
    """(N,) success flags."""
    failure: Array
    """(N,) true where the episode ends without success."""


class Task(Protocol):
    """A MuJoCo task: model, start states, actions, observations, reward and end, for all envs at once."""

    name: str
    control_dt_s: float
    substeps: int
    limit_steps: int
    reads_derived_fields: Derived
    """Derived fields of MuJoCo (site_xpos, sensordata) that `observe` and `outcome` read: "none", "fresh" (recomputed
    at each new state, at a cost), or "stepped" (as the step left them, read through `Physics.field`). qpos, qvel, ctrl
    and mocap poses are always current."""
    observation_spec: dict[str, Spec]
    action_spec: Spec
    """Action spec; actions and rewards have its dtype."""
    survival: bool
    """True if success means reaching the time limit; otherwise `Outcome.success` decides."""

    @property
    def views(self) -> Mapping[str, AnyView]:
        """Cameras by name."""
        ...

    def xml(self) -> str:
        """MJCF of the model."""
        ...

    def bind(self, physics: Physics) -> None:
        """Store views of the simulations' arrays; called once."""
        ...

    def memory(self) -> Mapping[str, NDArray[Any]]:
        """The task's own arrays (N, ...) that persist across steps and are not in the physics state.

        They are saved and restored (in place) with the exact state. `start` must set their rows.
        """
        ...

    def params(self) -> dict[str, Param]:
        """Parameters that may be randomized, by name."""
        ...

    def plan(self, state_ids: Ids) -> NDArray[np.float64]:
        """Start states (n, W) in the task's own encoding; each depends only on its start id."""
        ...

    def start(self, env_ids: Ids, plans: NDArray[np.float64]) -> None:
        """Write the start states `plans` into the envs `env_ids`."""
        ...

    def command(self, actions: Real) -> None:
        """Set the controls for actions (N, A)."""
        ...

    def observe(self, out: Mapping[str, Real], env_ids: Ids | slice) -> None:
        """Write the observations of `env_ids` into the same rows of `out`."""
        ...

    def outcome(self, actions: Real) -> Outcome:
        """Reward, success and failure of the last step."""
        ...


class TaskPhysics(Protocol):
    """Batched physics as a task sees it that runs on either engine: live arrays of all envs, and their functions."""

    model: mujoco.MjModel
    num_envs: int

    @property
    def xp(self) -> ArrayNamespace:
        """Functions of the arrays."""
        ...

    @property
    def ctrl(self) -> Array:
        """(N, U) controls of the next step."""
        ...

    def bind(self, name: str) -> Array:
        """Live array (N, ...) of a field of the state, such as qpos."""
        ...

    def field(self, name: str) -> Array:
        """Live array (N, ...) of a derived field, in the task's mode of them; see `Derived`."""
        ...

    def coordinates(self) -> tuple[Array, ...]:
        """Live arrays (N, ...) that side by side are qpos followed by qvel."""
        ...

    def put(self, env_ids: Array, coordinates: NDArray[np.float64]) -> None:
        """Put envs into the state of a new simulation, but with these coordinates (n, nq + nv)."""
        ...

    def array(self, numbers: NDArray[Any]) -> Array:
        """Numbers of the host as an array of the engine, reals in its precision; nothing waits for the copy."""
        ...

    def zeros(self, shape: tuple[int, ...] = (), dtype: Any = None) -> Array:
        """Zeros (N, *shape), reals in the engine's precision or of another type of `xp`."""
        ...

    def solve(self, matrices: Array, right: Array) -> Array:
        """Solutions (N, k, 1) of regular linear systems (N, k, k) with right-hand sides (N, k, 1)."""
        ...

    def parameter(self, name: str) -> Array:
        """Live array (N, ...) of a field of the model, of which each env has its own from now on."""
        ...

    def uniform(self, seed: int, index: Array, streams: int) -> Array:
        """Numbers (n, streams) of `counter_rng.uniform`, the same and float64 on either engine."""
        ...

    def some(self, flags: Array) -> Array | None:
        """Envs that are worth computing for what only the envs with flags (N,) need, as an index of arrays.

        The native engine knows which these are, and gives None if there are none. Where the host would wait for the
        answer, it is all envs: use the flags as well.
        """
        ...


class DeviceTask(Task, Protocol):
    """A task that runs on either engine: on numpy arrays, and on torch tensors of a device.

    Start states are planned on the host (`plan`), since each is a function of its number; all else that the task reads
    and writes are arrays of its physics.
    """

    @property
    def ends_early(self) -> bool:
        """False if episodes end at the time limit alone: then nobody has to ask the device which of them ended."""
        ...

    def bind(self, physics: TaskPhysics) -> None:
        """Store views of the simulations' arrays; called once."""
        ...

    def start(self, env_ids: Array, plans: NDArray[np.float64]) -> None:
        """Write the start states `plans` into the envs `env_ids`."""
        ...

    def command(self, actions: Array) -> None:
        """Set the controls for actions (N, A)."""
        ...

    def observe(self, out: Mapping[str, Array], env_ids: Array) -> None:
        """Write the observations of `env_ids`, or of a slice, into the same rows of `out`."""
        ...

    def outcome(self, actions: Array) -> Outcome:
        """Reward, success and failure of the last step."""
        ...
