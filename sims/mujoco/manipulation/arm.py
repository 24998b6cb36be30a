"""Six-joint arm of the manipulation tasks: MJCF, closed-form start poses, and batched Cartesian control.

An anthropomorphic arm with a spherical wrist (shoulder yaw and pitch, elbow pitch; wrist roll, pitch, roll), made of
primitive shapes, with gravity compensation and force-limited joint position servos. Control is differential inverse
kinematics: a Cartesian step becomes a joint step by damped least squares on the geometric Jacobian (Nakamura and
Hanafusa 1986), and the target of each joint servo is the measured position plus that step. Targets are not integrated,
so the arm has no hidden controller state, and its contact force is bounded by servo stiffness times step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.engine.arrays import Array
from robotrl.sims.mujoco.engine.task import TaskPhysics
from robotrl.sims.mujoco.render.views import AnyView, Raster

Reals = NDArray[np.float64]

JOINTS = ("shoulder_yaw", "shoulder_pitch", "elbow_pitch", "wrist_roll", "wrist_pitch", "flange_roll")
SHOULDER_HEIGHT_M = 0.35
UPPER_ARM_M = 0.38
FOREARM_M = 0.36
FLANGE_M = 0.09
"""Distance from wrist centre to flange."""

JOINT_RANGE_RAD = ((-2.9, 2.9), (-1.2, 2.2), (-0.2, 2.8), (-2.9, 2.9), (-2.2, 2.2), (-3.1, 3.1))
STIFFNESS_NM_PER_RAD = (900.0, 900.0, 720.0, 120.0, 120.0, 60.0)
SERVO_RATE_PER_S = 12.0
"""Stiffness over damping, equal for all joints, so that all lag equally and the tip moves in a straight line."""
TORQUE_LIMIT_NM = (150.0, 150.0, 100.0, 28.0, 28.0, 28.0)

ARM_RASTERS: Mapping[str, AnyView] = {
    "flat_top": Raster("top", (0.52, 0.0, 0.0), 0.7),
    "flat_side": Raster("side", (0.52, 0.0, 0.25), 0.7),
}
"""Orthographic cameras of the workspace, for pixel policies."""


class ArmXml(NamedTuple):
    """MJCF fragments of the arm."""

    defaults: str
    """For <default>: classes of the arm's geoms, which do not collide; the tool may use them too."""
    body: str
    """For <worldbody>; must be its first body."""
    actuators: str
    """For <actuator>; must come first."""


