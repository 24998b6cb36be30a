"""`mujoco/hopper`: Gymnasium's Hopper-v5, a planar one-legged robot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from robotrl.sims.mujoco.engine.config import MujocoCfg
from robotrl.sims.mujoco.locomotion import planar
from robotrl.sims.mujoco.locomotion.columns import INF
from robotrl.sims.mujoco.locomotion.task import LIMIT_STEPS, TRAIN_DEFAULTS, Common, Dtype, Locomotion, Range, Robot
from robotrl.sims.mujoco.render.views import Raster, View
from robotrl.spec import TrainDefaults

if TYPE_CHECKING:
    from robotrl.sims.mujoco.engine.sim import MujocoSim
    from robotrl.sims.mujoco.warp.sim import WarpSim

JOINTS = ("thigh_joint", "leg_joint", "foot_joint")
ROBOT = Robot(
    name="mujoco/hopper",
    asset="hopper.xml",
    timestep_s=0.002,
    substeps=4,
    motors=tuple((joint, 200.0) for joint in JOINTS),
    control_limit=1.0,
    views={
        "track": Raster("side", (0.0, 0.0, 0.8), 3.0, track="torso", tile_m=0.5),
        "side": View((0.0, -4.0, 0.9), (0.0, 0.0, 0.75), 32.0),
    },
    start_seed=0x40B,
    normal_velocities=False,
)


@dataclass(frozen=True, kw_only=True)
class HopperCfg(MujocoCfg):
    """`mujoco/hopper`: Gymnasium's Hopper-v5, a planar one-legged robot."""

    train_defaults: ClassVar[TrainDefaults] = TRAIN_DEFAULTS
    forward_reward_weight: float = 1.0
    """Reward for a forward speed of 1 m/s."""
    ctrl_cost_weight: float = 1e-3
    """Cost of the sum of squared actions."""
    healthy_reward: float = 1.0
    """Reward of each step in which the robot is well."""
    terminate_when_unhealthy: bool = True
    """End the episode when it is not."""
    healthy_state_range: Range = (-100.0, 100.0)
    """Range of all coordinates and velocities but the torso's x and z."""
    healthy_z_range: Range = (0.7, INF)
    """Range of the torso's height, m."""
    healthy_angle_range: Range = (-0.2, 0.2)
    """Range of the torso's pitch, rad."""
    reset_noise_scale: float = 5e-3
    """Half width of the uniform noise on start coordinates and velocities."""
    exclude_current_positions_from_observation: bool = True
    """Leave out the torso's x."""
    limit_steps: int = LIMIT_STEPS
    """Time limit of an episode, control steps."""
    dtype: Dtype = "float32"
    """Type of observations, actions and rewards; "float64" gives Gymnasium's numbers."""

    def build(self, num_envs: int, seed: int) -> MujocoSim | WarpSim:
        """Build the batched sim.

        Args:
            num_envs: N, 1 or more.
            seed: seed of the training starts that are drawn.

        Raises:
            ConfigError: a value out of range, with what was expected; or Gymnasium is not installed.
        """
        health = planar.Health(
            self.healthy_reward,
            self.terminate_when_unhealthy,
            self.healthy_z_range,
            self.healthy_angle_range,
            self.healthy_state_range,
        )
        task = Locomotion(
            ROBOT,
            planar.coordinates(
                JOINTS, "torso_pos_z_w", planar.VELOCITY_CLIP, self.exclude_current_positions_from_observation
            ),
            planar.PlanarScore(
                ROBOT.timestep_s * ROBOT.substeps, self.forward_reward_weight, self.ctrl_cost_weight, health
            ),
            "none",
            Common(self.reset_noise_scale, self.limit_steps, self.dtype),
        )
        return self.sim(task, num_envs, seed)
