"""`mujoco/halfcheetah`: Gymnasium's HalfCheetah-v5, a planar two-legged runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from robotrl.sims.mujoco.engine.config import MujocoCfg
from robotrl.sims.mujoco.locomotion import planar
from robotrl.sims.mujoco.locomotion.task import LIMIT_STEPS, TRAIN_DEFAULTS, Common, Dtype, Locomotion, Robot
from robotrl.sims.mujoco.render.views import Raster, View
from robotrl.spec import TrainDefaults

if TYPE_CHECKING:
    from robotrl.sims.mujoco.engine.sim import MujocoSim
    from robotrl.sims.mujoco.warp.sim import WarpSim

JOINTS = ("bthigh", "bshin", "bfoot", "fthigh", "fshin", "ffoot")
ROBOT = Robot(
    name="mujoco/halfcheetah",
    asset="half_cheetah.xml",
    timestep_s=0.01,
    substeps=5,
    motors=tuple(zip(JOINTS, (120.0, 90.0, 60.0, 120.0, 60.0, 30.0), strict=True)),
    control_limit=1.0,
    views={
        "track": Raster("side", (0.0, 0.0, 0.6), 3.0, track="torso", tile_m=0.5),
        "side": View((0.0, -4.0, 0.9), (0.0, 0.0, 0.5), 32.0),
    },
    start_seed=0xC4E,
    normal_velocities=True,
)


@dataclass(frozen=True, kw_only=True)
class HalfCheetahCfg(MujocoCfg):
    """`mujoco/halfcheetah`: Gymnasium's HalfCheetah-v5, a planar two-legged runner."""

    train_defaults: ClassVar[TrainDefaults] = TRAIN_DEFAULTS
    forward_reward_weight: float = 1.0
    """Reward for a forward speed of 1 m/s."""
    ctrl_cost_weight: float = 0.1
    """Cost of the sum of squared actions."""
    reset_noise_scale: float = 0.1
    """Half width of the uniform noise on start coordinates, and standard deviation of the normal noise on
    velocities."""
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
        task = Locomotion(
            ROBOT,
            planar.coordinates(JOINTS, "torso_rise_z_w", None, self.exclude_current_positions_from_observation),
            planar.PlanarScore(ROBOT.timestep_s * ROBOT.substeps, self.forward_reward_weight, self.ctrl_cost_weight),
            "none",
            Common(self.reset_noise_scale, self.limit_steps, self.dtype),
        )
        return self.sim(task, num_envs, seed)