def arm_mjcf(tool: str) -> ArmXml:
    """Build the MJCF of the arm.

    Args:
        tool: MJCF elements to put into the flange body; its frame has z along the tool, pointing away from the arm.
    """

    def joint(index: int, axis: str) -> str:
        low, high = JOINT_RANGE_RAD[index]
        return (
            f'<joint name="{JOINTS[index]}" axis="{axis}" range="{low} {high}" armature="0.1" damping="1"'
            f' actuatorfrcrange="{-TORQUE_LIMIT_NM[index]} {TORQUE_LIMIT_NM[index]}"/>'
        )

    upper, fore, flange = UPPER_ARM_M, FOREARM_M, FLANGE_M
    pedestal = (SHOULDER_HEIGHT_M - 0.06) / 2
    body = f"""
<geom class="arm_dark" type="cylinder" size="0.075 {pedestal}" pos="0 0 {pedestal}"/>
<geom class="arm_dark" type="cylinder" size="0.115 0.012" pos="0 0 0.012"/>
<body name="shoulder" pos="0 0 {SHOULDER_HEIGHT_M}" gravcomp="1">
  {joint(0, "0 0 1")}
  <geom class="arm_light" type="cylinder" size="0.07 0.06" mass="3"/>
  <body name="upper_arm" gravcomp="1">
    {joint(1, "0 1 0")}
    <geom class="arm_blue" type="capsule" size="0.05" fromto="0 0 0 0 0 {upper}" mass="3.5"/>
    <body name="forearm" pos="0 0 {upper}" gravcomp="1">
      {joint(2, "0 1 0")}
      <geom class="arm_light" type="sphere" size="0.058" mass="0.8"/>
      <geom class="arm_blue" type="capsule" size="0.042" fromto="0 0 0 0 0 {fore - 0.04}" mass="2"/>
      <body name="wrist" pos="0 0 {fore}" gravcomp="1">
        {joint(3, "0 0 1")}
        <geom class="arm_light" type="sphere" size="0.045" mass="0.7"/>
        <body name="hand" gravcomp="1">
          {joint(4, "0 1 0")}
          <geom class="arm_blue" type="capsule" size="0.034" fromto="0 0 0 0 0 {flange - 0.02}" mass="0.6"/>
          <body name="flange" pos="0 0 {flange}" gravcomp="1">
            {joint(5, "0 0 1")}
            <geom class="arm_dark" type="cylinder" size="0.036 0.012" mass="0.3"/>
            {tool}
          </body>
        </body>
      </body>
    </body>
  </body>
</body>"""
    actuators = "\n".join(
        f'<position name="{name}" joint="{name}" kp="{kp}" kv="{kp / SERVO_RATE_PER_S}"'
        f' ctrlrange="{low} {high}" forcerange="{-force} {force}"/>'
        for name, kp, (low, high), force in zip(
            JOINTS, STIFFNESS_NM_PER_RAD, JOINT_RANGE_RAD, TORQUE_LIMIT_NM, strict=True
        )
    )
    looks = {"arm_blue": "0.16 0.42 0.72 1", "arm_light": "0.84 0.86 0.88 1", "arm_dark": "0.20 0.22 0.25 1"}
    defaults = "\n".join(
        f'<default class="{name}"><geom contype="0" conaffinity="0" group="1" rgba="{rgba}"/></default>'
        for name, rgba in looks.items()
    )
    return ArmXml(defaults, body, actuators)


def pointing_down(tip_pos_w: Reals, yaw_rad: Reals, tool_length_m: float) -> Reals:
    """Closed-form inverse kinematics: joint angles (n, 6) for a tool pointing straight down at a position and yaw.

    Args:
        tip_pos_w: (n, 3) tool tip, world frame, m.
        yaw_rad: (n,) rotation of the tool about the world's vertical.
        tool_length_m: distance from flange to tip.

    Raises:
        ValueError: a position is out of reach; the message gives its index.
    """
    x, y = tip_pos_w[:, 0], tip_pos_w[:, 1]
    base = np.arctan2(y, x)
    reach = np.hypot(x, y)
    height = tip_pos_w[:, 2] + tool_length_m + FLANGE_M - SHOULDER_HEIGHT_M
    distance2 = reach**2 + height**2
    cosine = (distance2 - UPPER_ARM_M**2 - FOREARM_M**2) / (2 * UPPER_ARM_M * FOREARM_M)
    if (np.abs(cosine) > 1).any():
        index = int(np.argmax(np.abs(cosine)))
        raise ValueError(f"tip_pos_w[{index}] = {tip_pos_w[index].tolist()} is out of the arm's reach")
    elbow = np.arccos(cosine)
    # angles are measured from the vertical, elbow up
    shoulder = np.arctan2(reach, height) - np.arctan2(FOREARM_M * np.sin(elbow), UPPER_ARM_M + FOREARM_M * cosine)
    pitch = np.pi - shoulder - elbow
    zero = np.zeros_like(base)
    # the tool points down, so turning the flange by +a turns the tool by -a about the world's vertical
    return np.stack([base, shoulder, elbow, zero, pitch, wrap(base - yaw_rad)], axis=1)


def wrap(angle: Reals) -> Reals:
    """Map angles to [-pi, pi)."""
    return (angle + np.pi) % (2 * np.pi) - np.pi


