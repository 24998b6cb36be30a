"""Scripted expert of `mujoco/pick-place`.

A cube can be grasped by either pair of sides: the expert turns the gripper clockwise or anticlockwise until it is
aligned with one. Then it lowers, grasps, lifts, carries, sets down, opens and withdraws. If it loses the block, it
opens and starts again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.manipulation.expert_noise import ArmExpert
from robotrl.sims.mujoco.manipulation.gripper import OPEN_M
from robotrl.sims.mujoco.manipulation.hand import STEP_M, YAW_STEP_RAD
from robotrl.sims.mujoco.manipulation.pick_place import BLOCK_HALF_M, CARRY_ABOVE_M, PEDESTAL_HEIGHT_M, PickPlace
from robotrl.sims.mujoco.manipulation.scene import QUARTER_TURN_RAD

Array = NDArray[np.float64]

MODES = ("clockwise", "anticlockwise")
HOVER_M = 0.05
"""Height of the fingertips above the block's centre before they are lowered."""
GRIP_BELOW_M = 0.008
"""Distance of the fingertips below the block's centre in a grasp."""
CARRY_HEIGHT_M = PEDESTAL_HEIGHT_M + BLOCK_HALF_M + CARRY_ABOVE_M
"""Smallest height of the block's centre for carrying it across."""
ABOVE, LOWER, GRIP, LIFT, CARRY, SET, LEAVE = range(7)


class PickPlaceExpert(ArmExpert[PickPlace]):
    """Scripted expert for `PickPlace`; acts on all envs of a core at once and reads exact poses.

    Args:
        core: a core whose task is `PickPlace`.
        noise: standard deviation of Gaussian noise on each action, 0 to 1 (an action spans [-1, 1]).
        episode_noise: scale of errors drawn once per episode, 0 to 1; at 1 the estimates of block and pedestal are off
            by some centimetres and motion is slow.
        mode: "clockwise" or "anticlockwise", or None to draw one for each episode.
        seed: seed of noise, errors and modes.

    Raises:
        ConfigError: unknown mode, or a value out of range.
    """

    modes: tuple[str, ...] = MODES
    solves = PickPlace

    def __init__(
        self, core: MujocoCore, noise: float = 0.0, episode_noise: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> None:
        super().__init__(core, noise, episode_noise, mode, seed)
        n = core.num_envs
        self._phase: NDArray[np.int64] = np.zeros(n, np.int64)
        self._block_bias: Array = np.zeros((n, 3))
        self._goal_bias: Array = np.zeros((n, 3))

    def act(self, started: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Actions (N, 5); `started` (N,) marks envs at the first step of an episode."""
        task = self._task
        if started.any():
            envs = np.flatnonzero(started)
            self._noise.begin(envs)
            self._noise.slow(envs, most=0.35)
            wrong = self._noise.errors(len(envs), (0.008, 0.008, 0.004, 0.015, 0.015))
            self._phase[envs] = ABOVE
            self._block_bias[envs], self._goal_bias[envs, :2] = wrong[:, :3], wrong[:, 3:]
        to_block = task.to_block_w + self._block_bias
        to_goal = task.to_goal_w + self._goal_bias
        self._switch(to_block, to_goal)
        phase = self._phase

        carrying = (phase >= LIFT) & (phase <= SET)
        across = np.where((phase == CARRY) | (phase == SET), 1.0, 0.0)[:, None] * to_goal[:, :2]
        action = np.empty((len(phase), 5))
        action[:, :2] = np.where((phase < GRIP)[:, None], to_block[:, :2], across)
        lift = CARRY_HEIGHT_M + 0.02 - task.block.pos_w[:, 2]
        action[:, 2] = np.select(
            [phase == ABOVE, phase == LOWER, phase == GRIP, phase == SET, phase == LEAVE],
            [to_block[:, 2] + HOVER_M, to_block[:, 2] - GRIP_BELOW_M, np.zeros(len(phase)), to_goal[:, 2], 0.04],
            lift,
        )
        # lower slowly: a dropped block would roll
        action[:, 2] = np.where(phase == SET, np.maximum(action[:, 2], -0.012), action[:, 2])
        action[:, :3] *= self._noise.gain / STEP_M
        action[:, :3] /= np.maximum(np.abs(action[:, :3]).max(axis=1, keepdims=True), 1.0)
        action[:, 3] = np.where(phase < GRIP, self._turn(), 0.0) / YAW_STEP_RAD
        action[:, 4] = np.where(carrying | (phase == GRIP), -1.0, 1.0)
        return self._noise.shake(action)

    def _turn(self) -> Array:
        """Rotation, rad, to the grasp of each env's mode; once aligned, to the nearest grasp."""
        turn = self._task.turn
        other = np.where(self.mode == 0, -QUARTER_TURN_RAD, QUARTER_TURN_RAD)
        wrong_way = np.where(self.mode == 0, turn > 0.2, turn < -0.2)
        return np.where(wrong_way, turn + other, turn)

    def _switch(self, to_block: Array, to_goal: Array) -> None:
        """Advance the phase of each env where due; restart where the block was lost."""
        task, phase = self._task, self._phase
        level = (np.abs(to_block[:, :2]).max(axis=1) < 0.005) & (np.abs(task.turn) < 0.08)
        below = to_block[:, 2] + HOVER_M
        height = task.block.pos_w[:, 2]
        fingers = task.gripper.pos
        held = (fingers.max(axis=1) < BLOCK_HALF_M + 0.003) & (fingers.min(axis=1) > BLOCK_HALF_M - 0.003)
        empty = fingers.max(axis=1) < BLOCK_HALF_M - 0.008
        far = (task.to_block_w**2).sum(axis=1) > 0.06**2
        at_goal = np.abs(to_goal[:, :2]).max(axis=1) < 0.008
        # from the last phase to the first, so that an env changes only once
        phase[(phase == LEAVE) & far & (np.abs(task.to_goal_w[:, 2]) > 0.02)] = ABOVE
        phase[(phase == SET) & (np.abs(to_goal[:, 2]) < 0.003)] = LEAVE
        phase[(phase >= GRIP) & (phase < LEAVE) & (empty | far)] = ABOVE
        phase[(phase == CARRY) & at_goal] = SET
        phase[(phase == LIFT) & (height > CARRY_HEIGHT_M)] = CARRY
        phase[(phase == GRIP) & held] = LIFT
        phase[(phase == LOWER) & (to_block[:, 2] > GRIP_BELOW_M - 0.004)] = GRIP
        opened = fingers.min(axis=1) > OPEN_M - 0.008
        phase[(phase == ABOVE) & level & opened & (np.abs(below) < 0.02)] = LOWER
