"""Scripted expert of `mujoco/push`.

It plans a curve from the block to the goal that passes the obstacle on one side and starts and ends perpendicular to
block sides, places the paddle against the side to be pushed, and steers along the curve: pressed flat against a paddle
that turns no faster than friction allows, a block follows like a trolley (stable pushing, Lynch and Mason 1996). If it
loses the block, or reaches the end of the curve without success, it lifts the paddle and plans again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.manipulation.arm import wrap
from robotrl.sims.mujoco.manipulation.expert_noise import ArmExpert
from robotrl.sims.mujoco.manipulation.hand import STEP_M, YAW_STEP_RAD, fold
from robotrl.sims.mujoco.manipulation.push import (
    BLOCK_HALF_M,
    OBSTACLE_HEIGHT_M,
    OBSTACLE_RADIUS_M,
    PADDLE_HALF_M,
    Push,
    way_round,
)
from robotrl.sims.mujoco.manipulation.scene import QUARTER_TURN_RAD

Array = NDArray[np.float64]

MODES = ("left", "right")
SAMPLES = 48
"""Number of points of a planned curve."""
BULGE = 1.3
"""Length of the curve's end tangents relative to the distance of its ends, if the obstacle is in between."""
CONTACT_M = BLOCK_HALF_M[1] + PADDLE_HALF_M[1]
STAND_M = CONTACT_M + 0.02
"""Distance from the block's centre at which the paddle is lowered."""
HOVER_M = OBSTACLE_HEIGHT_M + 0.015
LOW_M = 0.012
PUSH_STEP_M = 0.022
CURVATURE_PER_M = 7.0
"""Largest curvature; in tighter turns the block would slip off the paddle."""
APPROACH, LOWER, PUSH = 0, 1, 2


