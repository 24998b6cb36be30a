"""Arm seen from its tool tip: start states, Cartesian actions and the arm's observation columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.engine.physics import Physics
from robotrl.sims.mujoco.engine.task import Ids, Real
from robotrl.sims.mujoco.manipulation.arm import JOINT_RANGE_RAD, JOINTS, ArmControl
from robotrl.spec import Spec

Array = NDArray[np.float64]
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
        physics: Physics,
        tool_length_m: float,
        low_m: tuple[float, float, float],
        high_m: tuple[float, float, float],
    ) -> None:
        batch = physics.batch
        self.arm = ArmControl(batch, tool_length_m)
        self.pos_w: Array = self.arm.tip_pos_w
        """(N, 3) tip position, world frame, m, as last observed."""
        self._low, self._high = np.asarray(low_m), np.asarray(high_m)
        self._qpos: Array = batch.bind("qpos")
        self._qvel: Array = batch.bind("qvel")
        self._warmstart: Array = batch.bind("qacc_warmstart")
        self._time: Array = batch.bind("time")
        self._ctrl: Array = physics.ctrl

    def place(self, env_ids: Ids, qpos: Array, ctrl: Array) -> None:
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

    def command(self, actions: Real) -> None:
        """Command Cartesian steps from actions (N, 4 or more), ordered as `HAND_ACTIONS`; the box limits the tip."""
        target = np.clip(self.pos_w + STEP_M * actions[:, :3], self._low, self._high)
        self.arm.command(target - self.pos_w, YAW_STEP_RAD * actions[:, 3].astype(np.float64))


class WorldHand(Hand):
    """Hand with observations in the world frame; same arguments as `Hand`."""

    def __init__(
        self,
        physics: Physics,
        tool_length_m: float,
        low_m: tuple[float, float, float],
        high_m: tuple[float, float, float],
    ) -> None:
        super().__init__(physics, tool_length_m, low_m, high_m)
        n = physics.batch.nsim
        self.yaw_w: Array = np.zeros(n)
        """(N,) yaw of the tool, rad, as last observed; 0 if its y axis is the world's."""
        self.vel_w: Array = np.zeros((n, 6))
        """(N, 6) velocity of the tip as last observed: linear in m/s, then angular in rad/s."""

    def observe(self, state: Real, env_ids: Ids | slice) -> None:
        """Update the hand from the physics state, and write `HAND_COLUMNS` into the rows `env_ids` of `state`."""
        arm = self.arm
        arm.refresh(env_ids)
        twist = arm.twist(env_ids)
        side = arm.side_axis_w[env_ids]
        yaw = np.arctan2(-side[:, 0], side[:, 1])
        self.yaw_w[env_ids] = yaw
        self.vel_w[env_ids] = twist
        state[env_ids, 0:3] = arm.tip_pos_w[env_ids]
        state[env_ids, 3] = np.sin(yaw)
        state[env_ids, 4] = np.cos(yaw)
        state[env_ids, 5:8] = twist[:, :3]
        state[env_ids, 8] = twist[:, 5]
        state[env_ids, 9:11] = arm.tool_axis_w[env_ids, :2]
        state[env_ids, 11:17] = arm.qpos[env_ids]


def fold(angle: Array, period_rad: float) -> Array:
    """Map angles to [-period/2, period/2), for objects with rotational symmetry."""
    return angle - period_rad * np.floor(angle / period_rad + 0.5)
