"""`mujoco/peg-insert`: the arm inserts a square peg into a square hole of random pose.

The page docs/sims/peg-insert.md gives observation, action, reward, starts and ends as tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import check_number
from robotrl.fn.random import counter_rng
from robotrl.sims.mujoco.engine.arrays import Array
from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.engine.mirror import MirrorRule
from robotrl.sims.mujoco.engine.task import Ids, Param, TaskPhysics
from robotrl.sims.mujoco.manipulation.arm import ARM_RASTERS, arm_mjcf, pointing_down
from robotrl.sims.mujoco.manipulation.hand import (
    HAND_ACTIONS,
    JOINT_COLUMNS,
    Hand,
    fold,
    odd_columns,
    spec_of,
    tip_columns,
)
from robotrl.sims.mujoco.manipulation.scene import QUARTER_TURN_RAD, ArmTask, parameters, upright
from robotrl.sims.mujoco.render.views import AnyView, View

if TYPE_CHECKING:
    from robotrl.sims.mujoco.engine.robot import SimulatedRobot

Reals = NDArray[np.float64]

PEG_HALF_WIDTH_M = 0.02
PEG_LENGTH_M = 0.12
HOLE_DEPTH_M = 0.06
"""Depth of the hole and height of the fixture; the table is the bottom."""
WALL_HALF_WIDTH_M = 0.035
CLEARANCE_M = 0.001
"""Default clearance between peg and wall on each side."""
LIMIT_S = 4.0
"""Default time limit of an episode."""
SUCCESS_DEPTH_M = HOLE_DEPTH_M / 2
WORKSPACE_LOW_M = (0.28, -0.35, 0.0)
WORKSPACE_HIGH_M = (0.75, 0.35, 0.32)
_START_SEED = 0x9E6


class PegInsert(ArmTask[Hand]):
    """Peg-insertion task; see `make` for the arguments."""

    name = "mujoco/peg-insert"
    views: Mapping[str, AnyView] = {
        "front": View((1.45, 0.62, 0.78), (0.33, 0.0, 0.24), 39.0),
        "side": View((0.66, -1.25, 0.55), (0.33, 0.0, 0.26), 38.0),
        "top": View((1.02, 0.0, 1.05), (0.47, 0.0, 0.07), 36.0),
        **ARM_RASTERS,
    }
    mirror = MirrorRule(odd_columns("hole") | {"hole_yaw_sin_w"})

    def __init__(self, reward: Literal["sparse", "shaped"], clearance_m: float, limit_s: float) -> None:
        super().__init__(reward, limit_s)
        check_number("clearance_m", clearance_m, 0.0005, 0.01, "metres")
        self.clearance_m = clearance_m
        self.observation_spec = {
            "state": spec_of(
                (
                    *tip_columns("hole"),
                    ("hole_yaw_sin_w", "1", -1.0, 1.0),
                    ("hole_yaw_cos_w", "1", -1.0, 1.0),
                    *JOINT_COLUMNS,
                )
            )
        }
        self.action_spec = spec_of(HAND_ACTIONS)

    def xml(self) -> str:
        """MJCF of arm, peg and fixture."""
        half = PEG_HALF_WIDTH_M
        tool = f"""
<geom class="arm_dark" type="box" size="0.028 0.028 0.012" pos="0 0 0.012" mass="0.1"/>
<geom name="peg" class="peg" type="box" size="{half} {half} {PEG_LENGTH_M / 2}" pos="0 0 {PEG_LENGTH_M / 2}"/>
<site name="tip" pos="0 0 {PEG_LENGTH_M}" size="0.004"/>"""
        arm = arm_mjcf(tool)
        inner = half + self.clearance_m
        wall, height = WALL_HALF_WIDTH_M, HOLE_DEPTH_M / 2
        outer = inner + 2 * wall
        return f"""
