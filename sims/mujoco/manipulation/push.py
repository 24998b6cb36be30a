"""`mujoco/push`: the arm pushes a block around an obstacle to a goal pose.

The page docs/sims/push.md gives observation, action, reward, starts and ends as tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from robotrl.fn.random import counter_rng
from robotrl.sims.mujoco.engine.arrays import Array, ArrayNamespace
from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.engine.mirror import MirrorRule
from robotrl.sims.mujoco.engine.task import Ids, TaskPhysics
from robotrl.sims.mujoco.manipulation.arm import ARM_RASTERS, JOINTS, pointing_down
from robotrl.sims.mujoco.manipulation.hand import HAND_ACTIONS, HAND_COLUMNS, WorldHand, fold, odd_columns, spec_of
from robotrl.sims.mujoco.manipulation.scene import MAT, QUARTER_TURN_RAD, BlockTask, scene_mjcf, upright
from robotrl.sims.mujoco.render.views import AnyView, Raster, View

if TYPE_CHECKING:
    from robotrl.sims.mujoco.engine.robot import SimulatedRobot

Reals = NDArray[np.float64]

TOOL_LENGTH_M = 0.14
PADDLE_HALF_M = (0.03, 0.006, 0.03)
"""Half width, half thickness and half height of the paddle; its normal is the tool's y axis."""
BLOCK_HALF_M = (0.03, 0.03, 0.025)
"""Half length, half width and half height of the block."""
BLOCK_KG = 0.2
OBSTACLE_RADIUS_M = 0.035
OBSTACLE_HEIGHT_M = 0.07
LIMIT_S = 8.0
"""Default time limit of an episode."""
SUCCESS_DISTANCE_M = 0.015
"""Success: largest distance between the centres of block and goal."""
SUCCESS_YAW_RAD = 0.15
"""Success: largest yaw error of the block."""
SUCCESS_SPEED_MPS = 0.05
"""Success: largest speed of the block."""
METERS_PER_RAD = 0.05
"""Weight of the block's yaw error, m per rad, in the distance to the goal."""
METERS_PER_TIP_M = 0.2
"""Weight of the distance between tip and block in the distance to the goal."""
ROOM_M = 0.01
"""Clearance between block and obstacle in the path of the shaped reward."""
WORKSPACE_LOW_M = (0.26, -0.36, 0.008)
WORKSPACE_HIGH_M = (0.72, 0.36, 0.20)
"""Opposite corners (x, y, z, world frame) of the workspace box that limits the tip."""
MIDDLE_X_M = 0.48
"""Mean x of block, goal and obstacle: the path from start to goal runs along y at this distance from the arm."""
HALF_WAY_M = 0.23
SCATTER_M = 0.02
"""Largest offset of block, goal and obstacle from their mean positions."""
SCATTER_YAW_RAD = 0.25
_START_SEED = 0x9054