class ArmControl:
    """Kinematics and Cartesian control of the arm in every env, on either engine.

    Kinematics are computed in closed form from joint angles and velocities: MuJoCo's derived fields lag one physics
    step behind, and updating them would cost 5 % of the simulation time. Tests compare them with MuJoCo's.

    Args:
        physics: the simulations; the model contains `arm_mjcf`.
        tool_length_m: distance from flange to tool tip.
        damping: damping of the least squares, in metres or radians per joint radian.
        max_joint_step_rad: larger joint steps are scaled down to this.
    """

    def __init__(
        self, physics: TaskPhysics, tool_length_m: float, damping: float = 0.03, max_joint_step_rad: float = 0.4
    ) -> None:
        model = physics.model
        joint_ids = np.array([model.joint(name).id for name in JOINTS])
        actuator_ids = np.array([model.actuator(name).id for name in JOINTS])
        # the arm comes first in each model, so slices suffice and the hot path needs no gather
        for found in (joint_ids, actuator_ids):
            if not np.array_equal(found, np.arange(len(JOINTS))):
                raise ValueError("the arm's joints and actuators must be the first of the model")
        n = len(JOINTS)
        self._xp, self._solve = physics.xp, physics.solve
        self.qpos: Array = physics.bind("qpos")[:, :n]
        self.qvel: Array = physics.bind("qvel")[:, :n]
        self.ctrl: Array = physics.ctrl[:, :n]
        self._hand_m = FLANGE_M + tool_length_m
        # rows: linear, then angular part of each joint's Jacobian column, then the three vectors below
        self._vectors: Array = physics.zeros((2 * n + 3, 3))
        self._columns: Array = self._vectors[:, : 2 * n].reshape(physics.num_envs, n, 6)
        self._rows: Array = physics.zeros((6, n))
        self._error: Array = physics.zeros((6, 1))
        self.tip_pos_w: Array = self._vectors[:, 2 * n]
        """(N, 3) tool tip, world frame, m."""
        self.tool_axis_w: Array = self._vectors[:, 2 * n + 1]
        """(N, 3) unit direction of the tool, world frame; (0, 0, -1) is straight down."""
        self.side_axis_w: Array = self._vectors[:, 2 * n + 2]
        """(N, 3) y axis of the tool, world frame."""
        limits = np.asarray(JOINT_RANGE_RAD)
        self._low, self._high = physics.array(limits[:, 0]), physics.array(limits[:, 1])
        self._damping2 = physics.array(damping**2 * np.eye(6))
        self._max_step = physics.array(np.array(max_joint_step_rad))

    def refresh(self, env_ids: Array) -> None:
        """Recompute tip, axes and Jacobian; call after the joints moved and before any other method."""
        xp, joints = self._xp, self.qpos[env_ids]
        angle = xp.empty((len(JOINTS), len(joints)), dtype=joints.dtype, device=joints.device)
        angle[:] = joints.T
        angle[2] += angle[1]  # both pitches are about one axis: the forearm's angle to the vertical
        sin, cos = xp.sin(angle), xp.cos(angle)
        hand = self._hand_m
        # in the frame that turns with the base, x along the reach
        wrist_x = UPPER_ARM_M * sin[1] + FOREARM_M * sin[2]
        wrist_z = UPPER_ARM_M * cos[1] + FOREARM_M * cos[2]
        roll_x, roll_z = cos[3] * cos[2], -cos[3] * sin[2]
        tool_x, tool_y, tool_z = sin[4] * roll_x + cos[4] * sin[2], sin[4] * sin[3], sin[4] * roll_z + cos[4] * cos[2]
        front_x, front_y, front_z = (
            cos[4] * roll_x - sin[4] * sin[2],
            cos[4] * sin[3],
            cos[4] * roll_z - sin[4] * cos[2],
        )
        pitch_x, pitch_y, pitch_z = -sin[3] * cos[2], cos[3], sin[3] * sin[2]
        tip_x, tip_y, tip_z = wrist_x + hand * tool_x, hand * tool_y, wrist_z + hand * tool_z

        out = xp.zeros((len(joints), *self._vectors.shape[1:]), dtype=joints.dtype, device=joints.device)
        out[:, 0, 0], out[:, 0, 1] = -tip_y, tip_x
        out[:, 1, 2] = 1.0
        out[:, 2, 0], out[:, 2, 2] = tip_z, -tip_x
        out[:, 3, 1] = 1.0
        out[:, 4, 0], out[:, 4, 2] = tip_z - UPPER_ARM_M * cos[1], UPPER_ARM_M * sin[1] - tip_x
        out[:, 5, 1] = 1.0
        out[:, 6, 0], out[:, 6, 2] = -hand * cos[2] * tool_y, hand * sin[2] * tool_y
        out[:, 6, 1] = hand * (cos[2] * tool_x - sin[2] * tool_z)
        out[:, 7, 0], out[:, 7, 2] = sin[2], cos[2]
        out[:, 8, 0], out[:, 8, 1], out[:, 8, 2] = hand * front_x, hand * front_y, hand * front_z
        out[:, 9, 0], out[:, 9, 1], out[:, 9, 2] = pitch_x, pitch_y, pitch_z
        out[:, 11, 0], out[:, 11, 1], out[:, 11, 2] = tool_x, tool_y, tool_z
        out[:, 12, 0], out[:, 12, 1], out[:, 12, 2] = tip_x, tip_y, tip_z + SHOULDER_HEIGHT_M
        out[:, 13] = out[:, 11]
        out[:, 14, 0] = cos[5] * pitch_x - sin[5] * front_x
        out[:, 14, 1] = cos[5] * pitch_y - sin[5] * front_y
        out[:, 14, 2] = cos[5] * pitch_z - sin[5] * front_z

        vectors = self._vectors
        sin0, cos0 = sin[0][:, None], cos[0][:, None]
        vectors[env_ids, :, 0] = cos0 * out[..., 0] - sin0 * out[..., 1]
        vectors[env_ids, :, 1] = sin0 * out[..., 0] + cos0 * out[..., 1]
        vectors[env_ids, :, 2] = out[..., 2]

    @property
    def jacobian(self) -> Array:
        """Geometric Jacobian (N, 6, 6) of the tip as last refreshed: rows linear then angular, world frame."""
        return self._columns.mT

    def twist(self, env_ids: Array) -> Array:
        """Velocity (n, 6) of the tip of the envs `env_ids`, world frame: linear in m/s, then angular in rad/s."""
        # a product for each env, not one einsum: results must not depend on the number of envs
        return (self.qvel[env_ids][:, None, :] @ self._columns[env_ids])[:, 0]

    def command(self, step_m: Array, yaw_step_rad: Array) -> None:
        """Set the joint targets for one Cartesian step from the present pose; the tool is kept pointing down.

        Args:
            step_m: (N, 3) desired displacement of the tip, world frame.
            yaw_step_rad: (N,) desired rotation about the vertical.
        """
        xp, columns, error = self._xp, self._columns, self._error
        down = self.tool_axis_w
        error[:, :3, 0] = step_m
        # rotation that turns the tool axis back to straight down: cross product of axis and (0, 0, -1)
        error[:, 3, 0] = -down[:, 1]
        error[:, 4, 0] = down[:, 0]
        error[:, 5, 0] = yaw_step_rad
        # a product of contiguous stacks is eight times faster than one with a transposed view
        self._rows[:] = self.jacobian
        normal = self._rows @ columns
        normal += self._damping2
        joint_step = (columns @ self._solve(normal, error))[..., 0]
        largest = xp.max(xp.abs(joint_step), axis=1, keepdims=True)
        joint_step *= self._max_step / xp.maximum(largest, self._max_step)
        self.ctrl[:] = xp.clip(self.qpos + joint_step, self._low, self._high)
