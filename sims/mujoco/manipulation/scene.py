"""What the tasks of the arm share: options, reward and end, MJCF around the arm, a block, parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, TypeVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from robotrl.errors import check_number, unknown
from robotrl.sims.mujoco.engine.physics import Derived, Physics
from robotrl.sims.mujoco.engine.task import Ids, Outcome, Param, Real
from robotrl.sims.mujoco.manipulation.arm import JOINTS, arm_mjcf
from robotrl.sims.mujoco.manipulation.hand import Hand, WorldHand

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
HandT = TypeVar("HandT", bound=Hand)

CONTROL_DT_S = 0.05
SUBSTEPS = 10
QUARTER_TURN_RAD = np.pi / 2
REWARDS = ("sparse", "shaped")
SHAPED_PER_M = 10.0
"""Shaped reward for each metre that the task's distance shrinks."""
AREA_LOW_M = (0.24, -0.40)
AREA_HIGH_M = (0.74, 0.40)
"""A block whose middle leaves this part of the table has failed: the arm cannot bring it back."""
_CENTRE_M, _HALF_M = np.add(AREA_LOW_M, AREA_HIGH_M) / 2, np.subtract(AREA_HIGH_M, AREA_LOW_M) / 2
MAT = (
    f'<geom class="mark" size="{_HALF_M[0]} {_HALF_M[1]} 0.0003" pos="{_CENTRE_M[0]} {_CENTRE_M[1]} 0.0003"'
    ' rgba="0.78 0.80 0.83 1"/>'
)
"""Shows this part: an element of the world."""


class ArmTask(ABC, Generic[HandT]):
    """A task of the arm that ends at success, with a reward for that, and, where shaped, for coming nearer to it.

    Args:
        reward: "sparse" or "shaped".
        limit_s: time limit of an episode, 0.5 to 60 s.

    Raises:
        ConfigError: the option, its value and what was expected.
    """

    control_dt_s = CONTROL_DT_S
    substeps = SUBSTEPS
    reads_derived_fields: Derived = "none"
    survival = False
    hand: HandT
    """Bound by the task."""

    def __init__(self, reward: str, limit_s: float) -> None:
        if reward not in REWARDS:
            raise unknown("reward", str(reward), REWARDS)
        check_number("limit_s", limit_s, 0.5, 60, "seconds")
        self.shaped = reward == "shaped"
        self.limit_steps = round(limit_s / self.control_dt_s)

    @abstractmethod
    def success(self) -> Flags:
        """(N,) at the last observation, like what follows."""

    def failure(self) -> Flags:
        """(N,) whether success is out of reach."""
        return np.zeros(len(self.hand.pos_w), bool)

    @abstractmethod
    def distance(self) -> Array:
        """(N,) metres from success."""

    def memory(self) -> Mapping[str, Array]:
        """Nothing: all is in the physics state."""
        return {}

    def command(self, actions: Real) -> None:
        """Cartesian steps; the tip is kept inside the workspace box."""
        if self.shaped:
            self._distance_before = self.distance()
        self.hand.command(actions)

    def outcome(self, actions: Real) -> Outcome:
        """+1 at success; when shaped, also how much nearer the step came to it."""
        success = self.success()
        reward = success.astype(np.float64)
        if self.shaped:
            reward += SHAPED_PER_M * (self._distance_before - self.distance())
        return Outcome(reward, success, self.failure())


class BlockTask(ArmTask[WorldHand]):
    """A task with a block, of the joint "block", that must not leave a part of the table."""

    block: FreeBlock
    """Bound by the task."""

    def bind(self, physics: Physics) -> None:
        """Take views of the simulations' arrays."""
        self.block = FreeBlock(physics, "block")
        self._model = physics.model

    def params(self) -> dict[str, Param]:
        """What may be randomised: all friction, the block's mass, stiffness of the arm's servos."""
        return parameters(self._model, "block")

    def failure(self) -> Flags:
        """(N,) whether the block has left its part of the table."""
        pos = self.block.pos_w[:, :2]
        outside = (pos < AREA_LOW_M) | (pos > AREA_HIGH_M)
        return outside[:, 0] | outside[:, 1]


def scene_mjcf(name: str, tool: str, things: str, actuators: str = "", defaults: str = "") -> str:
    """The MJCF of a table with the arm and things on it.

    The tool touches everything but itself and the arm; the arm touches nothing. Friction cones are elliptic: with
    pyramids, pushed blocks rattle on their edges and slide off the paddle. Stiffer friction (impratio) would want more
    solver iterations than there are.

    Args:
        name: of the model.
        tool: elements of the flange body; geoms of class "tool" collide, those of the arm's classes do not.
        things: elements of the world: geoms of class "thing" collide, those of class "mark" are seen only.
        actuators: those besides the arm's.
        defaults: default classes besides.
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
    """A free box whose four sides look alike, in every env.

    Args:
        physics: the simulations.
        joint: name of its free joint.
    """

    def __init__(self, physics: Physics, joint: str) -> None:
        model, batch = physics.model, physics.batch
        place = int(model.joint(joint).qposadr[0])
        speed = int(model.joint(joint).dofadr[0])
        self.pos_w: Array = batch.bind("qpos")[:, place : place + 3]
        """(N, 3)."""
        self.vel_w: Array = batch.bind("qvel")[:, speed : speed + 3]
        """(N, 3)."""
        self._quat: Array = batch.bind("qpos")[:, place + 3 : place + 7]

    def yaw_w(self, env_ids: Ids | slice) -> Array:
        """(n,) direction of one of its sides, seen from above; it counts modulo a quarter turn."""
        w, x, y, z = self._quat[env_ids].T
        first = np.array([1 - 2 * (y * y + z * z), 2 * (x * y + w * z)])
        second = np.array([2 * (x * y - w * z), 1 - 2 * (x * x + z * z)])
        # of two axes at right angles, one at least lies nearer to the horizontal than to the vertical
        level = (first**2).sum(axis=0) > 0.4
        return np.where(level, np.arctan2(first[1], first[0]), np.arctan2(second[1], second[0]))


def upright(pos_w: Array, yaw_rad: Array) -> Array:
    """Coordinates (n, 7) of a free joint: positions (n, 3), turned by (n,) about the vertical."""
    out = np.zeros((len(pos_w), 7))
    out[:, :3] = pos_w
    out[:, 3], out[:, 6] = np.cos(yaw_rad / 2), np.sin(yaw_rad / 2)
    return out


def parameters(model: mujoco.MjModel, *blocks: str) -> dict[str, Param]:
    """What may be randomised: stiffness of the arm's servos; where there are blocks, their mass and all friction."""
    found = {"servo_gain": Param(("actuator_gainprm", "actuator_biasprm"), tuple(range(len(JOINTS))), 0.5, 1.5)}
    if blocks:
        # MuJoCo takes the larger friction of two geoms, so all that touch are scaled together
        touching = tuple(int(i) for i in np.flatnonzero(model.geom_contype))
        found["friction"] = Param(("geom_friction",), touching, 0.2, 4.0, (0,))
        bodies = tuple(int(model.body(name).id) for name in blocks)
        found["block_mass"] = Param(("body_mass", "body_inertia"), bodies, 0.3, 3.0)
    return found
