"""Reward terms of `mujoco/quadruped-velocity` as pure functions of batched arrays, and their scales.

The terms follow Rudin et al. 2022 ("Learning to walk in minutes using massively parallel deep reinforcement learning").
Each returns (N,), and computes with the array functions `xp`. The reward of a step is the sum of scale times term,
times the control period: scales are per second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robotrl.sims.mujoco.engine.arrays import Array, ArrayNamespace

TRACKING_VARIANCE = 0.25
"""Squared error, in (m/s)^2 or (rad/s)^2, at which a tracking term is 1/e."""
AIR_TIME_S = 0.1
"""Minimum length of a rewarded swing; shorter swings are jitter."""
AIR_TIME_LIMIT_S = 0.4
"""Swing length at which the air-time reward saturates."""
ONE_FOOT = 0.25
"""Value of the trot term for a single swinging foot; a diagonal pair counts 1."""
STANDING_COMMAND = 0.1
"""Norm of the command below which the robot should stand."""
SOFT_RANGE = 0.9
"""Fraction of each joint's range without a `joint_limit` penalty."""


@dataclass(frozen=True)
class RewardScales:
    """Scale of each term, per second; 0 leaves a term out of the reward (it is still reported)."""

    track_linear: float = 1.5
    track_yaw: float = 0.75
    vertical_speed: float = -2.0
    roll_pitch_rate: float = -0.03
    tilt: float = -2.5
    height: float = -10.0
    torque: float = -1e-4
    joint_acceleration: float = -1e-7
    action_rate: float = -0.005
    air_time: float = 1.0
    trot: float = 1.0
    foot_slip: float = -0.05
    knee_contact: float = -1.0
    joint_limit: float = -5.0
    hip_spread: float = -0.5
    stand_still: float = -0.5
    termination: float = -50.0


def tracking(error_squared: Array, xp: ArrayNamespace = np) -> Array:
    """Tracking reward exp(-error^2 / `TRACKING_VARIANCE`), from 0 to 1."""
    return xp.exp(error_squared / -TRACKING_VARIANCE)


def sum_squares(values: Array, xp: ArrayNamespace = np) -> Array:
    """Sum of squares (N,) of values (N, k), such as torques, accelerations or action differences."""
    return xp.einsum("nk,nk->n", values, values)


def asks_to_stand(command: Array, xp: ArrayNamespace = np) -> Array:
    """Flags (N,) of commands (N, 3) that are (nearly) zero."""
    return sum_squares(command, xp) < STANDING_COMMAND**2


def air_time(seconds: Array, landed: Array, standing: Array, xp: ArrayNamespace = np) -> Array:
    """Air time, s, of the swings that end now, above `AIR_TIME_S` and up to `AIR_TIME_LIMIT_S`; 0 while standing.

    Args:
        seconds: (N, 4) time in the air of each foot, s.
        landed: (N, 4) flags of feet that have just touched down.
        standing: (N,) flags of zero commands, see `asks_to_stand`.
        xp: functions of the arrays.
    """
    gain = xp.clip(seconds, AIR_TIME_S, AIR_TIME_LIMIT_S) - AIR_TIME_S
    return (gain * landed).sum(axis=1) * ~standing


def trot(seconds: Array, contact: Array, standing: Array) -> Array:
    """Trot reward: 1 while exactly one diagonal pair of feet swings, `ONE_FOOT` for a single foot; 0 while standing.

    A foot counts as swinging for at most `AIR_TIME_LIMIT_S`, so holding it up is not rewarded. Without this term the
    policy learns to slide along on its exploration noise, which the deterministic policy lacks.

    Args:
        seconds: (N, 4) time in the air of each foot, s; order FR, FL, RR, RL.
        contact: (N, 4) flags of feet on the ground.
        standing: (N,) flags of zero commands, see `asks_to_stand`.
    """
    up = ~contact
    swings = up & (seconds < AIR_TIME_LIMIT_S)
    count = up.sum(axis=1)
    pair = (swings[:, 0] & swings[:, 3]) | (swings[:, 1] & swings[:, 2])
    one = (count == 1) & swings.any(axis=1)
    return ((count == 2) & pair) * (1.0 * ~standing) + ONE_FOOT * (one & ~standing)


def foot_slip(velocity_w: Array, contact: Array) -> Array:
    """Sum (N,) of the squared horizontal speeds of feet on the ground; velocities (N, 4, 3), contacts (N, 4)."""
    horizontal = velocity_w[:, :, 0] ** 2 + velocity_w[:, :, 1] ** 2
    return (horizontal * contact).sum(axis=1)


def joint_limit(position: Array, low: Array, high: Array, xp: ArrayNamespace = np) -> Array:
    """Sum (N,) of the joints' excursions beyond their soft ranges, rad.

    Args:
        position: (N, 12) joint angles.
        low: (12,) soft lower limits, see `soft_range`.
        high: (12,) soft upper limits.
        xp: functions of the arrays.
    """
    return (xp.clip(low - position, 0, None) + xp.clip(position - high, 0, None)).sum(axis=1)


def soft_range(low: Array, high: Array) -> tuple[Array, Array]:
    """Soft joint limits: the central `SOFT_RANGE` of each joint's range."""
    middle, half = (low + high) / 2, (high - low) / 2 * SOFT_RANGE
    return middle - half, middle + half


def stand_still(offset: Array, standing: Array, xp: ArrayNamespace = np) -> Array:
    """Sum (N,) of the absolute joint offsets (N, 12) from the default pose, rad; 0 unless the command is zero."""
    return xp.abs(offset).sum(axis=1) * standing