class PushExpert(ArmExpert[Push]):
    """Scripted expert for `Push`; acts on all envs of a core at once and plans from exact poses.

    Args:
        core: a core whose task is `Push`.
        noise: standard deviation of Gaussian noise on each action, 0 to 1 (an action spans [-1, 1]).
        episode_noise: scale of errors drawn once per episode, 0 to 1; at 1 the estimates of block and goal are off by
            some centimetres and motion is slow.
        mode: "left" or "right" of the obstacle as seen from the block, or None to draw one for each episode.
        seed: seed of noise, errors and modes.

    Raises:
        ConfigError: unknown mode, or a value out of range.
    """

    modes: tuple[str, ...] = MODES
    solves = Push

    def __init__(
        self, core: MujocoCore, noise: float = 0.0, episode_noise: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> None:
        super().__init__(core, noise, episode_noise, mode, seed)
        n = core.num_envs
        self._phase: NDArray[np.int64] = np.zeros(n, np.int64)
        self._goal_bias: Array = np.zeros((n, 3))
        self._block_bias: Array = np.zeros((n, 2))
        self._path: Array = np.zeros((n, SAMPLES, 2))
        self._heading: Array = np.zeros((n, SAMPLES))
        self._side: Array = np.zeros(n)
        """Push direction relative to the block's yaw, rad; a multiple of a quarter turn."""
        self._flip: Array = np.zeros(n)
        """Half a turn if the paddle's other face pushes, else 0."""
        self._all = np.arange(n)

    def act(self, started: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Actions (N, 4); `started` (N,) marks envs at the first step of an episode."""
        if started.any():
            envs = np.flatnonzero(started)
            self._noise.begin(envs)
            self._noise.slow(envs, most=0.4)
            wrong = self._noise.errors(len(envs), (0.012, 0.012, 0.1, 0.008, 0.008))
            self._goal_bias[envs], self._block_bias[envs] = wrong[:, :3], wrong[:, 3:]
            self._plan(envs)
        task, hand, rows = self._task, self._task.hand, self._all
        block = task.block.pos_w[:, :2] + self._block_bias
        heading = wrap(task.block_yaw_w + self._side)
        ahead = np.stack([np.cos(heading), np.sin(heading)], axis=1)

        apart = ((self._path - block[:, None]) ** 2).sum(axis=2)
        nearest = apart.argmin(axis=1)
        tangent = self._heading[rows, nearest]
        off = block - self._path[rows, nearest]
        off_left = np.cos(tangent) * off[:, 1] - np.sin(tangent) * off[:, 0]
        rest = self._path[:, -1] - block
        left_m = np.cos(tangent) * rest[:, 0] + np.sin(tangent) * rest[:, 1]
        left_m = np.where(nearest < SAMPLES - 8, 1.0, left_m)

        stand = block - STAND_M * ahead - hand.pos_w[:, :2]
        # computed as angles of the last joint, which is limited; either face of the paddle may push
        joints = hand.arm.qpos
        turn = joints[:, 5] - wrap(joints[:, 0] - heading + QUARTER_TURN_RAD + self._flip)
        self._switch(stand, turn, block, ahead, left_m)
        phase = self._phase

        # the paddle moves along its normal, and steers like the rear axle of a trolley whose front follows the curve
        further = np.minimum(nearest + 3, SAMPLES - 1)
        span = np.maximum(np.sqrt(((self._path[rows, further] - self._path[rows, nearest]) ** 2).sum(axis=1)), 1e-3)
        bend = wrap(self._heading[rows, further] - tangent) / span - 80 * off_left - 14 * wrap(heading - tangent)
        step = np.clip(1.5 * left_m, 0.003, PUSH_STEP_M) * self._noise.gain[:, 0]
        veer = step * np.clip(bend, -CURVATURE_PER_M, CURVATURE_PER_M)
        # the block also moves sideways; a paddle that compensated all of its slip would drift with it
        aside = np.stack([-ahead[:, 1], ahead[:, 0]], axis=1)
        off_paddle = ((block - hand.pos_w[:, :2]) * aside).sum(axis=1)
        crab = np.clip(-0.5 * off_left + 0.2 * off_paddle, -0.4 * step, 0.4 * step)
        gap = ((block - hand.pos_w[:, :2]) * ahead).sum(axis=1) - CONTACT_M
        travel = (step + gap)[:, None] * ahead + crab[:, None] * aside

        pushing = phase == PUSH
        action = np.empty((len(rows), 4))
        high = hand.pos_w[:, 2] > HOVER_M - 0.015
        approach = np.where((high | (phase == LOWER))[:, None], stand * self._noise.gain, 0.0)
        action[:, :2] = np.where(pushing[:, None], travel, approach) / STEP_M
        height = np.select([phase == APPROACH], [np.full(len(rows), HOVER_M)], LOW_M)
        action[:, 2] = (height - hand.pos_w[:, 2]) / STEP_M
        action[:, 3] = np.where(pushing, turn + veer, turn) / YAW_STEP_RAD
        return self._noise.shake(action)

    def _switch(self, stand: Array, turn: Array, block: Array, ahead: Array, left_m: Array) -> None:
        """Advance the phase of each env, or plan again, where due."""
        hand, phase = self._task.hand, self._phase
        ready = (np.abs(stand).max(axis=1) < 0.008) & (np.abs(turn) < 0.08)
        height = hand.pos_w[:, 2]
        behind = block - hand.pos_w[:, :2]
        aside = np.abs(ahead[:, 0] * behind[:, 1] - ahead[:, 1] * behind[:, 0])
        lost = (phase == PUSH) & ((aside > 0.03) | (np.abs(turn) > 0.5) | (left_m < 0.001))
        phase[(phase == LOWER) & (height < LOW_M + 0.006)] = PUSH
        phase[(phase == APPROACH) & ready & (height < HOVER_M + 0.02)] = LOWER
        if lost.any():
            self._plan(np.flatnonzero(lost))

    def _plan(self, envs: NDArray[np.int64]) -> None:
        """Plan a cubic Hermite curve from each block to its goal, aligned with sides of both."""
        task = self._task
        self._phase[envs] = APPROACH
        start = task.block.pos_w[envs, :2] + self._block_bias[envs]
        end = task.goal_pos_w[envs, :2] + self._goal_bias[envs, :2]
        goal_yaw = task.goal_yaw_w[envs] + self._goal_bias[envs, 2]
        way = end - start
        length = np.sqrt((way**2).sum(axis=1))
        line = np.arctan2(way[:, 1], way[:, 0])
        clear = OBSTACLE_RADIUS_M + BLOCK_HALF_M[0]
        blocked = way_round(start, end, task.obstacle_pos_w[envs, :2], clear) > length + 1e-9
        swing = np.where(blocked, np.where(self.mode[envs] == 0, np.pi / 4, -np.pi / 4), 0.0)
        first = line + swing
        first += fold(task.block_yaw_w[envs] - first, QUARTER_TURN_RAD)
        last = line - swing
        last += fold(goal_yaw - last, QUARTER_TURN_RAD)
        self._side[envs] = first - task.block_yaw_w[envs]
        joint = wrap(task.hand.arm.qpos[envs, 0] - first + QUARTER_TURN_RAD)
        self._flip[envs] = np.where(np.abs(joint) > QUARTER_TURN_RAD, np.pi, 0.0)
        reach = (np.where(blocked, BULGE, 1.0) * length)[:, None, None]
        u = np.linspace(0.0, 1.0, SAMPLES)[None, :, None]
        a, b = (np.stack([np.cos(h), np.sin(h)], axis=1)[:, None] * reach for h in (first, last))
        p, q = start[:, None], end[:, None]
        self._path[envs] = p + u * a + u**2 * (3 * (q - p) - 2 * a - b) + u**3 * (2 * (p - q) + a + b)
        slope = a + 2 * u * (3 * (q - p) - 2 * a - b) + 3 * u**2 * (2 * (p - q) + a + b)
        self._heading[envs] = np.arctan2(slope[..., 1], slope[..., 0])
