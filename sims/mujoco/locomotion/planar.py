"""Shared code of hopper, walker2d and halfcheetah: planar coordinates, and the reward for running forward."""

from __future__ import annotations

from typing import NamedTuple

from robotrl.sims.mujoco.engine.arrays import Array
from robotrl.sims.mujoco.engine.task import TaskPhysics
from robotrl.sims.mujoco.locomotion.columns import ObsColumn, Segment, joint_positions, joint_velocities
from robotrl.sims.mujoco.locomotion.task import Range, check_weights, checked_range

VELOCITY_CLIP: Range = (-10.0, 10.0)
"""Range, in m/s and rad/s, that hopper and walker2d clip observed velocities to."""


class Health(NamedTuple):
    """Healthy ranges of hopper and walker2d."""

    reward: float
    terminate: bool
    """End the episode when a range is left."""
    z_range: Range
    angle_range: Range
    state_range: Range | None = None
    """Range of all coordinates and velocities except the first two coordinates."""


def coordinates(joints: tuple[str, ...], height: str, clip: Range | None, hide_x: bool) -> tuple[Segment, ...]:
    """Observation segments: positions, then velocities.

    Args:
        joints: the hinges after the root's.
        height: name of the root's second coordinate.
        clip: range that velocities are clipped to.
        hide_x: leave out the first coordinate.
    """
    positions = (
        ObsColumn("torso_pos_x_w", "m"),
        ObsColumn(height, "m"),
        ObsColumn("torso_pitch_w", "rad"),
        *joint_positions(joints),
    )
    velocities = (
        ObsColumn("torso_vel_x_w", "m/s"),
        ObsColumn("torso_vel_z_w", "m/s"),
        ObsColumn("torso_pitch_rate_w", "rad/s"),
        *joint_velocities(joints),
    )
    if clip is None:
        return (Segment("coordinates", positions + velocities, int(hide_x)),)
    return Segment("qpos", positions, int(hide_x)), Segment("qvel", velocities, clip=clip)


class PlanarScore:
    """Reward of the planar tasks: forward speed minus torque cost, plus a healthy bonus if `health` is given.

    Args:
        dt_s: control step, s.
        forward_reward_weight: reward for 1 m/s.
        ctrl_cost_weight: cost of one unit of the sum of squared actions.
        health: healthy ranges and bonus; None if episodes end only at the time limit.

    Raises:
        ConfigError: a weight is not a finite number, or a range is not in order.
    """

    def __init__(
        self, dt_s: float, forward_reward_weight: float, ctrl_cost_weight: float, health: Health | None = None
    ) -> None:
        check_weights(forward_reward_weight=forward_reward_weight, ctrl_cost_weight=ctrl_cost_weight)
        if health is not None:
            check_weights(healthy_reward=health.reward)
            health = health._replace(
                z_range=checked_range("healthy_z_range", health.z_range),
                angle_range=checked_range("healthy_angle_range", health.angle_range),
                state_range=health.state_range and checked_range("healthy_state_range", health.state_range),
            )
        self._dt_s = dt_s
        self._forward = forward_reward_weight
        self._ctrl_cost = ctrl_cost_weight
        self._health = health

    @property
    def ends_early(self) -> bool:
        """True if leaving a healthy range ends the episode."""
        return self._health is not None and self._health.terminate

    def bind(self, physics: TaskPhysics) -> None:
        """Store views of coordinates and controls."""
        self._xp = xp = physics.xp
        qpos = physics.bind("qpos")
        self._x, self._z, self._angle = qpos[:, 0], qpos[:, 1], qpos[:, 2]
        first, *others = physics.coordinates()
        self._rest = (first[:, 2:], *others)
        self._ctrl = physics.ctrl
        self._x_before = xp.zeros_like(self._x)
        self._never = xp.zeros_like(self._x, dtype=xp.bool)

    def before(self) -> None:
        """Store the root's position before the step."""
        self._x_before[:] = self._x

    def after(self) -> tuple[Array, Array]:
        """Reward and end of the last step."""
        xp = self._xp
        reward = (self._x - self._x_before) * (self._forward / self._dt_s)
        reward -= self._ctrl_cost * xp.vecdot(self._ctrl, self._ctrl)
        health = self._health
        if health is None:
            return reward, self._never
        z, angle = self._z, self._angle
        (z_low, z_high), (angle_low, angle_high) = health.z_range, health.angle_range
        healthy = (z > z_low) & (z < z_high) & (angle > angle_low) & (angle < angle_high)
        if health.state_range is not None:
            low, high = health.state_range
            for part in self._rest:
                healthy &= (xp.min(part, axis=1) > low) & (xp.max(part, axis=1) < high)
        reward += health.reward * healthy
        return reward, ~healthy if health.terminate else self._never
