"""`mujoco/pick-place`: the arm grasps a block with a two-finger gripper and places it on a pedestal.

The page docs/sims/pick-place.md gives observation, action, reward, starts and ends as tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from robotrl.fn.random import counter_rng
from robotrl.sims.mujoco.engine.arrays import Array
from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.engine.mirror import MirrorRule
from robotrl.sims.mujoco.engine.task import Ids, TaskPhysics
from robotrl.sims.mujoco.manipulation.arm import ARM_RASTERS, JOINTS, pointing_down
from robotrl.sims.mujoco.manipulation.gripper import (
    FINGER_COLUMNS,
    GRIPPER_ACTION,
    OPEN_M,
    SWAPPED_FINGERS,
    TOOL_LENGTH_M,
    Gripper,
    gripper_actuators,
    gripper_mjcf,
)
from robotrl.sims.mujoco.manipulation.hand import HAND_ACTIONS, HAND_COLUMNS, WorldHand, fold, odd_columns, spec_of
from robotrl.sims.mujoco.manipulation.scene import MAT, QUARTER_TURN_RAD, BlockTask, scene_mjcf, upright
from robotrl.sims.mujoco.render.views import AnyView, View

if TYPE_CHECKING:
    from robotrl.sims.mujoco.engine.robot import SimulatedRobot

Reals = NDArray[np.float64]

BLOCK_HALF_M = 0.02
"""Half the edge length of the cube."""
BLOCK_KG = 0.1
PEDESTAL_HALF_WIDTH_M = 0.045
PEDESTAL_HEIGHT_M = 0.05
LIMIT_S = 7.0
"""Default time limit of an episode."""
SUCCESS_DISTANCE_M = 0.025
"""Success: largest horizontal distance between the centres of block and pedestal."""
SUCCESS_HEIGHT_M = 0.005
"""Success: largest vertical distance of the block from its place on the pedestal."""
SUCCESS_SPEED_MPS = 0.05
"""Success: largest speed of the block."""
WITHDRAWN_M = 0.035
"""Success: smallest height of the fingertips above the block's centre."""
METERS_PER_TIP_M = 0.5
"""Weight of the distance between fingertips and block in the distance to the goal."""
CARRY_ABOVE_M = 0.03
"""Height above its place on the pedestal at which the block is carried, in the path of the shaped reward."""
WORKSPACE_LOW_M = (0.28, -0.35, 0.008)
WORKSPACE_HIGH_M = (0.70, 0.35, 0.30)
"""Opposite corners (x, y, z, world frame) of the workspace box that limits the tip."""
BLOCK_LOW_M = (0.42, -0.24)
BLOCK_HIGH_M = (0.56, -0.10)
"""Opposite corners (x, y) of the start area of blocks; pedestals stand in its mirror image."""
START_TURN_RAD = (np.pi / 4 - 0.35, np.pi / 4 + 0.35)
"""Range of the start angle from the gripper's yaw to the block's, modulo a quarter turn: midway between both grasps."""
_START_SEED = 0x91C4