<mujoco model="peg-insert">
  <compiler angle="radian"/>
  <option integrator="implicitfast" timestep="{self.control_dt_s / self.substeps}" iterations="20" ls_iterations="20"/>
  <default>
    <geom condim="3" friction="0.3 0.005 0.0001"/>
    {arm.defaults}
    <default class="peg"><geom mass="0.25" rgba="0.95 0.55 0.10 1"/></default>
    <default class="wall"><geom type="box" rgba="0.34 0.47 0.50 1"/></default>
    <default class="hole"><geom type="box" contype="0" conaffinity="0" mass="0" rgba="0.10 0.12 0.14 1"/></default>
  </default>
  <worldbody>
    <light pos="0.3 -0.6 1.5" dir="0.1 0.4 -1"/>
    <geom name="table" type="plane" size="1.5 1.5 0.1" rgba="0.87 0.88 0.89 1"/>
    {arm.body}
    <body name="fixture" mocap="true" pos="0.5 0 0">
      <geom name="wall_xp" class="wall" size="{wall} {outer} {height}" pos="{inner + wall} 0 {height}"/>
      <geom name="wall_xn" class="wall" size="{wall} {outer} {height}" pos="{-inner - wall} 0 {height}"/>
      <geom name="wall_yp" class="wall" size="{inner} {wall} {height}" pos="0 {inner + wall} {height}"/>
      <geom name="wall_yn" class="wall" size="{inner} {wall} {height}" pos="0 {-inner - wall} {height}"/>
      <geom class="hole" size="{inner} {inner} 0.0005" pos="0 0 0.0005"/>
    </body>
  </worldbody>
  <actuator>{arm.actuators}</actuator>
