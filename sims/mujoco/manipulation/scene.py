"""Shared code of the arm's tasks: options, reward and end, scene MJCF, free block, randomized parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from robotrl.errors import check_number, unknown
from robotrl.sims.mujoco.engine.arrays import Array, ArrayNamespace
from robotrl.sims.mujoco.engine.physics import Derived
from robotrl.sims.mujoco.engine.task import Outcome, Param, TaskPhysics
from robotrl.sims.mujoco.manipulation.arm import JOINTS, arm_mjcf
from robotrl.sims.mujoco.manipulation.hand import Hand, WorldHand

Reals = NDArray[np.float64]
HandT = TypeVar("HandT", bound=Hand)

CONTROL_DT_S = 0.05
SUBSTEPS = 10
QUARTER_TURN_RAD = np.pi / 2
REWARDS = ("sparse", "shaped")
SHAPED_PER_M = 10.0
"""Shaped reward per metre by which the task's distance decreases."""
AREA_LOW_M = (0.24, -0.40)
AREA_HIGH_M = (0.74, 0.40)
"""Opposite corners (x, y) of the allowed area; an episode fails when the block's centre leaves it (out of reach)."""
_CENTER_M, _HALF_M = np.add(AREA_LOW_M, AREA_HIGH_M) / 2, np.subtract(AREA_HIGH_M, AREA_LOW_M) / 2
MAT = (
    f'<geom class="mark" size="{_HALF_M[0]} {_HALF_M[1]} 0.0003" pos="{_CENTER_M[0]} {_CENTER_M[1]} 0.0003"'
    ' rgba="0.78 0.80 0.83 1"/>'
)
"""MJCF element of the world that marks the allowed area."""


class ArmTask(ABC, Generic[HandT]):
    """Base class of the arm's tasks: ends at success, with a sparse reward and optionally one for progress.

    A task's text runs on either engine: it computes with the functions `xp` of its physics.

    Args:
        reward: "sparse" or "shaped".
        limit_s: time limit of an episode, 0.5 to 60 s.

    Raises:
        ConfigError: unknown reward, or `limit_s` out of range.
    """

    control_dt_s = CONTROL_DT_S
    substeps = SUBSTEPS
    reads_derived_fields: Derived = "none"
    survival = False
    ends_early = True
    xp: ArrayNamespace
    """Functions of the arrays, set in `bind`."""
    hand: HandT
    """Arm interface, set in the subclass's `bind`."""

    def __init__(self, reward: str, limit_s: float) -> None:
        if reward not in REWARDS:
            raise unknown("reward", str(reward), REWARDS)
        check_number("limit_s", limit_s, 0.5, 60, "seconds")
        self.shaped = reward == "shaped"
        self.limit_steps = round(limit_s / self.control_dt_s)

    def bind(self, physics: TaskPhysics) -> None:
        """Store views of the simulations' arrays."""
        self.xp, self._physics, self._model = physics.xp, physics, physics.model
        self._no_failure = physics.zeros(dtype=physics.xp.bool)

    @abstractmethod
    def success(self) -> Array:
        """Success flags (N,) at the last observation."""

    def failure(self) -> Array:
        """Failure flags (N,) at the last observation: success is no longer possible."""
        return self._no_failure

    @abstractmethod
    def distance(self) -> Array:
        """Distance to success (N,), m, at the last observation."""

    def memory(self) -> Mapping[str, NDArray[Any]]:
        """No arrays: the physics state is complete."""
        return {}

    def command(self, actions: Array) -> None:
        """Command Cartesian steps; the workspace box limits the tip."""
        if self.shaped:
            self._distance_before = self.distance()
        self.hand.command(actions)

    def outcome(self, actions: Array) -> Outcome:
        """Reward +1 at success; with the shaped reward also the decrease in distance."""
        success = self.success()
        reward = self.xp.asarray(success, dtype=self.hand.pos_w.dtype)
        if self.shaped:
            reward += SHAPED_PER_M * (self._distance_before - self.distance())
        return Outcome(reward, success, self.failure())


class BlockTask(ArmTask[WorldHand]):
    """Base class of tasks with a free block (joint "block") that fail when the block leaves the allowed area."""

    block: FreeBlock
    """The block, set in `bind`."""

    def bind(self, physics: TaskPhysics) -> None:
        """Store views of the simulations' arrays."""
        super().bind(physics)
        self.block = FreeBlock(physics, "block")
        self._area_low, self._area_high = (physics.array(np.array(corner)) for corner in (AREA_LOW_M, AREA_HIGH_M))

    def params(self) -> dict[str, Param]:
        """Parameters that may be randomized: all friction, the block's mass, servo stiffness."""
        return parameters(self._model, "block")

    def failure(self) -> Array:
        """Failure flags (N,): the block has left the allowed area."""
        pos = self.block.pos_w[:, :2]
        outside = (pos < self._area_low) | (pos > self._area_high)
        return outside[:, 0] | outside[:, 1]


