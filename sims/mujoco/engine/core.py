"""Numpy core of the MuJoCo sims: runs a task's episodes, start states and physical parameters in all envs at once.

A `Task` works on arrays of all envs. `MujocoCore` counts steps, ends and restarts episodes, draws start ids, and saves
and restores the exact state. It does not import torch, so that the simulated robot can use it as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError
from robotrl.sims import starts
from robotrl.sims.actions import ActionBounds
from robotrl.sims.exact_state import check_state
from robotrl.sims.mujoco.engine.parameters import Parameters, multiplied
from robotrl.sims.mujoco.engine.physics import Physics, SimNumericsError
from robotrl.sims.mujoco.engine.planned_starts import PlannedStarts
from robotrl.sims.mujoco.engine.reset_options import reset_options
from robotrl.sims.mujoco.engine.task import Ids, Param, Real, Task
from robotrl.sims.mujoco.render.images import Images
from robotrl.spec import Split


class MujocoStep(NamedTuple):
    """Result of one control step of all envs; the next step overwrites the arrays, except the final ones."""

    obs: dict[str, NDArray[Any]]
    reward: Real
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_obs: dict[str, NDArray[Any]]
    final_ids: Ids
    success: NDArray[np.bool_]
    state_id: Ids


class MujocoCore:
    """Runs episodes of a task in N envs, with same-step reset.

    Args:
        task: the task.
        num_envs: number of envs N.
        seed: seed of the random training start ids.
        threads: physics threads, 0 for all cores.
        randomization: parameter name to (low, high): each episode draws a uniform multiplier from its start id, so that
            the same id gives the same physics.
        dump_dir: directory for dumps of the numerics guard.

    Raises:
        ConfigError: unknown parameter, or a range outside what the parameter accepts.
    """

    def __init__(
        self,
        task: Task,
        num_envs: int,
        seed: int,
        threads: int = 0,
        randomization: Mapping[str, tuple[float, float]] | None = None,
        dump_dir: Path | None = None,
    ) -> None:
        self.task = task
        self.num_envs = num_envs
        self.physics = Physics(task.xml(), num_envs, threads, dump_dir, task.reads_derived_fields)
        task.bind(self.physics)
        self._parameters = Parameters(task.params(), num_envs, randomization, self._write_param)
        self._starts = PlannedStarts(task.plan, seed)
        self._all: Ids = np.arange(num_envs)
        self.steps: NDArray[np.int64] = np.zeros(num_envs, np.int64)
        self.state_ids: Ids = np.full(num_envs, -1)
        self.obs: dict[str, NDArray[Any]] = {
            key: np.zeros((num_envs, *spec.shape), spec.dtype) for key, spec in task.observation_spec.items()
        }
        self._bounds = ActionBounds(task.action_spec, num_envs)
        self.observation_spec = dict(task.observation_spec)
        """Observation specs of the task, and of the images added by `see`."""
        self._images: Images | None = None
        self.dtype = np.dtype(task.action_spec.dtype)
        self.success_hold_steps = 0
        """See `robotrl.spec.HasSuccessHold`."""
        self._held: NDArray[np.int64] = np.zeros(num_envs, np.int64)
        # buffers that `step` returns and overwrites
        self.reward: Real = np.zeros(num_envs, self.dtype)
        self.terminated, self.truncated, self.success = (np.zeros(num_envs, bool) for _ in range(3))
        self.state_id: Ids = np.full(num_envs, -1)

    def see(self, images: Images) -> None:
        """Add images to the observation, from the next reset on."""
        self._images = images
        self.observation_spec |= images.specs
        self.obs |= {key: np.zeros((self.num_envs, *spec.shape), spec.dtype) for key, spec in images.specs.items()}

    # episodes

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> dict[str, Real]:
        """Start new episodes in all envs.

        Args:
            seed: restarts the random training starts and clears the queue; None continues both.
            options: "state_ids": (N,) start ids; "stagger": True starts the step counters spread over the time limit,
                so that the envs do not all time out together; "qpos" (N, nq) and "qvel" (N, nv), together or alone,
                overwrite the physics state once the episodes have started.

        Raises:
            ConfigError: unknown option, or an array of the wrong shape.
            NumericsError: a number in "qpos" or "qvel" is not finite; nothing has been reset.
        """
        model = self.physics.model
        given = reset_options(options, self.num_envs, model.nq, model.nv)
        self._starts.queue.restart(seed)
        if given.state_ids is not None:
            self._starts.queue.put(given.state_ids)
        self.physics.batch.reset(stage=0)
        self._start(self._all)
        if given.stagger:
            self.steps[:] = self._all * self.task.limit_steps // self.num_envs
        if given.coordinates:
            for name, values in given.coordinates.items():
                self.physics.batch.bind(name)[:] = values
            self.physics.start()
            self._observe(slice(None))
        return self.obs

    def restart(self, env_ids: Ids) -> dict[str, Real]:
        """Start new episodes in the envs `env_ids`, abandoning the running ones."""
        self._start(env_ids)
        return self.obs

    def step(self, actions: Real) -> MujocoStep:
        """Advance all envs by one control step; ended episodes restart before this returns.

        Args:
            actions: (N, A), clipped to the action bounds, with one warning.

        Raises:
            ConfigError: wrong shape.
            NumericsError: an action or the resulting physics state is not finite; env, step and field are named.
        """
        actions = self._bounds.checked(actions, self.steps)
        task = self.task
        started = self.steps == 0
        self.steps += 1
        try:
            self._advance(actions, started)
        except SimNumericsError as error:
            # after the error, failed envs keep their previous state and step count; the others have advanced
            self.steps[error.env_ids] -= 1
            self._observe(slice(None))
            raise
        self._observe(slice(None))
        outcome = task.outcome(actions)
        self.reward[:] = outcome.reward
        timed_out = self.steps >= task.limit_steps
        if task.survival:
            np.copyto(self.terminated, outcome.failure)
        else:
            np.logical_or(self._ended_by(outcome.success), outcome.failure, out=self.terminated)
        np.greater(timed_out, self.terminated, out=self.truncated)
        np.copyto(self.success, self.truncated if task.survival else outcome.success)
        if self.success_hold_steps:
            self.success |= self._held > 0
        np.copyto(self.state_id, self.state_ids)
        final_ids = (timed_out | self.terminated).nonzero()[0]
        # an empty slice is faster than indexing with an empty array
        chosen = final_ids if len(final_ids) else slice(0)
        final_obs = {key: value[chosen] for key, value in self.obs.items()}
        if len(final_ids):
            self._start(final_ids)
        return MujocoStep(
            self.obs,
            self.reward,
            self.terminated,
            self.truncated,
            final_obs,
            final_ids,
            self.success,
            self.state_id,
        )

    def _ended_by(self, success: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Envs (N,) whose episodes end by a success, given those at one now."""
        if self.success_hold_steps == 0:
            return success
        self._held[success | (self._held > 0)] += 1
        return self._held > self.success_hold_steps

    def _advance(self, actions: Real, started: NDArray[np.bool_]) -> None:
        """Command the actions (N, A) and advance the physics by a control step; `started` (N,) begin their episode."""
        del started
        self.task.command(actions)
        self.physics.step(self.task.substeps)

    def _observe(self, env_ids: Ids | slice) -> None:
        self.task.observe(self.obs, env_ids)
        if self._images is not None:
            self._images.observe(self.obs, self._all[env_ids])

    def split(self, name: Split) -> range:
        """Start ids of a split.

        Raises:
            ConfigError: unknown split.
        """
        return starts.ids_of(name)

    def queue_states(self, ids: Sequence[int] | NDArray[np.int64]) -> None:
        """Queue start ids for the next restarts, in order; after the last one, training ids are drawn again.

        Raises:
            ConfigError: an id outside all splits.
        """
        self._starts.queue.put(starts.queue_of(ids))

    def _start(self, env_ids: Ids) -> None:
        ids, plans = self._starts.take(len(env_ids))
        self.steps[env_ids] = 0
        self._held[env_ids] = 0
        self.state_ids[env_ids] = ids
        self._parameters.draw(env_ids, ids)
        self.task.start(env_ids, plans)
        self.physics.start(env_ids)
        self._observe(env_ids)

    # places

    def places(self) -> dict[str, int]:
        """Name of each loose thing to the place of its x among the coordinates qpos.

        A thing is a free body of the world that carries no other joint; a walking robot is none.
        """
        model = self.physics.model
        found: dict[str, int] = {}
        for joint in np.flatnonzero(np.asarray(model.jnt_type) == mujoco.mjtJoint.mjJNT_FREE).tolist():
            body = int(model.jnt_bodyid[joint])
            if int((np.asarray(model.body_rootid)[np.asarray(model.jnt_bodyid)] == body).sum()) == 1:
                found[model.body(body).name] = int(model.jnt_qposadr[joint])
        return found

    def displace(self, env_ids: Ids, offsets_m: NDArray[np.float64]) -> None:
        """Move the things (`places`) of the envs `env_ids` (n,) by (n, things, 2) meters along x and y.

        Raises:
            ConfigError: the wrong shape.
        """
        first = self.places()
        if offsets_m.shape != (len(env_ids), len(first), 2):
            raise ConfigError(
                f"offsets_m has shape {offsets_m.shape}: expected {(len(env_ids), len(first), 2)}, x and y of each"
            )
        qpos = self.physics.batch.bind("qpos")
        for number, at in enumerate(first.values()):
            qpos[env_ids, at : at + 2] += offsets_m[:, number]
        self.physics.start(env_ids)
        self._observe(env_ids)

    # parameters

    def get_params(self) -> dict[str, NDArray[np.float64]]:
        """Current multipliers (N,) by parameter name."""
        return self._parameters.get()

    def set_params(self, env_ids: Ids, values: Mapping[str, NDArray[np.float64]]) -> None:
        """Set multipliers of the envs `env_ids`; see `Parameters.set` for the errors."""
        self.physics.forward(np.unique(self._parameters.set(env_ids, values)))

    def _write_param(self, param: Param, env_ids: Ids, values: NDArray[np.float64]) -> None:
        for field in param.fields:
            expanded = self.physics.batch.expand(field)
            columns, numbers = multiplied(param, np.asarray(getattr(self.physics.model, field)), values)
            rows = np.asarray(param.rows)
            expanded[np.ix_(env_ids, rows) if columns is None else np.ix_(env_ids, rows, columns)] = numbers
        if set(param.fields) & set(mujoco.MjModel._setconst_inputs):
            self.physics.batch.set_const(np.unique(env_ids))

    # exact state

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Exact state as named arrays: everything that determines the further course."""
        return {
            "physics": self.physics.batch.state.copy(),
            "steps": self.steps.copy(),
            "state_ids": self.state_ids.copy(),
            **self._starts.state(),
            **({"held": self._held.copy()} if self.success_hold_steps else {}),
            **{f"param/{name}": value for name, value in self._parameters.get().items()},
            **{f"task/{name}": value.copy() for name, value in self.task.memory().items()},
            **{f"derived/{name}": value.copy() for name, value in self.physics.memory().items()},
        }

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> dict[str, Real]:
        """Restore a result of `get_state` and return the observations in that state.

        Raises:
            ConfigError: the state is of another task or number of envs.
        """
        check_state(state, self.get_state())
        self.physics.batch.state[:] = state["physics"]
        self.steps[:] = state["steps"]
        self.state_ids[:] = state["state_ids"]
        self._starts.load(state)
        if self.success_hold_steps:
            self._held[:] = state["held"]
        self._parameters.restore(
            {name: np.asarray(state[f"param/{name}"], np.float64) for name in self._parameters.get()}
        )
        for name, array in self.task.memory().items():
            array[:] = state[f"task/{name}"]
        for name, array in self.physics.memory().items():
            array[:] = state[f"derived/{name}"]
        self.physics.forward()
        self._observe(slice(None))
        return self.obs