</mujoco>"""

    def bind(self, physics: TaskPhysics) -> None:
        """Store views of the simulations' arrays."""
        super().bind(physics)
        self.hand = Hand(physics, PEG_LENGTH_M, WORKSPACE_LOW_M, WORKSPACE_HIGH_M)
        self.hole_pos_w: Array = physics.bind("mocap_pos")[:, 0]
        self._hole_quat: Array = physics.bind("mocap_quat")[:, 0]
        self._pos_hole: Array = physics.zeros((3,))
        self._yaw_hole: Array = physics.zeros()
        self._hole_cos: Array = physics.zeros() + 1
        self._hole_sin: Array = physics.zeros()

    def params(self) -> dict[str, Param]:
        """Parameters that may be randomized: friction of peg and fixture, mass of the peg, servo stiffness."""
        model = self._model
        geoms = tuple(int(model.geom(n).id) for n in ("peg", "wall_xp", "wall_xn", "wall_yp", "wall_yn"))
        return {
            "friction": Param(("geom_friction",), geoms, 0.2, 4.0, (0,)),
            "flange_mass": Param(("body_mass", "body_inertia"), (int(model.body("flange").id),), 0.3, 3.0),
            **parameters(model),
        }

    def plan(self, state_ids: Ids) -> Reals:
        """Start states (n, 13): joints (6), position (3) and orientation (4) of the hole."""
        u = counter_rng.uniform(_START_SEED, state_ids, 7)
        hole = np.stack([0.46 + 0.12 * u[:, 0], 0.26 * (u[:, 1] - 0.5), np.zeros(len(u))], axis=1)
        hole_yaw = 1.0 * (u[:, 2] - 0.5)
        offset = np.stack([0.2 * (u[:, 3] - 0.5), 0.2 * (u[:, 4] - 0.5), HOLE_DEPTH_M + 0.05 + 0.07 * u[:, 5]], axis=1)
        yaw = hole_yaw + 1.0 * (u[:, 6] - 0.5)
        return np.concatenate([pointing_down(hole + offset, yaw, PEG_LENGTH_M), upright(hole, hole_yaw)], axis=1)

    def start(self, env_ids: Array, plans: Reals) -> None:
        """Write start states: the arm at rest, held by its servos."""
        found = self._physics.array(plans)
        joints = found[:, :6]
        self.hole_pos_w[env_ids] = found[:, 6:9]
        self._hole_quat[env_ids] = found[:, 9:]
        self.hand.place(env_ids, joints, joints)

    def observe(self, out: Mapping[str, Array], env_ids: Array) -> None:
        """Write observations; `observation_spec` names the columns."""
        xp, arm = self.xp, self.hand.arm
        arm.refresh(env_ids)
        twist = arm.twist(env_ids)
        quat = self._hole_quat[env_ids]
        w, z = quat[:, 0], quat[:, 3]
        cos, sin = w * w - z * z, 2 * w * z
        delta = arm.tip_pos_w[env_ids] - self.hole_pos_w[env_ids]
        # horizontal parts of four vectors, rotated into the hole's frame together
        planar = xp.empty((len(w), 4, 2), dtype=w.dtype, device=w.device)
        for row, vector in enumerate((delta, twist, arm.tool_axis_w[env_ids], arm.side_axis_w[env_ids])):
            planar[:, row] = vector[:, :2]
        x, y, c, s = planar[..., 0], planar[..., 1], cos[:, None], sin[:, None]
        turned = xp.empty((len(w), 4, 2), dtype=w.dtype, device=w.device)
        turned[..., 0] = c * x + s * y
        turned[..., 1] = c * y - s * x
        # a square has quarter-turn symmetry
        yaw = fold(xp.atan2(-turned[:, 3, 0], turned[:, 3, 1]), QUARTER_TURN_RAD, xp)

        self._pos_hole[env_ids, :2] = turned[:, 0]
        self._pos_hole[env_ids, 2] = delta[:, 2] - HOLE_DEPTH_M
        self._yaw_hole[env_ids] = yaw
        self._hole_cos[env_ids], self._hole_sin[env_ids] = cos, sin

        state = out["state"]
        state[env_ids, 0:3] = self._pos_hole[env_ids]
        state[env_ids, 3] = xp.sin(yaw)
        state[env_ids, 4] = xp.cos(yaw)
        state[env_ids, 5:7] = turned[:, 1]
        state[env_ids, 7] = twist[:, 2]
        state[env_ids, 8] = twist[:, 5]
        state[env_ids, 9:11] = turned[:, 2]
        state[env_ids, 11] = sin
        state[env_ids, 12] = cos
        state[env_ids, 13:] = arm.qpos[env_ids]

    def success(self) -> Array:
        """Success flags (N,): the peg is in the hole, at half its depth or deeper."""
        pos = self._pos_hole
        return (pos[:, 2] < -SUCCESS_DEPTH_M) & (self.xp.hypot(pos[:, 0], pos[:, 1]) < PEG_HALF_WIDTH_M / 2)

    def distance(self) -> Array:
        """Distance to success (N,): lateral plus vertical metres, plus 5 cm per radian of yaw error."""
        xp, pos = self.xp, self._pos_hole
        return xp.hypot(pos[:, 0], pos[:, 1]) + xp.abs(pos[:, 2] + SUCCESS_DEPTH_M) + 0.05 * xp.abs(self._yaw_hole)

    def relative(self, env_ids: Array) -> tuple[Array, Array]:
        """Pose of the tip relative to the hole's mouth, in the hole's frame: (n, 3) m, and yaw (n,) in [-pi/4, pi/4).

        As of the last `observe`.
        """
        return self._pos_hole[env_ids], self._yaw_hole[env_ids]

    def hole_direction(self, env_ids: Array) -> tuple[Array, Array]:
        """Cosine and sine (n,) of the hole's yaw in the world frame, as of the last `observe`."""
        return self._hole_cos[env_ids], self._hole_sin[env_ids]


def make_robot(seed: int) -> SimulatedRobot:
    """Make a simulated robot with this task for the control loop; a driver process steps it in real time."""
    from robotrl.sims.mujoco.engine.robot import SimulatedRobot

    return SimulatedRobot(MujocoCore(PegInsert("sparse", CLEARANCE_M, LIMIT_S), 1, seed, threads=1))
