"""`mujoco/humanoid`: Gymnasium's Humanoid-v5, a walking humanoid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from robotrl.sims.mujoco.engine.arrays import Array
from robotrl.sims.mujoco.engine.config import MujocoCfg
from robotrl.sims.mujoco.engine.task import TaskPhysics
from robotrl.sims.mujoco.locomotion import columns
from robotrl.sims.mujoco.locomotion.columns import INF, Segment
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

JOINTS = (
    *("abdomen_z", "abdomen_y", "abdomen_x"),
    *(f"{side}_{joint}" for side in ("right", "left") for joint in ("hip_x", "hip_z", "hip_y", "knee")),
    *(f"{side}_{joint}" for side in ("right", "left") for joint in ("shoulder1", "shoulder2", "elbow")),
)
BODIES = (
    *("torso", "lwaist", "pelvis"),
    *(f"{side}_{body}" for side in ("right", "left") for body in ("thigh", "shin", "foot")),
    *(f"{side}_{body}" for side in ("right", "left") for body in ("upper_arm", "lower_arm")),
)
GEARS = (100.0, 100.0, 100.0, *(100.0, 100.0, 300.0, 200.0) * 2, *(25.0,) * 6)
ROBOT = Robot(
    name="mujoco/humanoid",
    asset="humanoid.xml",
    timestep_s=0.003,
    substeps=5,
    motors=tuple(zip(("abdomen_y", "abdomen_z", *JOINTS[2:]), GEARS, strict=True)),
    control_limit=0.4,
    views={
        "track": Raster("side", (0.0, 0.0, 0.9), 3.0, track="torso", tile_m=0.5),
        "side": View((0.0, -5.0, 1.4), (0.0, 0.0, 0.95), 36.0),
    },
    start_seed=0x40A,
    normal_velocities=False,
)


class HumanoidScore(ContactScore):
    """Reward of Humanoid-v5: forward speed of the centre of mass and a healthy bonus, minus torque and contact costs.

    Args:
        terms: see `RewardTerms`.
        contact_cost_range: (low, high) that the contact cost is clipped to.

    Raises:
        ConfigError: the range is not in order.
    """

    def __init__(self, terms: RewardTerms, contact_cost_range: Range) -> None:
        super().__init__(terms)
        self._contact_cost_range = checked_range("contact_cost_range", contact_cost_range)

    def bind(self, physics: TaskPhysics) -> None:
        """Store views of coordinates, centres of mass, contact wrenches and controls."""
        self._x = physics.field("xipos")[..., 0]
        super().bind(physics)
        # the randomized "mass" multiplies all masses by the same factor, so their shares stay constant
        mass = np.asarray(physics.model.body_mass)
        self._share = self._xp.asarray(mass / mass.sum(), dtype=self._x.dtype, device=self._x.device)

    def _center_x(self) -> Array:
        """Centre of mass x (N,) as the last step left it, up to one physics step behind the state."""
        return self._xp.einsum("nb,b->n", self._x, self._share)

    def before(self) -> None:
        """Store the centre of mass before the step."""
        self._x_before[:] = self._center_x()

    def after(self) -> tuple[Array, Array]:
        """Reward and end of the last step."""
        xp = self._xp
        contact = self._contact_cost * xp.vecdot(self._wrenches, self._wrenches)
        healthy = (self._z > self._z_range[0]) & (self._z < self._z_range[1])
        reward = (self._center_x() - self._x_before) * (self._forward / (ROBOT.timestep_s * ROBOT.substeps))
        reward += self._healthy_reward * healthy
        reward -= self._ctrl_cost * xp.vecdot(self._ctrl, self._ctrl)
        reward -= xp.clip(contact, *self._contact_cost_range)
        return reward, ~healthy if self._terminate else self._never


def segments(hide_xy: bool, inertias: bool, velocities: bool, torques: bool, wrenches: bool) -> tuple[Segment, ...]:
    """Parts of the observation; see `make`."""
    coordinates = (
        *columns.free_positions("torso"),
        *columns.joint_positions(JOINTS),
        *columns.free_velocities("torso"),
        *columns.joint_velocities(JOINTS),
    )
    optional = (
        (inertias, Segment("cinert", columns.inertias(BODIES))),
        (velocities, Segment("cvel", columns.spatial_velocities(BODIES))),
        (torques, Segment("qfrc_actuator", columns.actuator_torques(JOINTS))),
        (wrenches, Segment("cfrc_ext", columns.wrenches(BODIES))),
    )
    return (Segment("coordinates", coordinates, 2 * int(hide_xy)), *(segment for seen, segment in optional if seen))


@dataclass(frozen=True, kw_only=True)
class HumanoidCfg(MujocoCfg):
    """`mujoco/humanoid`: Gymnasium's Humanoid-v5, a walking humanoid."""

    train_defaults: ClassVar[TrainDefaults] = TRAIN_DEFAULTS
    forward_reward_weight: float = 1.25
    """Reward for a forward speed of 1 m/s."""
    ctrl_cost_weight: float = 0.1
    """Cost of the sum of squared actions."""
    contact_cost_weight: float = 5e-7
    """Cost of the sum of squared contact torques and forces."""
    contact_cost_range: Range = (-INF, 10.0)
    """Range that this cost is cut to."""
    healthy_reward: float = 5.0
    """Reward of each step in which the robot stands."""
    terminate_when_unhealthy: bool = True
    """End the episode when it does not."""
    healthy_z_range: Range = (1.0, 2.0)
    """Range of the torso's height, m."""
    reset_noise_scale: float = 1e-2
    """Half width of the uniform noise on start coordinates and velocities."""
    exclude_current_positions_from_observation: bool = True
    """Leave out the torso's x and y."""
    include_cinert_in_observation: bool = True
    """Observe the bodies' inertias."""
    include_cvel_in_observation: bool = True
    """Observe the bodies' velocities."""
    include_qfrc_actuator_in_observation: bool = True
    """Observe the torques of the motors."""
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
        terms = RewardTerms(
            self.forward_reward_weight,
            self.ctrl_cost_weight,
            self.contact_cost_weight,
            self.healthy_reward,
            self.terminate_when_unhealthy,
            self.healthy_z_range,
        )
        seen = segments(
            self.exclude_current_positions_from_observation,
            self.include_cinert_in_observation,
            self.include_cvel_in_observation,
            self.include_qfrc_actuator_in_observation,
            self.include_cfrc_ext_in_observation,
        )
        score = HumanoidScore(terms, self.contact_cost_range)
        task = Locomotion(ROBOT, seen, score, "stepped", Common(self.reset_noise_scale, self.limit_steps, self.dtype))
        return self.sim(task, num_envs, seed)
