"""The six-joint arm of our MuJoCo tasks: MJCF, closed-form start poses and Cartesian control for all envs at once.

An anthropomorphic arm with a spherical wrist (shoulder yaw and pitch, elbow pitch; wrist roll, pitch, roll), made of
primitive shapes, with gravity compensation and force-limited joint position servos. Control is differential inverse
kinematics: a Cartesian step is turned into a joint step by damped least squares on the geometric Jacobian
(Nakamura and Hanafusa 1986), and the joint servos get measured position plus that step. Nothing is integrated on the
way, so the arm has no hidden controller state and the force it can press with is bounded by servo stiffness times step.
"""

from __future__ import annotations

from typing import NamedTuple

import mujoco.batch
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

JOINTS = ("shoulder_yaw", "shoulder_pitch", "elbow_pitch", "wrist_roll", "wrist_pitch", "flange_roll")
SHOULDER_HEIGHT_M = 0.35
UPPER_ARM_M = 0.38
FOREARM_M = 0.36
FLANGE_M = 0.09
"""Wrist centre to flange."""

JOINT_RANGE_RAD = ((-2.9, 2.9), (-1.2, 2.2), (-0.2, 2.8), (-2.9, 2.9), (-2.2, 2.2), (-3.1, 3.1))
STIFFNESS_NM_PER_RAD = (900.0, 900.0, 720.0, 120.0, 120.0, 60.0)
SERVO_RATE_PER_S = 12.0
"""Stiffness over damping, the same for each joint: then all joints lag alike and the tip moves in a straight line."""
TORQUE_LIMIT_NM = (150.0, 150.0, 100.0, 28.0, 28.0, 28.0)


def arm_mjcf(tool: str) -> tuple[str, str]:
    """MJCF of the arm's body tree and of its actuators.

    Args:
        tool: MJCF elements to put into the flange body; its frame has z along the tool, pointing away from the arm.

    Returns:
        (body XML for <worldbody>, actuator XML for <actuator>).
    """

    def joint(index: int, axis: str) -> str:
        low, high = JOINT_RANGE_RAD[index]
        return (
            f'<joint name="{JOINTS[index]}" axis="{axis}" range="{low} {high}" armature="0.1" damping="1"'
            f' actuatorfrcrange="{-TORQUE_LIMIT_NM[index]} {TORQUE_LIMIT_NM[index]}"/>'
        )

    link = 'contype="0" conaffinity="0" group="1"'
    upper, fore, flange = UPPER_ARM_M, FOREARM_M, FLANGE_M
    body = f"""
<geom name="pedestal" type="cylinder" size="0.075 {SHOULDER_HEIGHT_M / 2 - 0.05}" pos="0 0 {SHOULDER_HEIGHT_M / 2 - 0.05}" rgba="0.25 0.27 0.30 1" {link}/>
<body name="shoulder" pos="0 0 {SHOULDER_HEIGHT_M}" gravcomp="1">
  {joint(0, "0 0 1")}
  <geom type="cylinder" size="0.07 0.06" mass="3" rgba="0.80 0.82 0.85 1" {link}/>
  <body name="upper_arm" gravcomp="1">
    {joint(1, "0 1 0")}
    <geom type="capsule" size="0.05" fromto="0 0 0 0 0 {upper}" mass="3.5" rgba="0.20 0.45 0.70 1" {link}/>
    <body name="forearm" pos="0 0 {upper}" gravcomp="1">
      {joint(2, "0 1 0")}
      <geom type="sphere" size="0.058" mass="0.8" rgba="0.80 0.82 0.85 1" {link}/>
      <geom type="capsule" size="0.042" fromto="0 0 0 0 0 {fore - 0.04}" mass="2" rgba="0.20 0.45 0.70 1" {link}/>
      <body name="wrist" pos="0 0 {fore}" gravcomp="1">
        {joint(3, "0 0 1")}
        <geom type="sphere" size="0.045" mass="0.7" rgba="0.80 0.82 0.85 1" {link}/>
        <body name="hand" gravcomp="1">
          {joint(4, "0 1 0")}
          <geom type="capsule" size="0.034" fromto="0 0 0 0 0 {flange - 0.02}" mass="0.6" rgba="0.20 0.45 0.70 1" {link}/>
          <body name="flange" pos="0 0 {flange}" gravcomp="1">
            {joint(5, "0 0 1")}
            <geom type="cylinder" size="0.036 0.012" mass="0.3" rgba="0.25 0.27 0.30 1" {link}/>
            {tool}
          </body>
        </body>
      </body>
    </body>
  </body>
</body>"""
    actuators = "\n".join(
        f'<position name="{name}" joint="{name}" kp="{kp}" kv="{kp / SERVO_RATE_PER_S}" ctrlrange="{low} {high}" forcerange="{-force} {force}"/>'
        for name, kp, (low, high), force in zip(
            JOINTS, STIFFNESS_NM_PER_RAD, JOINT_RANGE_RAD, TORQUE_LIMIT_NM, strict=True
        )
    )
    return body, actuators


