"""`QuadrupedSim`: the batched sim, with the robot card, and with the reward terms in `Step.info`."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.engine.sim import MujocoSim
from robotrl.sims.mujoco.quadruped.robot import RobotCard
from robotrl.sims.mujoco.quadruped.task import TERMS, QuadrupedVelocity
from robotrl.spec import Step


class QuadrupedSim(MujocoSim):
    """A `MujocoSim` of `QuadrupedVelocity`.

    `Step.info` holds each scaled reward term as "reward/NAME" (N,); their sum is the reward.

    Attributes:
        robot: parameters that a controller needs to run a policy of this sim on the robot.
        privileged: observation keys that a robot cannot measure (`robotrl.spec.HasPrivileged`).
        commands: (N, 3) current commands: forward and leftward velocity in m/s, yaw rate in rad/s, trunk frame; live.
        command_period_steps: control steps between two commands.
    """

    def __init__(self, core: MujocoCore, task: QuadrupedVelocity) -> None:
        super().__init__(core)
        self.robot: RobotCard = task.robot
        self.privileged: tuple[str, ...] = task.privileged
        self.commands: NDArray[np.float64] = task.commands
        self.command_period_steps: int = task.command_cfg.period_steps
        self._terms: dict[str, Tensor] = {
            f"reward/{name}": row for name, row in zip(TERMS, torch.from_numpy(task.terms), strict=True)
        }

    def step(self, actions: Tensor) -> Step:
        """Advance all envs by one control step; see `MujocoCore.step`."""
        out = super().step(actions)
        return out._replace(info=out.info | self._terms)
