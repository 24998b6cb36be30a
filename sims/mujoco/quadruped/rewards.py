"""Reward terms of `mujoco/quadruped-velocity`: pure functions of arrays of all envs, and their scales.

The terms are those in use for walking robots since Rudin et al. 2022 ("Learning to walk in minutes using massively
parallel deep reinforcement learning"). Each gives (N,); the reward of a step is the sum of scale times term, times the
control period, so that a scale is per second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

TRACKING_VARIANCE = 0.25
"""Squared error, in (m/s)^2 or (rad/s)^2, at which a tracking term has fallen to 1/e."""
AIR_TIME_S = 0.1
"""Swings count from this length on: shorter ones are a foot that trembles."""
AIR_TIME_LIMIT_S = 0.4
"""Swings are worth no more beyond it."""
ONE_FOOT = 0.25
"""What one swinging foot counts, where a diagonal pair counts 1."""
STANDING_COMMAND = 0.1
"""A command whose norm is below this asks to stand."""
SOFT_RANGE = 0.9
"""Share of each joint's range that is free of `joint_limit`."""


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


def tracking(error_squared: Array) -> Array:
    """1 at no error, 1/e where the squared error is `TRACKING_VARIANCE`."""
    return np.exp(error_squared / -TRACKING_VARIANCE)


def sum_squares(values: Array) -> Array:
    """(N,) from (N, k); also of torques, accelerations, rates and differences of actions."""
    return np.einsum("nk,nk->n", values, values)


def asks_to_stand(command: Array) -> Mask:
    """(N,) whether the command (N, 3) is (nearly) zero."""
    return sum_squares(command) < STANDING_COMMAND**2


def air_time(seconds: Array, landed: Mask, standing: Mask) -> Array:
    """Length of the swings that end now, beyond `AIR_TIME_S`, in s; nothing while asked to stand.

    Args:
        seconds: (N, 4) how long each foot has been in the air.
        landed: (N, 4) feet that touch the ground again.
        standing: (N,) see `asks_to_stand`.
    """
    gain = np.clip(seconds, AIR_TIME_S, AIR_TIME_LIMIT_S) - AIR_TIME_S
    return (gain * landed).sum(axis=1) * ~standing


def trot(seconds: Array, contact: Mask, standing: Mask) -> Array:
    """1 while exactly one diagonal pair of feet swings, `ONE_FOOT` while one foot does; nothing while asked to stand.

    A foot swings until it has been up for `AIR_TIME_LIMIT_S`: holding it up does not pay. Without this term a robot
    finds a way to slide along on the tremor of its exploration, which the mean action has not.

    Args:
        seconds: (N, 4) how long each foot has been in the air; FR, FL, RR, RL.
        contact: (N, 4) feet on the ground.
        standing: (N,) see `asks_to_stand`.
    """
    up = ~contact
    swings = up & (seconds < AIR_TIME_LIMIT_S)
    count = up.sum(axis=1)
    pair = (swings[:, 0] & swings[:, 3]) | (swings[:, 1] & swings[:, 2])
    one = (count == 1) & swings.any(axis=1)
    return ((count == 2) & pair) * (1.0 * ~standing) + ONE_FOOT * (one & ~standing)


def foot_slip(velocity_w: Array, contact: Mask) -> Array:
    """Squared horizontal speed of the feet (N, 4, 3) that are on the ground (N, 4)."""
    horizontal = velocity_w[:, :, 0] ** 2 + velocity_w[:, :, 1] ** 2
    return (horizontal * contact).sum(axis=1)


def joint_limit(position: Array, low: Array, high: Array) -> Array:
    """By how much joints (N, 12) leave their soft ranges, summed, in rad.

    Args:
        position: joint angles.
        low: (12,) soft lower limits, see `soft_range`.
        high: (12,) soft upper limits.
    """
    return (np.maximum(low - position, 0) + np.maximum(position - high, 0)).sum(axis=1)


def soft_range(low: Array, high: Array) -> tuple[Array, Array]:
    """Limits of the middle `SOFT_RANGE` of each joint's range."""
    middle, half = (low + high) / 2, (high - low) / 2 * SOFT_RANGE
    return middle - half, middle + half


def stand_still(offset: Array, standing: Mask) -> Array:
    """How far the joints (N, 12) are from the default pose, summed, in rad; only while asked to stand."""
    return np.abs(offset).sum(axis=1) * standing
