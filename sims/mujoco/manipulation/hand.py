"""Arm seen from its tool tip: start states, Cartesian actions and the arm's observation columns."""

from __future__ import annotations

import numpy as np

from robotrl.sims.mujoco.engine.arrays import Array, ArrayNamespace
from robotrl.sims.mujoco.engine.task import TaskPhysics
from robotrl.sims.mujoco.manipulation.arm import JOINT_RANGE_RAD, JOINTS, ArmControl
from robotrl.spec import Spec

Column = tuple[str, str, float, float]
"""Observation or action column: name, unit, low, high."""

STEP_M = 0.04
"""Displacement commanded by an action of 1."""
YAW_STEP_RAD = 0.25
"""Rotation commanded by an action of 1."""
INF = float("inf")

JOINT_COLUMNS: tuple[Column, ...] = tuple(
    (f"{name}_pos", "rad", low - 0.1, high + 0.1) for name, (low, high) in zip(JOINTS, JOINT_RANGE_RAD, strict=True)
)
"""Observation columns of the joint positions; servos may exceed a joint's range by up to 0.1 rad."""
HAND_ACTIONS: tuple[Column, ...] = (
    *((f"tip_step_{axis}_w", f"{STEP_M} m", -1.0, 1.0) for axis in "xyz"),
    ("tip_yaw_step_w", f"{YAW_STEP_RAD} rad", -1.0, 1.0),
)


def tip_columns(frame: str) -> tuple[Column, ...]:
    """Observation columns of the tip's pose and velocity; `frame` is the suffix of the frame, "w" for world."""
    return (
        *((f"tip_pos_{axis}_{frame}", "m", -1.0, 1.0) for axis in "xyz"),
        (f"tip_yaw_sin_{frame}", "1", -1.0, 1.0),
        (f"tip_yaw_cos_{frame}", "1", -1.0, 1.0),
        *((f"tip_vel_{axis}_{frame}", "m/s", -INF, INF) for axis in "xyz"),
        ("tip_yaw_rate_w", "rad/s", -INF, INF),
        (f"tool_axis_x_{frame}", "1", -1.0, 1.0),
        (f"tool_axis_y_{frame}", "1", -1.0, 1.0),
    )


HAND_COLUMNS: tuple[Column, ...] = (*tip_columns("w"), *JOINT_COLUMNS)
"""Observation columns of `WorldHand`."""


def odd_columns(frame: str) -> frozenset[str]:
    """Columns of the hand and of its actions whose sign changes in the mirror of the arm's plane.

    Args:
        frame: suffix of the frame of the tip's pose, as of `tip_columns`.
    """
    tip = (f"tip_pos_y_{frame}", f"tip_yaw_sin_{frame}", f"tip_vel_y_{frame}", f"tool_axis_y_{frame}")
    joints = ("shoulder_yaw_pos", "wrist_roll_pos", "flange_roll_pos")
    return frozenset((*tip, "tip_yaw_rate_w", *joints, "tip_step_y_w", "tip_yaw_step_w"))


def spec_of(columns: tuple[Column, ...]) -> Spec:
    """Build a one-dimensional spec from columns."""
    names, units, low, high = zip(*columns, strict=True)
    return Spec((len(columns),), names, units, low, high)


class Hand:
    """Tool-tip interface to the arm of all envs: start states and Cartesian actions.

    Args:
        physics: the simulations; the model contains `arm_mjcf`.
        tool_length_m: distance from flange to tip.
        low_m: lower corner (x, y, z), world frame, of the workspace box that limits the tip's targets.
        high_m: upper corner of that box.
    """

    def __init__(
        self,
        physics: TaskPhysics,
        tool_length_m: float,
        low_m: tuple[float, float, float],
        high_m: tuple[float, float, float],
    ) -> None:
        self.arm = ArmControl(physics, tool_length_m)
        self.pos_w: Array = self.arm.tip_pos_w
        """(N, 3) tip position, world frame, m, as last observed."""
        self._xp = physics.xp
        self._low, self._high = physics.array(np.asarray(low_m)), physics.array(np.asarray(high_m))
        self._qpos: Array = physics.bind("qpos")
        self._qvel: Array = physics.bind("qvel")
        self._warmstart: Array = physics.bind("qacc_warmstart")
        self._time: Array = physics.bind("time")
        self._ctrl: Array = physics.ctrl

    def place(self, env_ids: Array, qpos: Array, ctrl: Array) -> None:
        """Set positions and servo targets of the envs `env_ids`, at rest.

        Args:
            env_ids: (n,) envs.
            qpos: (n, nq) positions.
            ctrl: (n, nu) servo targets.
        """
        self._qpos[env_ids] = qpos
        self._qvel[env_ids] = 0
        self._warmstart[env_ids] = 0
        self._time[env_ids] = 0
        self._ctrl[env_ids] = ctrl

    def command(self, actions: Array) -> None:
        """Command Cartesian steps from actions (N, 4 or more), ordered as `HAND_ACTIONS`; the box limits the tip."""
        xp, here = self._xp, self.pos_w
        target = xp.clip(here + STEP_M * actions[:, :3], self._low, self._high)
        self.arm.command(target - here, YAW_STEP_RAD * xp.asarray(actions[:, 3], dtype=here.dtype))


class WorldHand(Hand):
    """Hand with observations in the world frame; same arguments as `Hand`."""

    def __init__(
        self,
        physics: TaskPhysics,
        tool_length_m: float,
        low_m: tuple[float, float, float],
        high_m: tuple[float, float, float],
    ) -> None:
        super().__init__(physics, tool_length_m, low_m, high_m)
        self.yaw_w: Array = physics.zeros()
        """(N,) yaw of the tool, rad, as last observed; 0 if its y axis is the world's."""
        self.vel_w: Array = physics.zeros((6,))
        """(N, 6) velocity of the tip as last observed: linear in m/s, then angular in rad/s."""

    def observe(self, state: Array, env_ids: Array) -> None:
        """Update the hand from the physics state, and write `HAND_COLUMNS` into the rows `env_ids` of `state`."""
        xp, arm = self._xp, self.arm
        arm.refresh(env_ids)
        twist = arm.twist(env_ids)
        side = arm.side_axis_w[env_ids]
        yaw = xp.atan2(-side[:, 0], side[:, 1])
        self.yaw_w[env_ids] = yaw
        self.vel_w[env_ids] = twist
        state[env_ids, 0:3] = arm.tip_pos_w[env_ids]
        state[env_ids, 3] = xp.sin(yaw)
        state[env_ids, 4] = xp.cos(yaw)
        state[env_ids, 5:8] = twist[:, :3]
        state[env_ids, 8] = twist[:, 5]
        state[env_ids, 9:11] = arm.tool_axis_w[env_ids, :2]
        state[env_ids, 11:17] = arm.qpos[env_ids]


def fold(angle: Array, period_rad: float, xp: ArrayNamespace = np) -> Array:
    """Map angles to [-period/2, period/2), for objects with rotational symmetry; `xp` has the array's functions."""
    return angle - period_rad * xp.floor(angle / period_rad + 0.5)
