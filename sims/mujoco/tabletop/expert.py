"""Scripted expert of `mujoco/tabletop`: points, pushes, picks up, turns and places as instructed.

An instruction becomes a job: an object and its goal, reached by grasping or by pushing. Sorting is two jobs in
sequence. If the expert loses the object, the job starts again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.manipulation.arm import wrap
from robotrl.sims.mujoco.manipulation.expert_noise import ArmExpert
from robotrl.sims.mujoco.manipulation.gripper import OPEN_M
from robotrl.sims.mujoco.manipulation.hand import STEP_M, YAW_STEP_RAD, fold
from robotrl.sims.mujoco.manipulation.scene import QUARTER_TURN_RAD
from robotrl.sims.mujoco.tabletop import goals
from robotrl.sims.mujoco.tabletop.language import PUSHES, InstructionFamily, color, is_block
from robotrl.sims.mujoco.tabletop.layout import HALF_M, MAT_HALF_M, MIDDLE_M, spot
from robotrl.sims.mujoco.tabletop.task import Tabletop

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

MODES = ("clockwise", "anticlockwise")
"""Modes: direction of rotation to one of a block's two grasps; also decides which of two objects is sorted first."""
HOVER_M = 0.05
"""Height of the fingertips above an object's centre before they are lowered."""
GRIP_BELOW_M = 0.006
CARRY_M = 0.11
"""Height of an object's centre while it is carried across, above other objects."""
TURN_RAD = 0.6
PUSH_STEP_M = 0.012
CONTACT_M = HALF_M + 0.011
"""Distance from an object's centre to the centre of the closed fingers that push it."""
STAND_M = CONTACT_M + 0.022
"""Distance from the object's centre at which the fingers are lowered before a push."""
LOW_M = 0.014
POINT_ABOVE_M = HALF_M + 0.025
ABOVE, LOWER, GRIP, LIFT, CARRY, SET, LEAVE, RUN_UP, DOWN, PUSH, AWAY = range(11)


