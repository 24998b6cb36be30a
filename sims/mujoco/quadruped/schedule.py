"""Commands, pushes and measurement noise of an episode, each a function of (start id, step).

No random generator has to be stored: a restored sim, another process and a subset of the envs get the same numbers.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from robotrl.fn.random import counter_rng
from robotrl.sims.mujoco.engine.arrays import Array, ArrayNamespace
from robotrl.sims.mujoco.engine.task import Ids

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


class UniformSource(Protocol):
    """Where numbers are drawn: on the host, or by a `TaskPhysics` on its device."""

    @property
    def xp(self) -> ArrayNamespace:
        """Functions of its arrays."""
        ...

    def uniform(self, seed: int, index: Array, streams: int) -> Array:
        """Numbers (n, streams) of `counter_rng.uniform`, float64."""
        ...


class HostDraws:
    """Draws on the host."""

    xp: ArrayNamespace = np

    def uniform(self, seed: int, index: Ids, streams: int) -> Array:
        """See `counter_rng.uniform`."""
        return counter_rng.uniform(seed, index, streams)


HOST = HostDraws()


def draw(seed: int, ids: Array, steps: Array, streams: int, on: UniformSource = HOST) -> Array:
    """Uniform random numbers (n, streams) in [0, 1), float64, for (start id, step) pairs."""
    return on.uniform(seed, (ids << STEP_BITS) + steps, streams)


def commands(cfg: CommandCfg, ids: Array, steps: Array, on: UniformSource = HOST) -> Array:
    """Commands (n, 3), float64, at the given steps: forward and leftward velocity in m/s, yaw rate in rad/s.

    The frame is the trunk's.
    """
    u = draw(_COMMAND_SEED, ids, steps // cfg.period_steps, 4, on)
    out = _planar(cfg.speed_mps, cfg.yaw_rad_s, u, on.xp)
    return on.xp.where((u[:, 3] < cfg.standing)[:, None], 0.0, out)


def _planar(speed_mps: float, yaw_rad_s: float, u: Array, xp: ArrayNamespace) -> Array:
    """Planar velocities (n, 3) from uniform numbers (n, 3 or more): uniform on a disc, and a uniform yaw rate."""
    speed, angle = speed_mps * xp.sqrt(u[:, 0]), 2 * np.pi * u[:, 1]
    return xp.stack([speed * xp.cos(angle), speed * xp.sin(angle), yaw_rad_s * (2 * u[:, 2] - 1)], axis=1)


def push_offsets(cfg: PushScheduleCfg, ids: Ids) -> Ids:
    """Offsets (n,), on the host, in steps, by which the pushes of each start come early."""
    return (counter_rng.uniform(_PUSH_TIME_SEED, ids, 1)[:, 0] * cfg.period_steps).astype(np.int64)


def pushes(cfg: PushScheduleCfg, ids: Array, steps: Array, on: UniformSource = HOST) -> Array:
    """Pushes (n, 3), float64, of starts due at these steps.

    They are changes of world x and y velocity, m/s, and yaw rate, rad/s.
    """
    return _planar(cfg.speed_mps, cfg.yaw_rad_s, draw(_PUSH_SEED, ids, steps, 3, on), on.xp)


def noise(amplitudes: Array, ids: Array, steps: Array, on: UniformSource = HOST) -> Array:
    """Measurement noise (n, k), float64, uniform in plus or minus the amplitudes (k,)."""
    out = draw(_NOISE_SEED, ids, steps, len(amplitudes), on)
    out -= 0.5
    out *= 2 * amplitudes
    return out