class Push(BlockTask):
    """Pushing task; see `make` for the arguments."""

    name = "mujoco/push"
    views: Mapping[str, AnyView] = {
        "front": View((1.45, 0.40, 0.80), (0.36, 0.0, 0.14), 41.0),
        "side": View((0.70, -1.20, 0.60), (0.40, 0.0, 0.16), 38.0),
        "top": View((0.95, 0.0, 1.15), (0.46, 0.0, 0.03), 40.0),
        **ARM_RASTERS,
        "flat_front": Raster("front", (0.48, 0.0, 0.05), 0.62, tilt_deg=50.0),
    }
    mirror = MirrorRule(
        odd_columns("w")
        | {
            *("tip_to_block_y_w", "tip_to_block_yaw4_sin", "block_vel_y_w"),
            *("block_to_goal_y_w", "block_to_goal_yaw4_sin", "block_to_obstacle_y_w"),
        }
    )

    def __init__(self, reward: Literal["sparse", "shaped"], limit_s: float) -> None:
        super().__init__(reward, limit_s)
        self.observation_spec = {
            "state": spec_of(
                (
                    *HAND_COLUMNS,
                    *((f"tip_to_block_{axis}_w", "m", -1.5, 1.5) for axis in "xyz"),
                    ("tip_to_block_yaw4_sin", "1", -1.0, 1.0),
                    ("tip_to_block_yaw4_cos", "1", -1.0, 1.0),
                    *((f"block_vel_{axis}_w", "m/s", -np.inf, np.inf) for axis in "xy"),
                    *((f"block_to_goal_{axis}_w", "m", -1.5, 1.5) for axis in "xy"),
                    ("block_to_goal_yaw4_sin", "1", -1.0, 1.0),
                    ("block_to_goal_yaw4_cos", "1", -1.0, 1.0),
                    *((f"block_to_obstacle_{axis}_w", "m", -1.5, 1.5) for axis in "xy"),
                )
            )
        }
        self.action_spec = spec_of(HAND_ACTIONS)

    def xml(self) -> str:
        """MJCF of arm, paddle, block, obstacle and goal."""
        wide, thin, tall = PADDLE_HALF_M
        stem = (TOOL_LENGTH_M - 2 * tall) / 2
        tool = f"""
<geom class="arm_dark" type="cylinder" size="0.014 {stem}" pos="0 0 {stem}" mass="0.1"/>
<geom name="paddle" class="tool" type="box" size="{wide} {thin} {tall}" pos="0 0 {TOOL_LENGTH_M - tall}" mass="0.1"
 friction="0.8 0.005 0.0001"/>"""
        half, height = " ".join(str(size) for size in BLOCK_HALF_M), OBSTACLE_HEIGHT_M / 2
        things = f"""
{MAT}
<body name="goal" mocap="true" pos="0.5 0.2 0"><geom class="mark" size="{half[: half.rindex(" ")]} 0.0008"/></body>
<body name="obstacle" mocap="true" pos="0.5 0 0">
  <geom name="obstacle" class="thing" type="cylinder" size="{OBSTACLE_RADIUS_M} {height}" pos="0 0 {height}"/>
</body>
<body name="block" pos="0.5 -0.2 {BLOCK_HALF_M[2]}">
  <freejoint name="block"/>
  <geom name="block" class="block" size="{half}" mass="{BLOCK_KG}"/>
</body>"""
        return scene_mjcf("push", tool, things)

    def bind(self, physics: TaskPhysics) -> None:
        """Store views of the simulations' arrays."""
        super().bind(physics)
        self.hand = WorldHand(physics, TOOL_LENGTH_M, WORKSPACE_LOW_M, WORKSPACE_HIGH_M)
        mocap_pos: Array = physics.bind("mocap_pos")
        self.goal_pos_w: Array = mocap_pos[:, 0]
        """(N, 3) goal position, world frame, m."""
        self.obstacle_pos_w: Array = mocap_pos[:, 1]
        """(N, 3) obstacle position, world frame, m."""
        self._goal_quat: Array = physics.bind("mocap_quat")[:, 0]
        self.goal_yaw_w: Array = physics.zeros()
        """(N,) goal yaw, rad, modulo a quarter turn, as last observed."""
        self.block_yaw_w: Array = physics.zeros()
        """(N,) block yaw, rad, modulo a quarter turn, as last observed."""
        self.turn: Array = physics.zeros()
        """(N,) from the block's yaw to the goal's, rad, within an eighth of a turn either way, as last observed."""

    def plan(self, state_ids: Ids) -> Reals:
        """Start states (n, 23): joints (6), block, goal (7 each) and obstacle (3)."""
        u = 2 * counter_rng.uniform(_START_SEED, state_ids, 12) - 1
        zero = np.zeros(len(u))

        def at(y_m: float, z_m: float, first: int) -> Reals:
            x, y = MIDDLE_X_M + SCATTER_M * u[:, first], y_m + SCATTER_M * u[:, first + 1]
            return np.stack([x, y, zero + z_m], axis=1)

        block = upright(at(-HALF_WAY_M, BLOCK_HALF_M[2], 0), np.pi / 4 + SCATTER_YAW_RAD * u[:, 2])
        goal = upright(at(HALF_WAY_M, 0.0, 3), np.pi / 4 + SCATTER_YAW_RAD * u[:, 5])
        obstacle = at(0.0, 0.0, 6)
        tip = block[:, :3] + np.stack([0.06 * u[:, 8], 0.04 * u[:, 9], 0.09 + 0.02 * u[:, 10]], axis=1)
        joints = pointing_down(tip, 0.4 * u[:, 11], TOOL_LENGTH_M)
        return np.concatenate([joints, block, goal, obstacle], axis=1)

    def start(self, env_ids: Array, plans: Reals) -> None:
        """Write start states: everything at rest, the arm held by its servos."""
        n, found = len(JOINTS), self._physics.array(plans)
        self.goal_pos_w[env_ids] = found[:, 13:16]
        self._goal_quat[env_ids] = found[:, 16:20]
        self.obstacle_pos_w[env_ids] = found[:, 20:]
        self.hand.place(env_ids, found[:, : n + 7], found[:, :n])

    def observe(self, out: Mapping[str, Array], env_ids: Array) -> None:
        """Write observations; `observation_spec` names the columns."""
        xp, state, hand, block = self.xp, out["state"], self.hand, self.block
        hand.observe(state, env_ids)
        quat = self._goal_quat[env_ids]
        goal_yaw = 2 * xp.atan2(quat[:, 3], quat[:, 0])
        yaw = block.yaw_w(env_ids)
        self.goal_yaw_w[env_ids], self.block_yaw_w[env_ids] = goal_yaw, yaw
        self.turn[env_ids] = fold(goal_yaw - yaw, QUARTER_TURN_RAD, xp)
        pos = block.pos_w[env_ids]
        # the block has quarter-turn symmetry: observe four times its yaw
        of_hand, to_goal = 4 * (yaw - hand.yaw_w[env_ids]), 4 * (goal_yaw - yaw)
        at = len(HAND_COLUMNS)
        state[env_ids, at : at + 3] = pos - hand.pos_w[env_ids]
        state[env_ids, at + 3] = xp.sin(of_hand)
        state[env_ids, at + 4] = xp.cos(of_hand)
        state[env_ids, at + 5 : at + 7] = block.vel_w[env_ids, :2]
        state[env_ids, at + 7 : at + 9] = (self.goal_pos_w[env_ids] - pos)[:, :2]
        state[env_ids, at + 9] = xp.sin(to_goal)
        state[env_ids, at + 10] = xp.cos(to_goal)
        state[env_ids, at + 11 : at + 13] = (self.obstacle_pos_w[env_ids] - pos)[:, :2]

    def success(self) -> Array:
        """Success flags (N,): the block is at rest at the goal."""
        pos, vel = self.block.pos_w, self.block.vel_w
        away = pos[:, :2] - self.goal_pos_w[:, :2]
        return (
            ((away**2).sum(axis=1) < SUCCESS_DISTANCE_M**2)
            & (self.xp.abs(self.turn) < SUCCESS_YAW_RAD)
            & ((vel**2).sum(axis=1) < SUCCESS_SPEED_MPS**2)
        )

    def distance(self) -> Array:
        """Distance to success (N,), m: block's path around the obstacle, plus weighted yaw error and tip distance."""
        xp, pos = self.xp, self.block.pos_w
        clear = OBSTACLE_RADIUS_M + BLOCK_HALF_M[0] + ROOM_M
        way = way_round(pos[:, :2], self.goal_pos_w[:, :2], self.obstacle_pos_w[:, :2], clear, xp)
        tip = xp.sqrt(((self.hand.pos_w - pos) ** 2).sum(axis=1))
        return way + METERS_PER_RAD * xp.abs(self.turn) + METERS_PER_TIP_M * tip