class PickPlace(BlockTask):
    """Pick-and-place task; see `make` for the arguments."""

    name = "mujoco/pick-place"
    views: Mapping[str, AnyView] = {
        "front": View((1.45, 0.40, 0.80), (0.36, 0.0, 0.16), 41.0),
        "side": View((1.05, -0.95, 0.60), (0.42, 0.0, 0.16), 38.0),
        "top": View((0.95, 0.0, 1.15), (0.46, 0.0, 0.05), 38.0),
        **ARM_RASTERS,
    }
    mirror = MirrorRule(
        odd_columns("w")
        | {
            *("tip_to_block_y_w", "tip_to_block_yaw4_sin", "block_vel_y_w", "block_to_goal_y_w"),
        },
        SWAPPED_FINGERS,
    )

    def __init__(self, reward: Literal["sparse", "shaped"], limit_s: float) -> None:
        super().__init__(reward, limit_s)
        self.observation_spec = {
            "state": spec_of(
                (
                    *HAND_COLUMNS,
                    *FINGER_COLUMNS,
                    *((f"tip_to_block_{axis}_w", "m", -1.5, 1.5) for axis in "xyz"),
                    ("tip_to_block_yaw4_sin", "1", -1.0, 1.0),
                    ("tip_to_block_yaw4_cos", "1", -1.0, 1.0),
                    *((f"block_vel_{axis}_w", "m/s", -np.inf, np.inf) for axis in "xyz"),
                    *((f"block_to_goal_{axis}_w", "m", -1.5, 1.5) for axis in "xyz"),
                )
            )
        }
        self.action_spec = spec_of((*HAND_ACTIONS, GRIPPER_ACTION))

    def xml(self) -> str:
        """MJCF of arm, gripper, block and pedestal."""
        wide, height, half = PEDESTAL_HALF_WIDTH_M, PEDESTAL_HEIGHT_M / 2, BLOCK_HALF_M
        things = f"""
{MAT}
<body name="pedestal" mocap="true" pos="0.5 0.2 0">
  <geom name="pedestal" class="thing" size="{wide} {wide} {height}" pos="0 0 {height}"/>
  <geom class="mark" size="{half} {half} 0.0005" pos="0 0 {2 * height}"/>
</body>
<body name="block" pos="0.5 -0.2 {half}">
  <freejoint name="block"/>
  <geom name="block" class="block" size="{half} {half} {half}" mass="{BLOCK_KG}"/>
</body>"""
        return scene_mjcf("pick-place", gripper_mjcf(), things, gripper_actuators())

    def bind(self, physics: TaskPhysics) -> None:
        """Store views of the simulations' arrays."""
        super().bind(physics)
        self.hand = WorldHand(physics, TOOL_LENGTH_M, WORKSPACE_LOW_M, WORKSPACE_HIGH_M)
        self.gripper = Gripper(physics)
        self._pedestal_pos_w: Array = physics.bind("mocap_pos")[:, 0]
        self.to_block_w: Array = physics.zeros((3,))
        """(N, 3) from the point between the fingertips to the block's centre, m, as last observed."""
        self.to_goal_w: Array = physics.zeros((3,))
        """(N, 3) from the block's centre to its goal, m, as last observed."""
        self.turn: Array = physics.zeros()
        """(N,) from the gripper's yaw to the block's, rad, within an eighth of a turn either way, as last observed."""

    def plan(self, state_ids: Ids) -> Reals:
        """Start states (n, 16): joints (6), block (7) and pedestal (3)."""
        u = counter_rng.uniform(_START_SEED, state_ids, 9)
        low, high = np.asarray(BLOCK_LOW_M), np.asarray(BLOCK_HIGH_M)
        block, pedestal, tip = np.zeros((len(u), 3)), np.zeros((len(u), 3)), np.zeros((len(u), 3))
        block[:, :2] = low + (high - low) * u[:, :2]
        block[:, 2] = BLOCK_HALF_M
        pedestal[:, :2] = low + (high - low) * u[:, 2:4]
        pedestal[:, 1] *= -1
        tip[:, :2] = block[:, :2] + 0.12 * (u[:, 4:6] - 0.5)
        tip[:, 2] = 0.10 + 0.06 * u[:, 6]
        yaw = 0.6 * (u[:, 7] - 0.5)
        block_yaw = yaw + START_TURN_RAD[0] + (START_TURN_RAD[1] - START_TURN_RAD[0]) * u[:, 8]
        return np.concatenate([pointing_down(tip, yaw, TOOL_LENGTH_M), upright(block, block_yaw), pedestal], axis=1)

    def start(self, env_ids: Array, plans: Reals) -> None:
        """Write start states: everything at rest, the gripper open, the arm held by its servos."""
        n, array = len(JOINTS), self._physics.array
        joints = np.concatenate([plans[:, :n], np.full((len(plans), 2), OPEN_M)], axis=1)
        self._pedestal_pos_w[env_ids] = array(plans[:, n + 7 :])
        self.hand.place(env_ids, array(np.concatenate([joints, plans[:, n : n + 7]], axis=1)), array(joints))

    def command(self, actions: Array) -> None:
        """Command Cartesian steps and finger targets; the workspace box limits the fingertips."""
        super().command(actions)
        self.gripper.command(actions[:, 4])

    def observe(self, out: Mapping[str, Array], env_ids: Array) -> None:
        """Write observations; `observation_spec` names the columns."""
        xp, state, hand, block = self.xp, out["state"], self.hand, self.block
        hand.observe(state, env_ids)
        at = len(HAND_COLUMNS)
        self.gripper.observe(state, env_ids, at)
        at += len(FINGER_COLUMNS)
        pos = block.pos_w[env_ids]
        turn = fold(block.yaw_w(env_ids) - hand.yaw_w[env_ids], QUARTER_TURN_RAD, xp)
        to_block, to_goal = pos - hand.pos_w[env_ids], self._pedestal_pos_w[env_ids] - pos
        to_goal[:, 2] += PEDESTAL_HEIGHT_M + BLOCK_HALF_M
        self.turn[env_ids], self.to_block_w[env_ids], self.to_goal_w[env_ids] = turn, to_block, to_goal
        state[env_ids, at : at + 3] = to_block
        # the block has quarter-turn symmetry: observe four times its yaw
        state[env_ids, at + 3] = xp.sin(4 * turn)
        state[env_ids, at + 4] = xp.cos(4 * turn)
        state[env_ids, at + 5 : at + 8] = block.vel_w[env_ids]
        state[env_ids, at + 8 : at + 11] = to_goal

    def success(self) -> Array:
        """Success flags (N,): the block stands at rest on the pedestal and the fingers have withdrawn."""
        away, vel = self.to_goal_w, self.block.vel_w
        return (
            ((away[:, :2] ** 2).sum(axis=1) < SUCCESS_DISTANCE_M**2)
            & (self.xp.abs(away[:, 2]) < SUCCESS_HEIGHT_M)
            & ((vel**2).sum(axis=1) < SUCCESS_SPEED_MPS**2)
            & (self.to_block_w[:, 2] < -WITHDRAWN_M)
        )

    def distance(self) -> Array:
        """Distance to success (N,), m: the block's path up, across and down, plus the weighted distance of the tip."""
        xp, away = self.xp, self.to_goal_w
        across = xp.sqrt((away[:, :2] ** 2).sum(axis=1))
        # far from the pedestal the path leads over a point above it; near it, straight down
        detour = CARRY_ABOVE_M * xp.clip(across / PEDESTAL_HALF_WIDTH_M - 0.5, 0.0, 1.0)
        tip = xp.sqrt((self.to_block_w**2).sum(axis=1))
        return across + xp.abs(away[:, 2] + detour) + detour + METERS_PER_TIP_M * xp.clip(tip, WITHDRAWN_M, None)


def make_robot(seed: int) -> SimulatedRobot:
    """Make a simulated robot with this task for the control loop; a driver process steps it in real time."""
    from robotrl.sims.mujoco.engine.robot import SimulatedRobot

    return SimulatedRobot(MujocoCore(PickPlace("sparse", LIMIT_S), 1, seed, threads=1))
