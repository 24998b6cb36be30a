"""Two clocks in a MuJoCo sim: the policy's control steps, and the servo ticks of which each consists.

At each tick the task is observed and commanded anew: with the policy's action, or with that of a reflex.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.engine.sim import ExpertFactory, ExpertSim
from robotrl.sims.mujoco.engine.task import Real, Task
from robotrl.spec import Spec
from robotrl.spec.actuation import Reflex, ServoTick

STATE = "state"
"""Observation of which a servo measures some columns."""


class ServoTask(Task, Protocol):
    """A task whose actions may be sent at each servo tick, from what is observed then."""

    servo_ticks: int
    """Servo ticks in a control step; divides `substeps`."""
    servo_columns: tuple[str, ...]
    """Names of the columns of the observation "state" that are measured at each tick."""
    hazard_column: str
    """The one of them that is a hazard where it is large."""
    hazard_limit: float
    """Largest value of that column that is no violation."""
    retract: tuple[float, ...]
    """Action that leads away from the hazard."""

    def begin(self) -> None:
        """Begin a control step, before its first tick is commanded."""
        ...


class ServoClock:
    """Clock and hazard of a task, as its sims state them (`robotrl.spec.actuation.HasServoClock`)."""

    def __init__(self, task: ServoTask) -> None:
        spec = task.observation_spec[STATE]
        names, low, high = spec.names, np.asarray(spec.low), np.asarray(spec.high)
        self.columns = np.array([names.index(name) for name in task.servo_columns])
        """(S,) places of the servo's columns in the observation "state"."""
        self.hazard_column = names.index(task.hazard_column)
        """Place of the hazard among them all."""
        self.spec = Spec(
            (len(self.columns),),
            task.servo_columns,
            tuple(spec.units[i] for i in self.columns),
            tuple(float(x) for x in low[self.columns]),
            tuple(float(x) for x in high[self.columns]),
        )
        self.hazard = f"{task.hazard_column}, {spec.units[self.hazard_column]}"
        """Name and unit of the hazard."""


class ServoCore(MujocoCore):
    """A core that advances by servo ticks; made like a `MujocoCore`, for a `ServoTask`."""

    task: ServoTask

    def __init__(self, task: ServoTask, num_envs: int, seed: int, *more: Any) -> None:
        super().__init__(task, num_envs, seed, *more)
        self.clock = ServoClock(task)
        self.reflex: Reflex | None = None

    def _advance(self, actions: Real, started: NDArray[np.bool_]) -> None:
        task, reflex = self.task, self.reflex
        state, chosen = self.obs[STATE], actions
        columns, hazard = self.clock.columns, self.clock.hazard_column
        task.begin()
        for tick in range(task.servo_ticks):
            if tick:
                task.observe(self.obs, slice(None))
            if reflex is not None:
                first = torch.from_numpy(started if tick == 0 else np.zeros_like(started))
                seen = torch.from_numpy(state[:, columns])
                given = ServoTick(seen, torch.from_numpy(actions.copy()), tick, first)
                chosen = self._bounds.checked(reflex.act(given).numpy(), self.steps)
            task.command(chosen)
            self.physics.step(task.substeps // task.servo_ticks)
            if reflex is not None:
                task.observe(self.obs, slice(None))
                reflex.felt(torch.from_numpy(state[:, columns]), torch.from_numpy(state[:, hazard].copy()))


class ServoSim(ExpertSim):
    """A MuJoCo sim with two clocks and a scripted expert (`robotrl.spec.actuation.HasServoClock`)."""

    def __init__(self, core: ServoCore, expert: ExpertFactory) -> None:
        super().__init__(core, expert)
        task, clock = core.task, core.clock
        self._servo_core = core
        self.servo_ticks = task.servo_ticks
        self.servo_spec, self.hazard = clock.spec, clock.hazard
        self.hazard_limit = task.hazard_limit
        self.retract = task.retract

    def set_reflex(self, reflex: Reflex | None) -> None:
        """Have a reflex act at each tick from now on; None removes it."""
        self._servo_core.reflex = reflex
