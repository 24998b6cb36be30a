"""`mujoco/hopper`: Gymnasium's Hopper-v5, a planar one-legged robot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.locomotion import planar
from robotrl.sims.mujoco.locomotion.columns import INF
from robotrl.sims.mujoco.locomotion.task import LIMIT_STEPS, Common, Dtype, Locomotion, Range, Robot
from robotrl.sims.mujoco.render.images import with_images
from robotrl.sims.mujoco.render.views import Raster, View

if TYPE_CHECKING:
    from robotrl.sims.mujoco.engine.sim import MujocoSim

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


@with_images
def make(
    num_envs: int,
    seed: int,
    *,
    forward_reward_weight: float = 1.0,
    ctrl_cost_weight: float = 1e-3,
    healthy_reward: float = 1.0,
    terminate_when_unhealthy: bool = True,
    healthy_state_range: Range = (-100.0, 100.0),
    healthy_z_range: Range = (0.7, INF),
    healthy_angle_range: Range = (-0.2, 0.2),
    reset_noise_scale: float = 5e-3,
    exclude_current_positions_from_observation: bool = True,
    limit_steps: int = LIMIT_STEPS,
    threads: int = 0,
    randomization: Mapping[str, tuple[float, float]] | None = None,
    dump_dir: Path | None = None,
    dtype: Dtype = "float32",
) -> MujocoSim:
    """Make the batched sim of Hopper-v5.

    Args:
        num_envs: N, 1 or more.
        seed: seeds which training starts are drawn.
        forward_reward_weight: reward for a forward speed of 1 m/s.
        ctrl_cost_weight: cost of the sum of squared actions.
        healthy_reward: reward of each step in which the robot is well.
        terminate_when_unhealthy: end the episode when it is not.
        healthy_state_range: range of all coordinates and velocities but the torso's x and z.
        healthy_z_range: range of the torso's height, m.
        healthy_angle_range: range of the torso's pitch, rad.
        reset_noise_scale: half width of the uniform noise on start coordinates and velocities.
        exclude_current_positions_from_observation: leave out the torso's x.
        limit_steps: time limit of an episode, control steps.
        threads: physics threads, 0 for every core.
        randomization: parameter ("friction", "mass", "motor_strength", "joint_damping") to the (low, high) of its
            multiplier.
        dump_dir: where the numerics guard writes replayable states.
        dtype: of observations, actions and rewards; "float64" gives Gymnasium's numbers.

    Raises:
        ConfigError: a value out of range, with what was expected; or Gymnasium is not installed.
    """
    from robotrl.sims.mujoco.engine.sim import MujocoSim

    health = planar.Health(
        healthy_reward, terminate_when_unhealthy, healthy_z_range, healthy_angle_range, healthy_state_range
    )
    task = Locomotion(
        ROBOT,
        planar.coordinates(JOINTS, "torso_pos_z_w", planar.VELOCITY_CLIP, exclude_current_positions_from_observation),
        planar.PlanarScore(ROBOT.timestep_s * ROBOT.substeps, forward_reward_weight, ctrl_cost_weight, health),
        "none",
        Common(reset_noise_scale, limit_steps, dtype),
    )
    return MujocoSim(MujocoCore(task, num_envs, seed, threads, randomization, dump_dir))
