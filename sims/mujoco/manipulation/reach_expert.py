"""Scripted expert of `mujoco/reach`: moves straight to the goal and turns the wrist in one of two directions.

The tool has half-turn symmetry, so each goal can be reached with the last joint turned clockwise or anticlockwise from
the middle of its range; both look equal at the goal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.manipulation.expert_noise import ArmExpert
from robotrl.sims.mujoco.manipulation.hand import STEP_M, YAW_STEP_RAD
from robotrl.sims.mujoco.manipulation.reach import Reach

Array = NDArray[np.float64]

MODES = ("clockwise", "anticlockwise")


class ReachExpert(ArmExpert[Reach]):
    """Scripted expert for `Reach`; acts on all envs of a core at once.

    Args:
        core: a core whose task is `Reach`.
        noise: standard deviation of Gaussian noise on each action, 0 to 1 (an action spans [-1, 1]).
        episode_noise: scale of errors drawn once per episode, 0 to 1; at 1 the estimate of the goal is off by some
            centimetres and motion is slow.
        mode: "clockwise" or "anticlockwise", or None to draw one for each episode.
        seed: seed of noise, errors and modes.

    Raises:
        ConfigError: unknown mode, or a value out of range.
    """

    modes: tuple[str, ...] = MODES
    solves = Reach

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
            self._bias[envs] = self._noise.errors(len(envs), (0.006, 0.006, 0.006))
        task, hand = self._task, self._task.hand
        joints = hand.arm.qpos
        goal = task.goal_pos_w
        # target angle of the last joint: in [0, pi) for one mode, half a turn less for the other
        yaw_left = task.turn
        final = np.arctan2(goal[:, 1], goal[:, 0]) - (hand.yaw_w + yaw_left)
        final = final - np.pi * np.floor(final / np.pi)
        final -= np.pi * self.mode
        base_turn = np.arctan2(goal[:, 1], goal[:, 0]) - joints[:, 0]
        turn = base_turn - (final - joints[:, 5])
        # by the joint angle while far away; by the observed yaw error at the end
        turn = np.where(np.abs(turn) < 0.5, yaw_left, turn)
        action = np.empty((len(turn), 4))
        action[:, :3] = (task.delta_w + self._bias) * self._noise.gain / STEP_M
        action[:, :3] /= np.maximum(np.abs(action[:, :3]).max(axis=1, keepdims=True), 1.0)
        action[:, 3] = turn / YAW_STEP_RAD
        return self._noise.shake(action)
