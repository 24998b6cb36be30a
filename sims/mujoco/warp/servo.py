"""`WarpServoSim`: two clocks on MuJoCo Warp, the policy's control steps and the servo ticks of which each consists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.sims.mujoco.engine.servo import STATE, ServoClock, ServoTask
from robotrl.sims.mujoco.warp.sim import MeasuredDeviceTask, MeasuredWarpSim
from robotrl.sims.mujoco.warp.transfer import to_device
from robotrl.spec.actuation import Reflex, ServoTick


class ServoDeviceTask(MeasuredDeviceTask, ServoTask, Protocol):
    """A `ServoTask` that runs on either engine."""


class WarpServoSim(MeasuredWarpSim):
    """A sim with two clocks (`robotrl.spec.actuation.HasServoClock`); see `WarpSim` for the arguments."""

    def __init__(
        self,
        task: ServoDeviceTask,
        num_envs: int,
        seed: int,
        device: torch.device,
        randomization: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        super().__init__(task, num_envs, seed, device, randomization, ticks=task.servo_ticks)
        self._servo, self._clock = task, ServoClock(task)
        self._columns = to_device(self._clock.columns, device)
        self._reflex: Reflex | None = None
        self.servo_ticks = task.servo_ticks
        self.servo_spec, self.hazard = self._clock.spec, self._clock.hazard
        self.hazard_limit = task.hazard_limit
        self.retract = task.retract

    def set_reflex(self, reflex: Reflex | None) -> None:
        """Have a reflex act at each tick from now on; None removes it."""
        self._reflex = reflex

    def _advance(self, actions: Tensor, started: NDArray[np.bool_]) -> None:
        task, reflex = self._servo, self._reflex
        state, chosen = self._obs[STATE], actions
        task.begin()
        for tick in range(task.servo_ticks):
            if tick:
                task.observe(self._obs, slice(None))
            if reflex is not None:
                first = to_device(started if tick == 0 else np.zeros_like(started), self.device)
                given = ServoTick(state[:, self._columns], actions.clone(), tick, first)
                chosen = self._actions.checked(reflex.act(given), self._steps)
            task.command(chosen)
            self._advance_physics()
            if reflex is not None:
                task.observe(self._obs, slice(None))
                reflex.felt(state[:, self._columns], state[:, self._clock.hazard_column].clone())