def way_round(start: Array, end: Array, middle: Array, radius_m: float, xp: ArrayNamespace = np) -> Array:
    """Length (n,) of the shortest paths from `start` to `end` around discs.

    Args:
        start: (n, 2) start points; a point inside its disc is replaced by the nearest point on the rim.
        end: (n, 2) end points, treated likewise.
        middle: (n, 2) centres of the discs.
        radius_m: radius of the discs.
        xp: functions of the arrays.
    """
    a, b = start - middle, end - middle
    # the centre has no nearest point on the rim: any direction will do
    a_m, b_m = (xp.clip(xp.sqrt((v**2).sum(axis=1)), 1e-9, None) for v in (a, b))
    angle = xp.acos(xp.clip((a * b).sum(axis=1) / (a_m * b_m), -1.0, 1.0))
    a_rim, b_rim = xp.clip(a_m, radius_m, None), xp.clip(b_m, radius_m, None)
    arc = angle - xp.acos(radius_m / a_rim) - xp.acos(radius_m / b_rim)
    straight = xp.sqrt(xp.clip(a_rim**2 + b_rim**2 - 2 * a_rim * b_rim * xp.cos(angle), 0.0, None))
    round_it = xp.sqrt(a_rim**2 - radius_m**2) + xp.sqrt(b_rim**2 - radius_m**2) + radius_m * arc
    return xp.where(arc > 0, round_it, straight)


def make_robot(seed: int) -> SimulatedRobot:
    """Make a simulated robot with this task for the control loop; a driver process steps it in real time."""
    from robotrl.sims.mujoco.engine.robot import SimulatedRobot

    return SimulatedRobot(MujocoCore(Push("sparse", LIMIT_S), 1, seed, threads=1))
