"""Commands, pushes and measurement noise of an episode, each a function of (start id, step).

No random generator has to be stored: a restored sim, another process and a subset of the envs get the same numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.fn.random import counter_rng
from robotrl.sims.mujoco.engine.task import Ids

Array = NDArray[np.float64]

STEP_BITS = 24
"""Maximum number of steps per start id, as a power of two."""
_COMMAND_SEED, _PUSH_SEED, _PUSH_TIME_SEED, _NOISE_SEED = 0xC0, 0xC1, 0xC2, 0xC3


class CommandCfg(NamedTuple):
    """Distribution of velocity commands."""

    speed_mps: float
    """Radius of the disc from which linear velocities are drawn uniformly."""
    yaw_rad_s: float
    """Yaw rates are uniform in plus or minus this."""
    standing: float
    """Fraction of commands that are zero."""
    period_steps: int
    """Control steps between two commands."""


class PushScheduleCfg(NamedTuple):
    """Distribution of pushes, which change the trunk's velocity."""

    speed_mps: float
    """Radius of the disc from which horizontal velocity changes are drawn uniformly; 0 for no pushes."""
    yaw_rad_s: float
    """Yaw-rate changes are uniform in plus or minus this."""
    period_steps: int
    """Control steps between two pushes; the time of the first depends on the start id."""


def draw(seed: int, ids: Ids, steps: Ids, streams: int) -> Array:
    """Uniform random numbers (n, streams) in [0, 1) for (start id, step) pairs."""
    return counter_rng.uniform(seed, (ids << STEP_BITS) + steps, streams)


def commands(cfg: CommandCfg, ids: Ids, steps: Ids) -> Array:
    """Commands (n, 3) at the given steps: forward and leftward velocity in m/s, yaw rate in rad/s, trunk frame."""
    u = draw(_COMMAND_SEED, ids, steps // cfg.period_steps, 4)
    speed, angle = cfg.speed_mps * np.sqrt(u[:, 0]), 2 * np.pi * u[:, 1]
    out = np.stack([speed * np.cos(angle), speed * np.sin(angle), cfg.yaw_rad_s * (2 * u[:, 2] - 1)], axis=1)
    out[u[:, 3] < cfg.standing] = 0
    return out


def push_offsets(cfg: PushScheduleCfg, ids: Ids) -> Ids:
    """Offsets (n,), in steps, by which the pushes of each start come early."""
    return (counter_rng.uniform(_PUSH_TIME_SEED, ids, 1)[:, 0] * cfg.period_steps).astype(np.int64)


def pushes(cfg: PushScheduleCfg, ids: Ids, steps: Ids) -> Array:
    """Pushes (n, 3) of starts due at these steps: changes of world x and y velocity, m/s, and yaw rate, rad/s."""
    u = draw(_PUSH_SEED, ids, steps, 3)
    speed, angle = cfg.speed_mps * np.sqrt(u[:, 0]), 2 * np.pi * u[:, 1]
    return np.stack([speed * np.cos(angle), speed * np.sin(angle), cfg.yaw_rad_s * (2 * u[:, 2] - 1)], axis=1)


def noise(amplitudes: Array, ids: Ids, steps: Ids) -> Array:
    """Measurement noise (n, k), uniform in plus or minus the amplitudes (k,)."""
    out = draw(_NOISE_SEED, ids, steps, len(amplitudes))
    out -= 0.5
    out *= 2 * amplitudes
    return out
