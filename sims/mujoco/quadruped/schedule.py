"""What an episode brings from outside: commands, pushes and measurement noise, each a function of (start id, step).

Nothing is drawn from a generator that would have to be stored: a restored sim, another process and a subset of the envs
all see the same numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.fn.random import counter_rng
from robotrl.sims.mujoco.engine.task import Ids

Array = NDArray[np.float64]

STEP_BITS = 24
"""Steps that one start id has numbers for, as a power of two."""
_COMMAND_SEED, _PUSH_SEED, _PUSH_TIME_SEED, _NOISE_SEED = 0xC0, 0xC1, 0xC2, 0xC3


class CommandCfg(NamedTuple):
    """Which velocities are asked for."""

    speed_mps: float
    """Linear velocities are uniform over the disc of this radius."""
    yaw_rad_s: float
    """Yaw rates are uniform up to this, either way."""
    standing: float
    """Share of commands that are zero."""
    period_steps: int
    """Control steps between two commands."""


class PushCfg(NamedTuple):
    """Kicks to the trunk's velocity."""

    speed_mps: float
    """Horizontal kicks are uniform over the disc of this radius; 0 is none."""
    yaw_rad_s: float
    """Kicks to the yaw rate are uniform up to this, either way."""
    period_steps: int
    """Control steps between two kicks; when the first comes depends on the start id."""


def draw(seed: int, ids: Ids, steps: Ids, streams: int) -> Array:
    """(n, streams) uniform numbers in [0, 1) for (start id, step) pairs."""
    return counter_rng.uniform(seed, (ids << STEP_BITS) + steps, streams)


def commands(cfg: CommandCfg, ids: Ids, steps: Ids) -> Array:
    """Commands (n, 3) in force at the steps: forward and leftward velocity in m/s, yaw rate in rad/s, trunk frame."""
    u = draw(_COMMAND_SEED, ids, steps // cfg.period_steps, 4)
    speed, angle = cfg.speed_mps * np.sqrt(u[:, 0]), 2 * np.pi * u[:, 1]
    out = np.stack([speed * np.cos(angle), speed * np.sin(angle), cfg.yaw_rad_s * (2 * u[:, 2] - 1)], axis=1)
    out[u[:, 3] < cfg.standing] = 0
    return out


def push_offsets(cfg: PushCfg, ids: Ids) -> Ids:
    """(n,) by how many steps the kicks of each start come early."""
    return (counter_rng.uniform(_PUSH_TIME_SEED, ids, 1)[:, 0] * cfg.period_steps).astype(np.int64)


def pushes(cfg: PushCfg, ids: Ids, steps: Ids) -> Array:
    """Kicks (n, 3) of starts that are kicked at these steps: world x and y in m/s, yaw rate in rad/s."""
    u = draw(_PUSH_SEED, ids, steps, 3)
    speed, angle = cfg.speed_mps * np.sqrt(u[:, 0]), 2 * np.pi * u[:, 1]
    return np.stack([speed * np.cos(angle), speed * np.sin(angle), cfg.yaw_rad_s * (2 * u[:, 2] - 1)], axis=1)


def noise(amplitudes: Array, ids: Ids, steps: Ids) -> Array:
    """Measurement noise (n, k), uniform up to the amplitudes (k,) either way."""
    out = draw(_NOISE_SEED, ids, steps, len(amplitudes))
    out -= 0.5
    out *= 2 * amplitudes
    return out
