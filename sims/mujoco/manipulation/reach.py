"""`mujoco/reach`: the arm moves its tool to a pose in free space and stops there.

The page docs/sims/reach.md gives observation, action, reward, starts and ends as tables.
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
from robotrl.sims.mujoco.engine.task import Ids, Param, TaskPhysics
from robotrl.sims.mujoco.manipulation.arm import ARM_RASTERS, JOINTS, pointing_down
from robotrl.sims.mujoco.manipulation.hand import HAND_ACTIONS, HAND_COLUMNS, WorldHand, fold, odd_columns, spec_of
from robotrl.sims.mujoco.manipulation.scene import ArmTask, parameters, scene_mjcf, upright
from robotrl.sims.mujoco.render.views import AnyView, View

if TYPE_CHECKING:
    from robotrl.sims.mujoco.engine.robot import SimulatedRobot

Reals = NDArray[np.float64]

TOOL_LENGTH_M = 0.12
LIMIT_S = 4.0
"""Default time limit of an episode."""
SUCCESS_DISTANCE_M = 0.01
"""Success: largest distance of the tip from the goal."""
SUCCESS_YAW_RAD = 0.08
"""Success: largest yaw error of the tool."""
SUCCESS_SPEED_MPS = 0.05
"""Success: largest speed of the tip."""
METERS_PER_RAD = 0.05
"""Weight of the yaw error, m per rad, in the distance to the goal."""
WORKSPACE_LOW_M = (0.28, -0.35, 0.03)
WORKSPACE_HIGH_M = (0.70, 0.35, 0.36)
"""Opposite corners (x, y, z, world frame) of the workspace box that limits the tip."""
GOAL_LOW_M = (0.36, -0.25, 0.08)
GOAL_HIGH_M = (0.60, 0.25, 0.30)
"""Opposite corners (x, y, z, world frame) of the box of starts and goals."""
START_TURN_RAD = 0.4
"""Largest start angle of the last joint from the middle of its range, either way."""
GOAL_TURN_RAD = (np.pi / 2 - 0.6, np.pi / 2 + 0.6)
"""Range of the last joint's angle at the goal, or equivalently half a turn less (the tool is symmetric)."""
_START_SEED = 0x4EAC