def pointing_down(tip_pos_w: Array, yaw_rad: Array, tool_length_m: float) -> Array:
    """Joint angles (n, 6) that put a tool, pointing straight down, at a position with a yaw; closed form.

    Args:
        tip_pos_w: (n, 3) tool tip, world frame, m.
        yaw_rad: (n,) rotation of the tool about the world's vertical.
        tool_length_m: flange to tip.

    Raises:
        ValueError: a position out of reach, with its index.
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


def wrap(angle: Array) -> Array:
    """Angles mapped to [-pi, pi)."""
    return (angle + np.pi) % (2 * np.pi) - np.pi


class Twist(NamedTuple):
    """Velocity of the tool tip, world frame."""

    linear_mps: Array
    """(N, 3)."""
    angular_radps: Array
    """(N, 3)."""


class ArmControl:
    """Cartesian control of the arm in every simulation of a batch.

    Args:
        batch: the simulations; the model holds `arm_mjcf`.
        tip_site: name of the site at the tool tip, z pointing out of the tool.
        damping: damping of the least squares, in metres or radians per joint radian.
        max_joint_step_rad: joint steps are scaled down to this.
    """

    def __init__(
        self, batch: mujoco.batch.Batch, tip_site: str, damping: float = 0.03, max_joint_step_rad: float = 0.4
    ) -> None:
        model = batch.model
        joint_ids = np.array([model.joint(name).id for name in JOINTS])
        actuator_ids = np.array([model.actuator(name).id for name in JOINTS])
        tip = model.site(tip_site).id
        # the arm comes first in each model, so plain slices serve and nothing is gathered in the hot path
        for found in (joint_ids, actuator_ids):
            if not np.array_equal(found, np.arange(len(JOINTS))):
                raise ValueError("the arm's joints and actuators must be the first of the model")
        n = len(JOINTS)
        self.qpos: Array = batch.bind("qpos")[:, :n]
        self.qvel: Array = batch.bind("qvel")[:, :n]
        self.ctrl: Array = batch.bind("ctrl")[:, :n]
        self.tip_pos_w: Array = batch.bind("site_xpos")[:, tip]
        self._tip_mat: Array = batch.bind("site_xmat")[:, tip]
        self._anchor: Array = batch.bind("xanchor")[:, :n]
        self._axis: Array = batch.bind("xaxis")[:, :n]
        limits = np.asarray(JOINT_RANGE_RAD)
        self._low, self._high = limits[:, 0], limits[:, 1]
        self._jac: Array = np.zeros((batch.nsim, 6, n))
        self._damping2 = damping**2 * np.eye(6)
        self._max_step = max_joint_step_rad

    def refresh(self, env_ids: NDArray[np.int64] | slice) -> None:
        """Compute the Jacobian at the present state; call after the physics moved, before `twist` and `command`."""
        axis = self._axis[env_ids]
        arm = self.tip_pos_w[env_ids][:, None, :] - self._anchor[env_ids]
        jac = np.empty((len(axis), 6, len(JOINTS)))
        jac[:, 0] = axis[..., 1] * arm[..., 2] - axis[..., 2] * arm[..., 1]
        jac[:, 1] = axis[..., 2] * arm[..., 0] - axis[..., 0] * arm[..., 2]
        jac[:, 2] = axis[..., 0] * arm[..., 1] - axis[..., 1] * arm[..., 0]
        jac[:, 3:] = axis.transpose(0, 2, 1)
        self._jac[env_ids] = jac

    @property
    def jacobian(self) -> Array:
        """Geometric Jacobian (N, 6, 6) of the tip as last refreshed: rows linear then angular, world frame."""
        return self._jac

    def twist(self, env_ids: NDArray[np.int64] | slice) -> Twist:
        """Velocity of the tip of the envs `env_ids`."""
        velocity = (self._jac[env_ids] @ self.qvel[env_ids][..., None])[..., 0]
        return Twist(velocity[:, :3], velocity[:, 3:])

    def tool_axis_w(self) -> Array:
        """(N, 3) direction in which the tool points; (0, 0, -1) is straight down."""
        return self._tip_mat.reshape(-1, 3, 3)[:, :, 2]

    def yaw_rad(self) -> Array:
        """(N,) rotation of the tool's y axis about the world's vertical, from the world's y axis."""
        mat = self._tip_mat.reshape(-1, 3, 3)
        return np.arctan2(-mat[:, 0, 1], mat[:, 1, 1])

    def command(self, step_m: Array, yaw_step_rad: Array) -> None:
        """Set the joint servos' targets for one Cartesian step from where the arm is now, tool kept pointing down.

        Args:
            step_m: (N, 3) wanted displacement of the tip, world frame.
            yaw_step_rad: (N,) wanted rotation about the vertical.
        """
        jac = self._jac
        down = self.tool_axis_w()
        error = np.empty((len(jac), 6))
        error[:, :3] = step_m
        # the rotation that brings the tool axis back to straight down: axis x (0, 0, -1)
        error[:, 3] = -down[:, 1]
        error[:, 4] = down[:, 0]
        error[:, 5] = yaw_step_rad
        transposed = jac.transpose(0, 2, 1)
        step = transposed @ np.linalg.solve(jac @ transposed + self._damping2, error[..., None])
        joint_step = step[..., 0]
        largest = np.abs(joint_step).max(axis=1, keepdims=True)
        joint_step *= self._max_step / np.maximum(largest, self._max_step)
        np.clip(self.qpos + joint_step, self._low, self._high, out=self.ctrl)
