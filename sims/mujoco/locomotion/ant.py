"""`mujoco/ant`: Gymnasium's Ant-v5, a four-legged robot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from robotrl.sims.mujoco.engine.arrays import Array
from robotrl.sims.mujoco.engine.config import MujocoCfg
from robotrl.sims.mujoco.engine.task import TaskPhysics
from robotrl.sims.mujoco.locomotion import columns
from robotrl.sims.mujoco.locomotion.columns import Segment
from robotrl.sims.mujoco.locomotion.contact import ContactScore, RewardTerms
from robotrl.sims.mujoco.locomotion.task import (
    LIMIT_STEPS,
    TRAIN_DEFAULTS,
    Common,
    Dtype,
    Locomotion,
    Range,
    Robot,
    checked_range,
)
from robotrl.sims.mujoco.render.views import Raster, View
from robotrl.spec import TrainDefaults

if TYPE_CHECKING:
    from robotrl.sims.mujoco.engine.sim import MujocoSim
    from robotrl.sims.mujoco.warp.sim import WarpSim

LEGS = ("front_left", "front_right", "back_left", "back_right")
JOINTS = ("hip_1", "ankle_1", "hip_2", "ankle_2", "hip_3", "ankle_3", "hip_4", "ankle_4")
BODIES = ("torso", *(f"{leg}_{part}" for leg in LEGS for part in ("hip", "thigh", "shin")))
"""Body names in the model's order; the model itself uses other names or none for some of them."""
TORSO = 1
ROBOT = Robot(
    name="mujoco/ant",
    asset="ant.xml",
    timestep_s=0.01,
    substeps=5,
    motors=tuple((joint, 150.0) for joint in (*JOINTS[6:], *JOINTS[:6])),
    control_limit=1.0,
    views={
        "track": Raster("top", (0.0, 0.0, 0.6), 4.0, track="torso", tile_m=0.5),
        "side": View((0.0, -5.0, 1.6), (0.0, 0.0, 0.4), 36.0),
    },
    start_seed=0xA27,
    normal_velocities=True,
)


class AntScore(ContactScore):
    """Reward of Ant-v5: forward speed of the torso and a healthy bonus, minus the costs of torques and contacts.

    Args:
        terms: see `RewardTerms`.
        force_range: (low, high) that contact torques (N m) and forces (N) are clipped to.
    """

    def __init__(self, terms: RewardTerms, force_range: Range) -> None:
        super().__init__(terms)
        self._force_range = force_range

    def bind(self, physics: TaskPhysics) -> None:
        """Store views of coordinates, contact wrenches and controls."""
        self._x = physics.field("xpos")[:, TORSO, 0]
        super().bind(physics)

    def before(self) -> None:
        """Store the torso's position before the step; it lags one physics step behind the state, as in Gymnasium."""
        self._x_before[:] = self._x

    def after(self) -> tuple[Array, Array]:
        """Reward and end of the last step."""
        xp = self._xp
        forces = xp.clip(self._wrenches, *self._force_range)
        healthy = (self._z >= self._z_range[0]) & (self._z <= self._z_range[1])
        reward = (self._x - self._x_before) * (self._forward / (ROBOT.timestep_s * ROBOT.substeps))
        reward += self._healthy_reward * healthy
        reward -= self._ctrl_cost * xp.vecdot(self._ctrl, self._ctrl)
        reward -= self._contact_cost * xp.vecdot(forces, forces)
        return reward, ~healthy if self._terminate else self._never


def segments(force_range: Range, hide_xy: bool, show_forces: bool) -> tuple[Segment, ...]:
    """Parts of the observation; see `make`."""
    coordinates = (
        *columns.free_positions("torso"),
        *columns.joint_positions(JOINTS),
        *columns.free_velocities("torso"),
        *columns.joint_velocities(JOINTS),
    )
    seen = (Segment("coordinates", coordinates, 2 * int(hide_xy)),)
    return (*seen, Segment("cfrc_ext", columns.wrenches(BODIES), clip=force_range)) if show_forces else seen


@dataclass(frozen=True, kw_only=True)
class AntCfg(MujocoCfg):
    """`mujoco/ant`: Gymnasium's Ant-v5, a four-legged robot."""

    train_defaults: ClassVar[TrainDefaults] = TRAIN_DEFAULTS
    forward_reward_weight: float = 1.0
    """Reward for a forward speed of 1 m/s."""
    ctrl_cost_weight: float = 0.5
    """Cost of the sum of squared actions."""
    contact_cost_weight: float = 5e-4
    """Cost of the sum of squared contact torques and forces, after cutting."""
    healthy_reward: float = 1.0
    """Reward of each step in which the robot is well."""
    terminate_when_unhealthy: bool = True
    """End the episode when it is not."""
    healthy_z_range: Range = (0.2, 1.0)
    """Range of the torso's height, m."""
    contact_force_range: Range = (-1.0, 1.0)
    """Range that contact torques (N m) and forces (N) are cut to."""
    reset_noise_scale: float = 0.1
    """Half width of the uniform noise on start coordinates, and standard deviation of the normal noise on
    velocities."""
    exclude_current_positions_from_observation: bool = True
    """Leave out the torso's x and y."""
    include_cfrc_ext_in_observation: bool = True
    """Observe contact torques and forces."""
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
        force_range = checked_range("contact_force_range", self.contact_force_range)
        terms = RewardTerms(
            self.forward_reward_weight,
            self.ctrl_cost_weight,
            self.contact_cost_weight,
            self.healthy_reward,
            self.terminate_when_unhealthy,
            self.healthy_z_range,
        )
        seen = segments(
            force_range, self.exclude_current_positions_from_observation, self.include_cfrc_ext_in_observation
        )
        task = Locomotion(
            ROBOT,
            seen,
            AntScore(terms, force_range),
            "stepped",
            Common(self.reset_noise_scale, self.limit_steps, self.dtype),
        )
        return self.sim(task, num_envs, seed)
