"""Scripted expert of `mujoco/peg-insert`.

It sets the peg down on the fixture beside the hole, on one of two sides, and slides it until it drops in: a contact
search, as people do it. `noise` perturbs each action; `episode_noise` degrades whole episodes (a wrong estimate of the
hole's pose, slower motion).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.manipulation.expert_noise import ArmExpert
from robotrl.sims.mujoco.manipulation.hand import STEP_M, YAW_STEP_RAD
from robotrl.sims.mujoco.manipulation.peg_insert import PegInsert

Array = NDArray[np.float64]

MODES = ("left", "right")
LANDING_OFFSET_M = 0.03
HOVER_M = 0.02
SLIDE_STEP_M = 0.014
OVERSHOOT_M = 0.004
"""Distance past the centre that the slide aims for, so that friction does not stop it short of the hole."""
PRESS_M = 0.004
"""Depth below the surface that the tip aims for while it slides: enough to find the hole, too little to jam."""
APPROACH, LAND, SLIDE = 0, 1, 2


class PegExpert(ArmExpert[PegInsert]):
    """Scripted expert for `PegInsert`; acts on all envs of a core at once and reads privileged state.

    Args:
        core: a core whose task is `PegInsert`.
        noise: standard deviation of Gaussian noise on each action, 0 to 1 (an action spans [-1, 1]).
        episode_noise: scale of errors drawn once per episode, 0 to 1; at 1 the estimate of the hole's pose is off by
            some millimetres and hundredths of a radian.
        mode: "left" or "right", or None to draw one for each episode.
        seed: seed of noise, errors and modes.

    Raises:
        ConfigError: unknown mode, or a value out of range.
    """

    modes: tuple[str, ...] = MODES
    solves = PegInsert

    def __init__(
        self, core: MujocoCore, noise: float = 0.0, episode_noise: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> None:
        super().__init__(core, noise, episode_noise, mode, seed)
        n = core.num_envs
        self._phase = np.zeros(n, np.int64)
        self._sweep: Array = np.ones(n)
        self._bias: Array = np.zeros((n, 3))

    def act(self, started: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Actions (N, 4); `started` (N,) marks envs at the first step of an episode."""
        if started.any():
            self._begin(np.flatnonzero(started))
        rel, yaw = self._task.relative(slice(None))
        x, y, z = rel[:, 0] - self._bias[:, 0], rel[:, 1] - self._bias[:, 1], rel[:, 2]
        turn = yaw - self._bias[:, 2]
        landing = np.where(self.mode == 0, -LANDING_OFFSET_M, LANDING_OFFSET_M)

        above = (np.abs(x - landing) < 0.006) & (np.abs(y) < 0.003) & (np.abs(turn) < 0.04)
        self._phase[(self._phase == APPROACH) & above & (z < HOVER_M + 0.015)] = LAND
        self._phase[(self._phase == LAND) & (z < 0.002)] = SLIDE
        phase = self._phase

        # desired displacement in this step, m and rad, in the hole's frame
        # sweep across the centre and back until the peg drops in
        arrived = (phase == SLIDE) & (self._sweep * x > OVERSHOOT_M - 0.002)
        self._sweep[arrived] *= -1
        beyond = OVERSHOOT_M * self._sweep
        want_x = np.where(phase == SLIDE, np.clip(2 * (beyond - x), -SLIDE_STEP_M, SLIDE_STEP_M), landing - x)
        want_y = np.where(phase == SLIDE, -2 * y, -y)
        want_z = np.select([phase == APPROACH, phase == LAND], [HOVER_M - z, np.full_like(z, -0.012)], -PRESS_M)
        inside = z < -0.004
        want_z = np.where(inside, -STEP_M, want_z)
        cos, sin = self._task.hole_direction(slice(None))
        action = np.empty((len(x), 4))
        action[:, 0] = cos * want_x - sin * want_y
        action[:, 1] = sin * want_x + cos * want_y
        action[:, 2] = want_z
        action[:, :3] *= self._noise.gain / STEP_M
        action[:, 3] = -turn / YAW_STEP_RAD
        return self._noise.shake(action)

    def _begin(self, envs: NDArray[np.int64]) -> None:
        self._noise.begin(envs)
        self._phase[envs] = APPROACH
        self._sweep[envs] = np.where(self.mode[envs] == 0, 1.0, -1.0)
        self._bias[envs] = self._noise.errors(len(envs), (0.003, 0.003, 0.03))
        self._noise.slow(envs)