class TabletopExpert(ArmExpert[Tabletop]):
    """Scripted expert for `Tabletop`; acts on all envs of a core at once and reads exact poses.

    Args:
        core: a core whose task is `Tabletop`.
        noise: standard deviation of Gaussian noise on each action, 0 to 1 (an action spans [-1, 1]).
        episode_noise: scale of errors drawn once per episode, 0 to 1; at 1 the estimates of objects and goals are off
            by some centimetres and motion is slow.
        mode: "clockwise" or "anticlockwise", or None to draw one for each episode.
        seed: seed of noise, errors and modes.

    Raises:
        ConfigError: unknown mode, or a value out of range.
    """

    modes: tuple[str, ...] = MODES
    solves = Tabletop

    def __init__(
        self, core: MujocoCore, noise: float = 0.0, episode_noise: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> None:
        super().__init__(core, noise, episode_noise, mode, seed)
        n = core.num_envs
        self._phase: Rows = np.zeros(n, np.int64)
        self._thing_bias: Array = np.zeros((n, 2))
        self._goal_bias: Array = np.zeros((n, 2))
        self._goal: Array = np.zeros((n, 3))
        """(N, 3) goal of the object's centre; fixed during a push."""
        self._turned: Array = np.zeros(n)
        """(N,) yaw of the hand at the grasp."""
        self._second: NDArray[np.bool_] = np.zeros(n, bool)
        """(N,) true while the second of two objects is being sorted."""
        self._rows = np.arange(n)

    def act(self, started: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Actions (N, 5); `started` (N,) marks envs at the first step of an episode."""
        task, rows = self._task, self._rows
        now = task.now()
        family = now.instruction_ids[:, 0]
        pushes = np.isin(family, PUSHES)
        if started.any():
            envs = np.flatnonzero(started)
            self._noise.begin(envs)
            self._noise.slow(envs, most=0.35)
            wrong = self._noise.errors(len(envs), (0.008, 0.008, 0.015, 0.015))
            self._thing_bias[envs], self._goal_bias[envs] = wrong[:, :2], wrong[:, 2:]
            self._phase[envs] = np.where(pushes[envs], RUN_UP, ABOVE)
            self._second[envs] = False
        thing = self._thing(now)
        own = now.pos[rows, thing].copy()
        own[:, :2] += self._thing_bias
        fresh = (self._phase == ABOVE) | (self._phase == RUN_UP)
        self._goal = np.where(fresh[:, None], self._wanted(now, thing), self._goal)
        to_thing, to_goal = own - now.tip, self._goal - own
        # a can may be grasped from any direction
        turn = np.where(is_block(thing), fold(now.yaw[rows, thing] - task.hand.yaw_w, QUARTER_TURN_RAD), 0.0)
        action = np.zeros((len(rows), 5))
        self._grasp(action, now, family, own, to_thing, to_goal, turn)
        self._push(action, pushes, own, now.tip)
        self._point(action, family == InstructionFamily.POINT, to_thing)
        action[:, :3] *= self._noise.gain / STEP_M
        action[:, :3] /= np.maximum(np.abs(action[:, :3]).max(axis=1, keepdims=True), 1.0)
        return self._noise.shake(action)

    def _thing(self, now: goals.SceneState) -> Rows:
        """Object (N,) handled now: the one in the instruction; when sorting, the second once the first is placed."""
        a, b = now.instruction_ids[:, 1], now.instruction_ids[:, 2]
        rows = self._rows
        sorts = now.instruction_ids[:, 0] == InstructionFamily.SORT
        first, second = np.where(self.mode == 0, a, b), np.where(self.mode == 0, b, a)
        off = now.pos[rows, first, :2] - now.mats[rows, color(first)]
        there = np.sqrt((off**2).sum(axis=1)) < goals.NEAR_M
        there &= now.pos[rows, first, 2] < HALF_M + goals.LEVEL_M
        # finish with a grasped object first
        self._second = sorts & there & ((self._phase == ABOVE) | self._second)
        return np.where(sorts, np.where(self._second, second, first), a)

    def _wanted(self, now: goals.SceneState, thing: Rows) -> Array:
        """Goal (N, 3) of the object's centre."""
        rows = self._rows
        family, a, _, mat, _, _ = now.instruction_ids.T
        goal = np.full((len(rows), 3), HALF_M)
        instruction_ids = now.instruction_ids.copy()
        sorts = family == InstructionFamily.SORT
        instruction_ids[sorts, 1] = thing[sorts]
        goal[:, :2] = spot(instruction_ids, now.pos[..., :2], now.mats, now.start[rows, a]) + self._goal_bias
        goal[family == InstructionFamily.STACK, 2] = 3 * HALF_M + 0.002
        # off the mat by the shortest path that leads towards the centre of the table or along it
        flat = now.mats[rows, mat]
        clear = MAT_HALF_M + HALF_M + 0.03
        aside = np.where((flat[:, 0] < MIDDLE_M[0])[:, None], (clear, 0.0), (-clear, 0.0))
        goal[:, :2] = np.where((family == InstructionFamily.CLEAR)[:, None], flat + aside, goal[:, :2])
        goal[:, :2] = np.where((family == InstructionFamily.TURN)[:, None], now.pos[rows, a, :2], goal[:, :2])
        return goal

    def _grasp(
        self,
        action: Array,
        now: goals.SceneState,
        family: Rows,
        own: Array,
        to_thing: Array,
        to_goal: Array,
        turn: Array,
    ) -> None:
        """Write the actions of envs that grasp and carry."""
        task, phase = self._task, self._phase
        hand_yaw = task.hand.yaw_w
        level = (np.abs(to_thing[:, :2]).max(axis=1) < 0.005) & (np.abs(turn) < 0.08)
        fingers = task.gripper.pos
        held = (fingers.max(axis=1) < HALF_M + 0.003) & (fingers.min(axis=1) > HALF_M - 0.003)
        empty = fingers.max(axis=1) < HALF_M - 0.008
        far = (to_thing**2).sum(axis=1) > 0.06**2
        opened = fingers.min(axis=1) > OPEN_M - 0.008
        turns = family == InstructionFamily.TURN
        spun = wrap(hand_yaw - self._turned)
        arrived = (np.abs(to_goal[:, :2]).max(axis=1) < 0.006) & (~turns | (np.abs(spun) > TURN_RAD - 0.05))
        high = now.tip[:, 2] > CARRY_M - 0.02
        # from the last phase to the first, so that an env changes only once
        phase[(phase == LEAVE) & high] = ABOVE
        phase[(phase == SET) & (np.abs(to_goal[:, 2]) < 0.003)] = LEAVE
        phase[(phase >= GRIP) & (phase < LEAVE) & (empty | far)] = ABOVE
        phase[(phase == CARRY) & arrived] = SET
        lifts = family == InstructionFamily.LIFT
        phase[(phase == LIFT) & (own[:, 2] > CARRY_M - 0.01) & ~lifts] = CARRY
        gripped = (phase == GRIP) & held
        self._turned[gripped] = hand_yaw[gripped]
        phase[gripped] = LIFT
        phase[(phase == LOWER) & (to_thing[:, 2] > GRIP_BELOW_M - 0.004)] = GRIP
        below = to_thing[:, 2] + HOVER_M
        phase[(phase == ABOVE) & level & opened & (np.abs(below) < 0.02)] = LOWER

        across = np.where((phase == CARRY) | (phase == SET), 1.0, 0.0)[:, None] * to_goal[:, :2]
        # stay high until above the object, to avoid the others
        near = np.sqrt((to_thing[:, :2] ** 2).sum(axis=1)) < 0.03
        hover = np.where(near, to_thing[:, 2] + HOVER_M, CARRY_M + 0.01 - now.tip[:, 2])
        move = np.where((phase < GRIP)[:, None], to_thing[:, :2], across)
        action[:, :2] = np.where((phase == LEAVE)[:, None], 0.0, move)
        action[:, 2] = np.select(
            [phase == ABOVE, phase == LOWER, phase == GRIP, phase == SET, phase == LEAVE],
            [hover, to_thing[:, 2] - GRIP_BELOW_M, np.zeros(len(phase)), np.maximum(to_goal[:, 2], -0.012), 0.04],
            CARRY_M - own[:, 2],
        )
        spin = np.where(turns & (phase == CARRY), TURN_RAD - spun, 0.0)
        action[:, 3] = np.where(phase < GRIP, self._face(turn), spin) / YAW_STEP_RAD
        closed = (phase >= GRIP) & (phase <= SET)
        action[:, 4] = np.where(closed, -1.0, 1.0)

    def _face(self, turn: Array) -> Array:
        """Rotation, rad, to the grasp of each env's mode; once aligned, to the nearest grasp."""
        other = np.where(self.mode == 0, -QUARTER_TURN_RAD, QUARTER_TURN_RAD)
        wrong_way = np.where(self.mode == 0, turn > 0.3, turn < -0.3)
        return np.where(wrong_way, turn + other, turn)

    def _push(self, action: Array, pushes: NDArray[np.bool_], own: Array, tip: Array) -> None:
        """Write the actions of envs that push: from behind, along the line to the goal, with closed fingers."""
        phase = self._phase
        way = self._goal[:, :2] - own[:, :2]
        left = np.sqrt((way**2).sum(axis=1))
        ahead = way / np.maximum(left, 1e-9)[:, None]
        stand = own[:, :2] - STAND_M * ahead
        off = stand - tip[:, :2]
        behind = own[:, :2] - tip[:, :2]
        aside = ahead[:, 0] * behind[:, 1] - ahead[:, 1] * behind[:, 0]
        gap = (behind * ahead).sum(axis=1) - CONTACT_M
        lost = (np.abs(aside) > 0.02) | (gap < -0.02) | (gap > 0.05)
        phase[(phase == AWAY) & (tip[:, 2] > 0.06)] = RUN_UP
        phase[(phase == PUSH) & (left < 0.006)] = AWAY
        phase[(phase == PUSH) & lost] = RUN_UP
        phase[(phase == DOWN) & (tip[:, 2] < LOW_M + 0.008)] = PUSH
        ready = (np.abs(off).max(axis=1) < 0.008) & (tip[:, 2] < 0.10)
        phase[(phase == RUN_UP) & ready] = DOWN

        high = tip[:, 2] > 0.065
        step = np.minimum(np.maximum(left, 0.004), PUSH_STEP_M)
        side = np.stack([-ahead[:, 1], ahead[:, 0]], axis=1)
        # the fingers stay on the line through the object to its goal
        along = (step + np.clip(gap, -0.01, 0.02))[:, None] * ahead + (1.2 * aside)[:, None] * side
        move = np.select(
            [(phase == RUN_UP)[:, None], (phase == DOWN)[:, None], (phase == PUSH)[:, None]],
            [np.where(high[:, None], off, 0.0), off, along],
            -0.02 * ahead,
        )
        height = np.select([phase == RUN_UP, phase == AWAY], [np.where(high, 0.08, 0.10), 0.10], LOW_M)
        action[pushes, :2] = move[pushes]
        action[pushes, 2] = (height - tip[:, 2])[pushes]
        action[pushes, 3] = 0.0
        action[pushes, 4] = -1.0

    def _point(self, action: Array, points: NDArray[np.bool_], to_thing: Array) -> None:
        """Write the actions of envs that point: the tip above the object, the fingers closed."""
        near = np.sqrt((to_thing[:, :2] ** 2).sum(axis=1)) < 0.03
        height = to_thing[:, 2] + np.where(near, POINT_ABOVE_M, 0.07)
        action[points, :2] = to_thing[points, :2]
        action[points, 2] = height[points]
        action[points, 3] = 0.0
        action[points, 4] = -1.0
