"""`mujoco/quadruped-velocity`: a four-legged robot follows velocity commands on rough ground."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from robotrl.errors import check_number
from robotrl.sims.mujoco.engine.config import MujocoCfg
from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.quadruped.rewards import RewardScales
from robotrl.sims.mujoco.quadruped.schedule import CommandCfg, PushScheduleCfg
from robotrl.sims.mujoco.quadruped.task import CONTROL_DT_S, RANDOMIZATION, QuadrupedVelocity
from robotrl.sims.mujoco.quadruped.terrain import Kind, make_terrain
from robotrl.spec import TrainDefaults

if TYPE_CHECKING:
    from robotrl.sims.mujoco.engine.robot import SimulatedRobot
    from robotrl.sims.mujoco.quadruped.sim import QuadrupedSim, WarpQuadrupedSim

LIMIT_S = 20.0
COMMAND_PERIOD_S = 5.0
STANDING_SHARE = 0.1
PUSH_PERIOD_S = 5.0
PUSH_YAW_PER_MPS = 1.0
"""Size of pushes to the yaw rate, in rad/s per m/s of the horizontal pushes."""


@dataclass(frozen=True, kw_only=True)
class QuadrupedCfg(MujocoCfg):
    """`mujoco/quadruped-velocity`: a four-legged robot follows velocity commands on rough ground."""

    train_defaults: ClassVar[TrainDefaults] = TrainDefaults(
        {
            "sim.num_envs": 512,
            "policy.horizon": 1,
            "algo.critic_warmup_env_steps": 0,
            "algo.num_steps": 24,
            "algo.minibatch": 3072,
            "evaluation.score": "return",
            "evaluation.episodes": 64,
        }
    )
    terrain: Kind = "flat"
    """Kind of ground."""
    levels: int = 5
    """Difficulties of the terrain, 1 to 20; starts are spread over them."""
    command_mps: float = 1.0
    """Largest linear velocity asked for, in any direction, 0 to 3 m/s."""
    command_yaw_rad_s: float = 1.0
    """Largest yaw rate asked for, 0 to 3 rad/s."""
    randomize: bool = True
    """Randomize parameters (over the ranges of the sim's page, where `randomization` states none), push, and add
    measurement noise."""
    push_mps: float = 0.5
    """Largest kick to the trunk's velocity, every 5 s, 0 to 3 m/s."""
    noise: float = 1.0
    """Measurement noise as a multiple of the amplitudes on the sim's page, 0 to 5."""
    reward: RewardScales = field(default_factory=RewardScales)
    """Scale of each reward term, per second."""
    limit_s: float = LIMIT_S
    """Time limit of an episode, 0.1 to 600 s."""
    end_on_fall: bool = True
    """End the episode at a fall."""

    def build(self, num_envs: int, seed: int) -> QuadrupedSim | WarpQuadrupedSim:
        """Build the batched sim.

        Args:
            num_envs: N, 1 or more.
            seed: seed of the training starts that are drawn.

        Raises:
            ConfigError: a value out of range, or an unknown terrain, parameter or term, with what was expected.
        """
        from robotrl.sims.mujoco.quadruped.sim import QuadrupedSim, WarpQuadrupedSim

        task, ranges = self.task(), RANDOMIZATION if self.randomize else {}
        if self.on_warp():
            return self.warp_sim(WarpQuadrupedSim, task, num_envs, seed, ranges)
        core = self.core(task, num_envs, seed, ranges)
        return self.with_images(QuadrupedSim(core, task))

    def task(self) -> QuadrupedVelocity:
        """Make the task of these options.

        Raises:
            ConfigError: a value out of range, or an unknown terrain.
        """
        check_number("levels", self.levels, 1, 20)
        check_number("command_mps", self.command_mps, 0, 3, "m/s")
        check_number("command_yaw_rad_s", self.command_yaw_rad_s, 0, 3, "rad/s")
        check_number("push_mps", self.push_mps, 0, 3, "m/s")
        check_number("noise", self.noise, 0, 5)
        check_number("limit_s", self.limit_s, 0.1, 600, "seconds")
        steps = round(COMMAND_PERIOD_S / CONTROL_DT_S)
        push_mps = self.push_mps if self.randomize else 0.0
        return QuadrupedVelocity(
            terrain=make_terrain(self.terrain, self.levels),
            scales=self.reward,
            command=CommandCfg(self.command_mps, self.command_yaw_rad_s, STANDING_SHARE, steps),
            push=PushScheduleCfg(push_mps, push_mps * PUSH_YAW_PER_MPS, round(PUSH_PERIOD_S / CONTROL_DT_S)),
            noise=float(self.noise if self.randomize else 0.0),
            limit_steps=round(self.limit_s / CONTROL_DT_S),
            end_on_fall=self.end_on_fall,
        )


def make_robot(seed: int) -> SimulatedRobot:
    """Make a simulated robot for the control loop: flat ground, nominal parameters, no noise, no pushes."""
    from robotrl.sims.mujoco.engine.robot import SimulatedRobot

    return SimulatedRobot(MujocoCore(QuadrupedCfg(push_mps=0.0, noise=0.0).task(), 1, seed, threads=1))