class Reach(ArmTask[WorldHand]):
    """Reaching task; see `make` for the arguments."""

    name = "mujoco/reach"
    views: Mapping[str, AnyView] = {
        "front": View((1.45, 0.62, 0.78), (0.33, 0.0, 0.24), 39.0),
        "side": View((0.66, -1.25, 0.55), (0.33, 0.0, 0.26), 38.0),
        "top": View((1.02, 0.0, 1.05), (0.47, 0.0, 0.12), 40.0),
        **ARM_RASTERS,
    }
    mirror = MirrorRule(odd_columns("w") | {"tip_to_goal_y_w", "tip_to_goal_yaw2_sin"})

    def __init__(self, reward: Literal["sparse", "shaped"], limit_s: float) -> None:
        super().__init__(reward, limit_s)
        self.observation_spec = {
            "state": spec_of(
                (
                    *HAND_COLUMNS,
                    *((f"tip_to_goal_{axis}_w", "m", -1.0, 1.0) for axis in "xyz"),
                    ("tip_to_goal_yaw2_sin", "1", -1.0, 1.0),
                    ("tip_to_goal_yaw2_cos", "1", -1.0, 1.0),
                )
            )
        }
        self.action_spec = spec_of(HAND_ACTIONS)

    def xml(self) -> str:
        """MJCF of arm, tool and goal marker."""
        fork = "\n".join(
            f'<geom class="{{kind}}" type="capsule" size="0.009" fromto="{x} 0 {{top}} {x} 0 {{end}}"/>'
            for x in (-0.045, 0.045)
        )
        bar = '<geom class="{kind}" type="box" size="0.054 0.012 0.012" pos="0 0 {top}"/>'
        shape = f"{bar}\n{fork}"
        tool = f"""
<geom class="arm_dark" type="cylinder" size="0.016 0.03" pos="0 0 0.03" mass="0.1"/>
{shape.format(kind="fork", top=TOOL_LENGTH_M - 0.06, end=TOOL_LENGTH_M - 0.009)}"""
        goal = f"""
<body name="goal" mocap="true" pos="0.5 0 0.2">
  {shape.format(kind="mark", top=0.06, end=0.009)}
</body>"""
        looks = (
            '<default class="fork"><geom contype="0" conaffinity="0" mass="0.03" rgba="0.95 0.55 0.10 1"/></default>'
        )
        return scene_mjcf("reach", tool, goal, defaults=looks)

    def bind(self, physics: TaskPhysics) -> None:
        """Store views of the simulations' arrays."""
        super().bind(physics)
        self.hand = WorldHand(physics, TOOL_LENGTH_M, WORKSPACE_LOW_M, WORKSPACE_HIGH_M)
        self.goal_pos_w: Array = physics.bind("mocap_pos")[:, 0]
        """(N, 3) goal position, world frame, m."""
        self._goal_quat: Array = physics.bind("mocap_quat")[:, 0]
        self.delta_w: Array = physics.zeros((3,))
        """(N, 3) from the tip to the goal, m, as last observed."""
        self.turn: Array = physics.zeros()
        """(N,) from the tool's yaw to the goal's, rad, within a quarter turn either way, as last observed."""

    def params(self) -> dict[str, Param]:
        """Parameters that may be randomized: servo stiffness."""
        return parameters(self._model)

    def plan(self, state_ids: Ids) -> Reals:
        """Start states (n, 13): joints (6), position (3) and orientation (4) of the goal."""
        u = counter_rng.uniform(_START_SEED, state_ids, 8)
        low, high = np.asarray(GOAL_LOW_M), np.asarray(GOAL_HIGH_M)
        start, goal = low + (high - low) * u[:, :3], low + (high - low) * u[:, 3:6]
        joint = START_TURN_RAD * (2 * u[:, 6] - 1)
        goal_joint = GOAL_TURN_RAD[0] + (GOAL_TURN_RAD[1] - GOAL_TURN_RAD[0]) * u[:, 7]
        # the tool points down, so its yaw is the base angle minus that of the last joint
        yaw, goal_yaw = np.arctan2(start[:, 1], start[:, 0]) - joint, np.arctan2(goal[:, 1], goal[:, 0]) - goal_joint
        return np.concatenate([pointing_down(start, yaw, TOOL_LENGTH_M), upright(goal, goal_yaw)], axis=1)

    def start(self, env_ids: Array, plans: Reals) -> None:
        """Write start states: the arm at rest, held by its servos."""
        found = self._physics.array(plans)
        joints = found[:, : len(JOINTS)]
        self.goal_pos_w[env_ids] = found[:, 6:9]
        self._goal_quat[env_ids] = found[:, 9:]
        self.hand.place(env_ids, joints, joints)

    def observe(self, out: Mapping[str, Array], env_ids: Array) -> None:
        """Write observations; `observation_spec` names the columns."""
        xp, state, hand = self.xp, out["state"], self.hand
        hand.observe(state, env_ids)
        quat = self._goal_quat[env_ids]
        goal_yaw = 2 * xp.atan2(quat[:, 3], quat[:, 0])
        # the fork has half-turn symmetry
        turn = fold(goal_yaw - hand.yaw_w[env_ids], np.pi, xp)
        self.turn[env_ids] = turn
        self.delta_w[env_ids] = self.goal_pos_w[env_ids] - hand.pos_w[env_ids]
        at = len(HAND_COLUMNS)
        state[env_ids, at : at + 3] = self.delta_w[env_ids]
        state[env_ids, at + 3] = xp.sin(2 * turn)
        state[env_ids, at + 4] = xp.cos(2 * turn)

    def success(self) -> Array:
        """Success flags (N,): the tool is at rest at the goal."""
        delta, speed = self.delta_w, self.hand.vel_w[:, :3]
        return (
            ((delta**2).sum(axis=1) < SUCCESS_DISTANCE_M**2)
            & (self.xp.abs(self.turn) < SUCCESS_YAW_RAD)
            & ((speed**2).sum(axis=1) < SUCCESS_SPEED_MPS**2)
        )

    def distance(self) -> Array:
        """Distance to success (N,): metres, plus 5 cm per radian of yaw error."""
        xp = self.xp
        return xp.sqrt((self.delta_w**2).sum(axis=1)) + METERS_PER_RAD * xp.abs(self.turn)


def make_robot(seed: int) -> SimulatedRobot:
    """Make a simulated robot with this task for the control loop; a driver process steps it in real time."""
    from robotrl.sims.mujoco.engine.robot import SimulatedRobot

    return SimulatedRobot(MujocoCore(Reach("sparse", LIMIT_S), 1, seed, threads=1))