def scene_mjcf(name: str, tool: str, things: str, actuators: str = "", defaults: str = "") -> str:
    """Build the MJCF of a table with the arm and objects on it.

    The tool collides with everything except itself and the arm; the arm collides with nothing. Friction cones are
    elliptic: with pyramidal cones, pushed blocks rattle on their edges and slide off the paddle. Stiffer friction
    (impratio) would need more solver iterations.

    Args:
        name: name of the model.
        tool: elements of the flange body; geoms of class "tool" collide, those of the arm's classes do not.
        things: elements of the world: geoms of class "thing" collide, those of class "mark" are only visible.
        actuators: further actuators, after the arm's.
        defaults: further default classes.
    """
    arm = arm_mjcf(tool)
    return f"""
<mujoco model="{name}">
  <compiler angle="radian"/>
  <option integrator="implicitfast" cone="elliptic" timestep="{CONTROL_DT_S / SUBSTEPS}" iterations="20"
   ls_iterations="20"/>
  <default>
    <geom condim="3" friction="0.3 0.005 0.0001" contype="1" conaffinity="3"/>
    {arm.defaults}
    <default class="tool"><geom contype="2" conaffinity="0" rgba="0.95 0.55 0.10 1"/></default>
    <default class="thing"><geom type="box" rgba="0.34 0.47 0.50 1"/></default>
    <default class="block"><geom type="box" rgba="0.80 0.20 0.18 1"/></default>
    <default class="mark"><geom type="box" contype="0" conaffinity="0" mass="0" rgba="0.35 0.70 0.40 1"/></default>
    {defaults}
  </default>
  <worldbody>
    <light pos="0.3 -0.6 1.5" dir="0.1 0.4 -1"/>
    <geom name="table" type="plane" size="1.5 1.5 0.1" rgba="0.87 0.88 0.89 1"/>
    {arm.body}
    {things}
  </worldbody>
  <actuator>{arm.actuators}{actuators}</actuator>
</mujoco>"""


class FreeBlock:
    """Free box with four equal sides, in all envs.

    Args:
        physics: the simulations.
        joint: name of its free joint.
    """

    def __init__(self, physics: TaskPhysics, joint: str) -> None:
        model, self._xp = physics.model, physics.xp
        qpos, qvel = physics.bind("qpos"), physics.bind("qvel")
        place = int(model.joint(joint).qposadr[0])
        speed = int(model.joint(joint).dofadr[0])
        self.pos_w: Array = qpos[:, place : place + 3]
        """(N, 3) position of the centre, world frame, m."""
        self.vel_w: Array = qvel[:, speed : speed + 3]
        """(N, 3) linear velocity, world frame, m/s."""
        self._quat: Array = qpos[:, place + 3 : place + 7]

    def yaw_w(self, env_ids: Array) -> Array:
        """Yaw (n,), rad, of one of its sides seen from above; meaningful modulo a quarter turn."""
        xp, (w, x, y, z) = self._xp, self._quat[env_ids].T
        first_x, first_y = 1 - 2 * (y * y + z * z), 2 * (x * y + w * z)
        second_x, second_y = 2 * (x * y - w * z), 1 - 2 * (x * x + z * z)
        # of two perpendicular axes, at least one is closer to horizontal than to vertical
        level = first_x**2 + first_y**2 > 0.4
        return xp.where(level, xp.atan2(first_y, first_x), xp.atan2(second_y, second_x))


def upright(pos_w: Reals, yaw_rad: Reals) -> Reals:
    """Free-joint coordinates (n, 7) of upright bodies with positions (n, 3) and yaws (n,)."""
    out = np.zeros((len(pos_w), 7))
    out[:, :3] = pos_w
    out[:, 3], out[:, 6] = np.cos(yaw_rad / 2), np.sin(yaw_rad / 2)
    return out


def parameters(model: mujoco.MjModel, *blocks: str) -> dict[str, Param]:
    """Parameters that may be randomized: servo stiffness; with blocks also their mass and all friction."""
    found = {"servo_gain": Param(("actuator_gainprm", "actuator_biasprm"), tuple(range(len(JOINTS))), 0.5, 1.5)}
    if blocks:
        # MuJoCo uses the larger friction of two geoms, so all colliding geoms are scaled together
        touching = tuple(int(i) for i in np.flatnonzero(model.geom_contype))
        found["friction"] = Param(("geom_friction",), touching, 0.2, 4.0, (0,))
        bodies = tuple(int(model.body(name).id) for name in blocks)
        found["block_mass"] = Param(("body_mass", "body_inertia"), bodies, 0.3, 3.0)
    return found
