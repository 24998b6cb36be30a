"""`mujoco/halfcheetah`: Gymnasium's HalfCheetah-v5, a planar two-legged runner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.locomotion import planar
from robotrl.sims.mujoco.locomotion.task import LIMIT_STEPS, Common, Dtype, Locomotion, Robot
from robotrl.sims.mujoco.render.images import with_images
from robotrl.sims.mujoco.render.views import Raster, View

if TYPE_CHECKING:
    from robotrl.sims.mujoco.engine.sim import MujocoSim

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


@with_images
def make(
    num_envs: int,
    seed: int,
    *,
    forward_reward_weight: float = 1.0,
    ctrl_cost_weight: float = 0.1,
    reset_noise_scale: float = 0.1,
    exclude_current_positions_from_observation: bool = True,
    limit_steps: int = LIMIT_STEPS,
    threads: int = 0,
    randomization: Mapping[str, tuple[float, float]] | None = None,
    dump_dir: Path | None = None,
    dtype: Dtype = "float32",
) -> MujocoSim:
    """Make the batched sim of HalfCheetah-v5.

    Args:
        num_envs: N, 1 or more.
        seed: seeds which training starts are drawn.
        forward_reward_weight: reward for a forward speed of 1 m/s.
        ctrl_cost_weight: cost of the sum of squared actions.
        reset_noise_scale: half width of the uniform noise on start coordinates, and standard deviation of the normal
            noise on velocities.
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

    task = Locomotion(
        ROBOT,
        planar.coordinates(JOINTS, "torso_rise_z_w", None, exclude_current_positions_from_observation),
        planar.PlanarScore(ROBOT.timestep_s * ROBOT.substeps, forward_reward_weight, ctrl_cost_weight),
        "none",
        Common(reset_noise_scale, limit_steps, dtype),
    )
    return MujocoSim(MujocoCore(task, num_envs, seed, threads, randomization, dump_dir))
