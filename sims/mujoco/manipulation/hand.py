"""The hand's side of a task of the arm: starts, Cartesian actions and the arm's part of the observation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.engine.physics import Physics
from robotrl.sims.mujoco.engine.task import Ids, Real
from robotrl.sims.mujoco.manipulation.arm import JOINT_RANGE_RAD, JOINTS, ArmControl
from robotrl.spec import Spec

Array = NDArray[np.float64]
Column = tuple[str, str, float, float]
"""Name, unit, low, high."""

STEP_M = 0.04
"""Displacement wanted by an action of 1."""
YAW_STEP_RAD = 0.25
"""Turn wanted by an action of 1."""
INF = float("inf")

JOINT_COLUMNS: tuple[Column, ...] = tuple(
    (f"{name}_pos", "rad", low - 0.1, high + 0.1) for name, (low, high) in zip(JOINTS, JOINT_RANGE_RAD, strict=True)
)
"""Servos may pass a joint's range by up to 0.1 rad."""
HAND_ACTIONS: tuple[Column, ...] = (
    *((f"tip_step_{axis}_w", f"{STEP_M} m", -1.0, 1.0) for axis in "xyz"),
    ("tip_yaw_step_w", f"{YAW_STEP_RAD} rad", -1.0, 1.0),
)


def tip_columns(frame: str) -> tuple[Column, ...]:
    """Pose and velocity of the tip, observed in a frame: "w" is the world's."""
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
"""What `WorldHand` observes."""


def spec_of(columns: tuple[Column, ...]) -> Spec:
    """A one-dimensional spec from its columns."""
    names, units, low, high = zip(*columns, strict=True)
    return Spec((len(columns),), names, units, low, high)


class Hand:
    """The arm of every env, from the tip's side: starts and Cartesian actions.

    Args:
        physics: the simulations; the model holds `arm_mjcf`.
        tool_length_m: flange to tip.
        low_m: (x, y, z) corner of the box, world frame, that actions keep the tip in.
        high_m: the corner opposite.
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
        """(N, 3) the tip, as last observed."""
        self._low, self._high = np.asarray(low_m), np.asarray(high_m)
        self._qpos: Array = batch.bind("qpos")
        self._qvel: Array = batch.bind("qvel")
        self._warmstart: Array = batch.bind("qacc_warmstart")
        self._time: Array = batch.bind("time")
        self._ctrl: Array = physics.ctrl

    def place(self, env_ids: Ids, qpos: Array, ctrl: Array) -> None:
        """Put everything in the envs `env_ids` at rest.

        Args:
            env_ids: (n,).
            qpos: (n, nq).
            ctrl: (n, nu) targets of the servos.
        """
        self._qpos[env_ids] = qpos
        self._qvel[env_ids] = 0
        self._warmstart[env_ids] = 0
        self._time[env_ids] = 0
        self._ctrl[env_ids] = ctrl

    def command(self, actions: Real) -> None:
        """Cartesian steps for actions (N, 4 or more), ordered as `HAND_ACTIONS`; the tip is kept inside the box."""
        target = np.clip(self.pos_w + STEP_M * actions[:, :3], self._low, self._high)
        self.arm.command(target - self.pos_w, YAW_STEP_RAD * actions[:, 3].astype(np.float64))


class WorldHand(Hand):
    """A hand that is observed in the world's frame; the arguments are those of `Hand`."""

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
        """(N,) the tool's yaw, as last observed: 0 where its y axis is the world's."""
        self.vel_w: Array = np.zeros((n, 6))
        """(N, 6) velocity of the tip, as last observed: m/s, then rad/s."""

    def observe(self, state: Real, env_ids: Ids | slice) -> None:
        """Bring the hand up to the physics state, and write `HAND_COLUMNS` into the rows `env_ids` of `state`."""
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
    """Angles mapped to half a period either side of zero, for things that look the same after each period."""
    return angle - period_rad * np.floor(angle / period_rad + 0.5)
