"""The batched sim on either engine, with the robot card, and with the reward terms in `Step.info`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from robotrl.sims.mujoco.engine.arrays import Array
from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.engine.sim import MujocoSim
from robotrl.sims.mujoco.quadruped.robot import RobotCard
from robotrl.sims.mujoco.quadruped.task import TERMS, QuadrupedVelocity
from robotrl.sims.mujoco.warp.sim import WarpSim
from robotrl.spec import Step


class QuadrupedFacts:
    """Attributes of the robot and of the last step, of the sims of `QuadrupedVelocity` on both engines.

    `Step.info` holds each scaled reward term as "reward/NAME" (N,); their sum is the reward.

    Attributes:
        robot: parameters that a controller needs to run a policy of this sim on the robot.
        privileged: observation keys that a robot cannot measure (`robotrl.spec.HasPrivileged`).
        commands: (N, 3) current commands: forward and leftward velocity in m/s, yaw rate in rad/s, trunk frame; live.
        command_period_steps: control steps between two commands.
    """

    def _know(self, task: QuadrupedVelocity, terms: Tensor) -> None:
        """Take them from a task that is bound, and its reward terms as a tensor."""
        self.robot: RobotCard = task.robot
        self.privileged: tuple[str, ...] = task.privileged
        self.commands: Array = task.commands
        self.command_period_steps: int = task.command_cfg.period_steps
        self._terms: dict[str, Tensor] = {f"reward/{name}": row for name, row in zip(TERMS, terms, strict=True)}

    def _with_terms(self, out: Step) -> Step:
        return out._replace(info=out.info | self._terms)


class QuadrupedSim(MujocoSim, QuadrupedFacts):
    """A `MujocoSim` of `QuadrupedVelocity`; see `QuadrupedFacts`."""

    def __init__(self, core: MujocoCore, task: QuadrupedVelocity) -> None:
        super().__init__(core)
        self._know(task, torch.from_numpy(task.terms))

    def step(self, actions: Tensor) -> Step:
        """Advance all envs by one control step; see `MujocoCore.step`."""
        return self._with_terms(super().step(actions))


class WarpQuadrupedSim(WarpSim, QuadrupedFacts):
    """A `WarpSim` of `QuadrupedVelocity`; see `QuadrupedFacts`. The commands are a tensor on the device."""

    def __init__(
        self,
        task: QuadrupedVelocity,
        num_envs: int,
        seed: int,
        device: torch.device,
        randomization: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        super().__init__(task, num_envs, seed, device, randomization)
        self._know(task, task.terms)

    def step(self, actions: Tensor) -> Step:
        """Advance all envs by one control step; see `WarpSim.step`."""
        return self._with_terms(super().step(actions))
