"""Scripted expert of `mujoco/press`: goes over the goal and down, or down at once and along the surface to the goal.

It sees what a policy sees: the estimated height of the surface and the contact force. It comes down at a speed that is
safe where the estimate is right or the surface soft, and a violation of the force limit elsewhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.manipulation.expert_noise import ArmExpert
from robotrl.sims.mujoco.manipulation.hand import STEP_M
from robotrl.sims.mujoco.manipulation.press import Press

Array = NDArray[np.float64]

MODES = ("over", "along")
FAST, SLOW = -0.5, -0.3
"""Vertical actions far above the estimated surface, and near or below it."""
NEAR_M = 0.01
"""Height above the estimate below which the expert comes down slowly."""
CLEAR_M = 0.03
"""Height above the estimate at which it goes over to the goal."""
PRESS = -0.075
"""Vertical action in contact; it presses with 5 to 23 N, by the arm's pose, and mostly about 10."""
SLIDE = 0.4
"""Largest horizontal action in contact."""
TOUCH_N = 1.0
"""Force that tells contact."""


class PressExpert(ArmExpert[Press]):
    """Scripted expert for `Press`; acts on all envs of a core at once.

    Args:
        core: a core whose task is `Press`.
        noise: standard deviation of Gaussian noise on each action, 0 to 1 (an action spans [-1, 1]).
        episode_noise: scale of errors drawn once per episode, 0 to 1; at 1 the estimate of the goal is off by a
            centimetre, the pressing force by some newtons, and motion is slow.
        mode: "over" or "along", or None to draw one for each episode.
        seed: seed of noise, errors and modes.

    Raises:
        ConfigError: unknown mode, or a value out of range.
    """

    modes: tuple[str, ...] = MODES
    solves = Press

    def __init__(
        self, core: MujocoCore, noise: float = 0.0, episode_noise: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> None:
        super().__init__(core, noise, episode_noise, mode, seed)
        self._bias: Array = np.zeros((core.num_envs, 3))

    def act(self, started: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Actions (N, 4); `started` (N,) marks envs at the first step of an episode."""
        if started.any():
            envs = np.flatnonzero(started)
            self._noise.begin(envs)
            self._noise.slow(envs)
            self._bias[envs] = self._noise.errors(len(envs), (0.008, 0.008, 0.04))
        task, above = self._task, self._task.above_estimate_m
        way = task.delta_w + self._bias[:, :2]
        touching = task.force_n > TOUCH_N
        down = np.where(above > NEAR_M, FAST, SLOW)
        far = np.hypot(way[:, 0], way[:, 1]) > 0.5 * CLEAR_M
        over = (self.mode == MODES.index("over")) & far
        travel = np.clip((CLEAR_M - above) / STEP_M, FAST, -FAST)
        vertical = np.where(touching, PRESS + self._bias[:, 2], np.where(over, travel, down))
        # the mode "along" stays above its place until it touches
        moves = touching | (self.mode == MODES.index("over"))
        horizontal = way * self._noise.gain / STEP_M
        most = np.where(touching, SLIDE, 1.0)[:, None]
        horizontal *= most / np.maximum(np.abs(horizontal).max(axis=1, keepdims=True), most)
        action = np.zeros((len(way), 4))
        action[:, :2] = np.where(moves[:, None], horizontal, 0.0)
        action[:, 2] = vertical
        return self._noise.shake(action)
