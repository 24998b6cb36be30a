"""Simulated robot for the control loop: one env, commanded at the control rate, advanced at the physics rate."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, NumericsError
from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.spec import Split


class SimulatedRobot:
    """One env of a task without automatic episodes: the caller decides when to command, advance and reset.

    Args:
        core: a core with one env.
    """

    simulated: Literal[True] = True

    def __init__(self, core: MujocoCore) -> None:
        if core.num_envs != 1:
            raise ConfigError(f"num_envs is {core.num_envs}: expected 1 for a simulated robot")
        task = core.task
        self._core = core
        self.observation_spec = task.observation_spec
        self.action_spec = task.action_spec
        self.control_dt_s = task.control_dt_s
        self.inner_dt_s = task.control_dt_s / task.substeps
        self.limit_s = task.limit_steps * task.control_dt_s
        self._low = np.asarray(task.action_spec.low, np.float32)
        self._high = np.asarray(task.action_spec.high, np.float32)
        self._action = np.zeros((1, *task.action_spec.shape), np.float32)
        self._inner_steps = 0
        self._failed = False

    def state_ids(self, split: Split) -> range:
        """Start ids of a split."""
        return self._core.split(split)

    def reset(self, state_id: int) -> dict[str, NDArray[np.float32]]:
        """Go to a start state and return its observation."""
        self._core.reset(options={"state_ids": [state_id]})
        self._inner_steps, self._failed = 0, False
        return self.observe()

    def command(self, action: NDArray[np.float32]) -> None:
        """Set the arm's targets relative to its present state, from an action (A,) clipped to its bounds.

        Raises:
            ConfigError: wrong shape.
            NumericsError: an action is not finite; the arm keeps its last targets.
        """
        if np.shape(action) != self.action_spec.shape:
            raise ConfigError(f"action has shape {np.shape(action)}: expected {self.action_spec.shape}")
        finite = np.isfinite(action)
        if not finite.all():
            column = int(np.argmin(finite))
            raise NumericsError(
                f"action {self.action_spec.names[column]!r} is {action[column]}: expected a finite number"
            )
        self._action[0] = np.clip(action, self._low, self._high)
        self._core.task.command(self._action)

    def advance(self, inner_steps: int) -> None:
        """Advance the physics by `inner_steps` steps of `inner_dt_s`."""
        self._core.physics.step(inner_steps)
        self._inner_steps += inner_steps
        self._core.task.observe(self._core.obs, slice(None))

    def observe(self) -> dict[str, NDArray[np.float32]]:
        """Copy of the observation, without the env axis."""
        return {key: value[0].copy() for key, value in self._core.obs.items()}

    def success(self) -> bool:
        """True if the task is solved now.

        Survival tasks are solved in the last control step of the time limit, unless a call since the reset has seen a
        failure.
        """
        task = self._core.task
        outcome = task.outcome(self._action)
        if not task.survival:
            return bool(outcome.success[0])
        self._failed = self._failed or bool(outcome.failure[0])
        return not self._failed and self._inner_steps >= (task.limit_steps - 1) * task.substeps


class RepeatingRobot(SimulatedRobot):
    """A simulated robot whose own servo sends the last action again at each physics step, from where the robot is then.

    For tasks whose servo ticks are physics steps (`ServoTask`): the action means what it means in their sim.
    """

    def reset(self, state_id: int) -> dict[str, NDArray[np.float32]]:
        """Go to a start state, at rest, and return its observation."""
        self._action[:] = 0
        return super().reset(state_id)

    def advance(self, inner_steps: int) -> None:
        """Advance the physics by `inner_steps` steps of `inner_dt_s`."""
        for _ in range(inner_steps):
            self._core.task.command(self._action)
            super().advance(1)
