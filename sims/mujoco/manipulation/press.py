"""`mujoco/press`: the arm presses a pad on a surface of unknown height, tilt and stiffness, at a goal and with a force.

The page docs/sims/press.md gives observation, action, reward, starts and ends as tables. An action is repeated at every
servo tick, each time from where the tip is then: in free space it is a speed of the tip, in contact a force.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from robotrl.fn.random import counter_rng
from robotrl.sims.mujoco.engine.arrays import Array
from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.engine.physics import Derived
from robotrl.sims.mujoco.engine.task import Ids, Param, TaskPhysics
from robotrl.sims.mujoco.manipulation.arm import ARM_RASTERS, JOINTS, pointing_down
from robotrl.sims.mujoco.manipulation.hand import HAND_ACTIONS, HAND_COLUMNS, INF, WorldHand, spec_of
from robotrl.sims.mujoco.manipulation.scene import ArmTask, parameters, scene_mjcf
from robotrl.sims.mujoco.render.views import AnyView, View

if TYPE_CHECKING:
    from robotrl.sims.mujoco.engine.robot import RepeatingRobot

Reals = NDArray[np.float64]

PAD_RADIUS_M = 0.015
TOOL_LENGTH_M = 0.12
"""Distance from the flange to the lowest point of the pad."""
LIMIT_S = 4.0
"""Default time limit of an episode."""
FORCE_LIMIT_N = 30.0
"""Contact force above which a servo tick is a violation; the episode goes on."""
SUCCESS_FORCE_N = (6.0, 16.0)
"""Success: range of the contact force."""
SUCCESS_DISTANCE_M = 0.012
"""Success: largest horizontal distance of the tip from the goal."""
SUCCESS_SPEED_MPS = 0.02
"""Success: largest speed of the tip."""
METERS_PER_N = 0.001
"""Weight of the force that is missing or too much, m per N, in the distance to success."""
WORKSPACE_LOW_M = (0.28, -0.35, 0.0)
WORKSPACE_HIGH_M = (0.70, 0.35, 0.36)
"""Opposite corners (x, y, z, world frame) of the workspace box that limits the tip."""
GOAL_LOW_M = (0.40, -0.15)
GOAL_HIGH_M = (0.58, 0.15)
"""Opposite corners (x, y, world frame) of the box of goals."""
START_DISTANCE_M = (0.06, 0.12)
"""Range of the tip's horizontal distance from the goal at the start."""
START_HEIGHT_M = (0.05, 0.09)
"""Range of the tip's height above the surface at the start."""
SURFACE_HEIGHT_M = (0.05, 0.14)
"""Range of the surface's height at the goal."""
HEIGHT_ERROR_M = 0.015
"""Largest error of the observed estimate of that height, either way."""
TILT_RAD = 0.15
"""Largest tilt of the surface, about any horizontal axis."""
STIFFNESS_N_PER_M = (1_000.0, 8_000.0)
"""Range of the surface's stiffness, log-uniform, for an arm of the mass `ARM_MASS_KG` at its tip."""
ARM_MASS_KG = 3.0
"""Mass of the arm as felt at its tip, about: MuJoCo states a contact's stiffness for each kilogram."""
DAMPING_RATIO = 0.2
"""Damping of the surface, as a part of the critical one of that mass."""
RETRACT = (0.0, 0.0, 0.2, 0.0)
"""Action that takes the pad off the surface, slowly."""
SERVO_COLUMNS = (
    *("tip_vel_x_w", "tip_vel_y_w", "tip_vel_z_w"),
    *("tip_above_estimate", "contact_force", "contact_force_rate"),
)
"""Columns of the observation that are measured at every servo tick."""
_START_SEED = 0x9E55


class Press(ArmTask[WorldHand]):
    """Pressing task; see `make` for the arguments."""

    name = "mujoco/press"
    reads_derived_fields: Derived = "stepped"
    servo_ticks = ArmTask.substeps
    """Servo ticks in a control step: one for each physics step, so that no force goes unseen."""
    servo_columns = SERVO_COLUMNS
    hazard_column = "contact_force"
    hazard_limit = FORCE_LIMIT_N
    retract = RETRACT
    views: Mapping[str, AnyView] = {
        "front": View((1.45, 0.62, 0.78), (0.33, 0.0, 0.24), 39.0),
        "side": View((0.66, -1.25, 0.55), (0.33, 0.0, 0.26), 38.0),
        "top": View((1.02, 0.0, 1.05), (0.47, 0.0, 0.12), 40.0),
        **ARM_RASTERS,
    }

    def __init__(self, reward: Literal["sparse", "shaped"], limit_s: float) -> None:
        super().__init__(reward, limit_s)
        self.observation_spec = {
            "state": spec_of(
                (
                    *HAND_COLUMNS,
                    *((f"tip_to_goal_{axis}_w", "m", -1.0, 1.0) for axis in "xy"),
                    ("tip_above_estimate", "m", -1.0, 1.0),
                    ("contact_force", "N", 0.0, INF),
                    ("contact_force_rate", "N/s", -INF, INF),
                )
            )
        }
        self.action_spec = spec_of(HAND_ACTIONS)

    def xml(self) -> str:
        """MJCF of arm, pad and surface."""
        radius = PAD_RADIUS_M
        tool = f"""
<geom class="arm_dark" type="cylinder" size="0.012 {(TOOL_LENGTH_M - radius) / 2}"
 pos="0 0 {(TOOL_LENGTH_M - radius) / 2}" mass="0.1"/>
<geom name="pad" class="tool" type="sphere" size="{radius}" pos="0 0 {TOOL_LENGTH_M - radius}" mass="0.05"/>
<site name="pad" type="sphere" size="{1.4 * radius}" pos="0 0 {TOOL_LENGTH_M - radius}" rgba="0 0 0 0"/>
<site name="tip" pos="0 0 {TOOL_LENGTH_M}" size="0.004"/>"""
        # a soft constraint: the surface is a spring, which the arm's own force compresses
        surface = """
<body name="surface" mocap="true" pos="0.5 0 0.1">
  <geom name="surface" class="thing" size="0.2 0.2 0.02" pos="0 0 -0.02" priority="1" solimp="0.1 0.1 0.001"/>
</body>
<body name="goal" mocap="true" pos="0.5 0 0.1">
  <geom class="mark" type="cylinder" size="0.012 0.0005"/>
</body>"""
        sensor = '<sensor><touch name="force" site="pad"/></sensor>\n</mujoco>'
        return scene_mjcf("press", tool, surface).replace("</mujoco>", sensor)

    def bind(self, physics: TaskPhysics) -> None:
        """Store views of the simulations' arrays."""
        super().bind(physics)
        self.hand = WorldHand(physics, TOOL_LENGTH_M, WORKSPACE_LOW_M, WORKSPACE_HIGH_M)
        self._mocap_pos: Array = physics.bind("mocap_pos")
        self._mocap_quat: Array = physics.bind("mocap_quat")
        self._force: Array = physics.field("sensordata")
        self._solref: Array = physics.parameter("geom_solref")
        self._surface = int(physics.model.geom("surface").id)
        self._force_before: Array = physics.zeros()
        self._estimate_m: Array = physics.zeros()
        self.delta_w: Array = physics.zeros((2,))
        """(N, 2) horizontal part of the way from the tip to the goal, m, as last observed."""

    @property
    def force_n(self) -> Array:
        """(N,) contact force of the last physics step."""
        return self._force[:, 0]

    @property
    def above_estimate_m(self) -> Array:
        """(N,) height of the tip above the estimated height of the surface, as last observed."""
        return self.hand.pos_w[:, 2] - self._estimate_m

    def memory(self) -> Mapping[str, NDArray[Any]]:
        """The force before the last command, the estimated height, and each env's surface (it is in the model)."""
        return {"force_before": self._force_before, "estimate": self._estimate_m, "solref": self._solref}

    def params(self) -> dict[str, Param]:
        """Parameters that may be randomized: servo stiffness, friction of the surface."""
        friction = Param(("geom_friction",), (int(self._model.geom("surface").id),), 0.2, 4.0, (0,))
        return {**parameters(self._model), "friction": friction}

    def plan(self, state_ids: Ids) -> Reals:
        """Start states (n, 16): joints (6), goal (3), orientation of the surface (4), estimated height, solref (2)."""
        u = counter_rng.uniform(_START_SEED, state_ids, 11)
        low, high = np.asarray(GOAL_LOW_M), np.asarray(GOAL_HIGH_M)
        goal = np.empty((len(u), 3))
        goal[:, :2] = low + (high - low) * u[:, :2]
        goal[:, 2] = _between(SURFACE_HEIGHT_M, u[:, 2])
        axis, tilt = 2 * np.pi * u[:, 3], TILT_RAD * u[:, 4]
        quat = np.zeros((len(u), 4))
        quat[:, 0] = np.cos(tilt / 2)
        quat[:, 1], quat[:, 2] = np.sin(tilt / 2) * np.cos(axis), np.sin(tilt / 2) * np.sin(axis)
        angle, distance = 2 * np.pi * u[:, 5], _between(START_DISTANCE_M, u[:, 6])
        tip = goal + np.stack([distance * np.cos(angle), distance * np.sin(angle), np.zeros(len(u))], axis=1)
        # the plane's normal is (sin(tilt) sin(axis), -sin(tilt) cos(axis), cos(tilt))
        rise = -np.tan(tilt) * (np.sin(axis) * np.cos(angle) - np.cos(axis) * np.sin(angle)) * distance
        tip[:, 2] += rise + _between(START_HEIGHT_M, u[:, 7])
        yaw = np.arctan2(tip[:, 1], tip[:, 0])
        estimate = goal[:, 2] + HEIGHT_ERROR_M * (2 * u[:, 8] - 1)
        soft, hard = np.log(STIFFNESS_N_PER_M)
        stiffness = np.exp(soft + (hard - soft) * u[:, 9])
        damping = 2 * DAMPING_RATIO * np.sqrt(stiffness * ARM_MASS_KG)
        spring = -np.stack([stiffness, damping], axis=1) / ARM_MASS_KG
        joints = pointing_down(tip, yaw, TOOL_LENGTH_M)
        return np.concatenate([joints, goal, quat, estimate[:, None], spring], axis=1)

    def start(self, env_ids: Array, plans: Reals) -> None:
        """Write start states: the arm at rest above the surface, held by its servos."""
        found = self._physics.array(plans)
        joints = found[:, : len(JOINTS)]
        self._mocap_pos[env_ids] = found[:, None, 6:9]
        self._mocap_quat[env_ids] = found[:, None, 9:13]
        self._estimate_m[env_ids] = found[:, 13]
        self._solref[env_ids, self._surface] = found[:, 14:16]
        self._force_before[env_ids] = 0
        self.hand.place(env_ids, joints, joints)

    def begin(self) -> None:
        """Begin a control step: the shaped reward counts from here."""
        if self.shaped:
            self._distance_before = self.distance()

    def command(self, actions: Array) -> None:
        """Command the actions of a servo tick, from where the tips are."""
        self._force_before[:] = self.force_n
        self.hand.command(actions)

    def observe(self, out: Mapping[str, Array], env_ids: Array) -> None:
        """Write observations; `observation_spec` names the columns."""
        state, hand = out["state"], self.hand
        hand.observe(state, env_ids)
        self.delta_w[env_ids] = self._mocap_pos[env_ids, 1, :2] - hand.pos_w[env_ids, :2]
        force = self.force_n[env_ids]
        at = len(HAND_COLUMNS)
        state[env_ids, at : at + 2] = self.delta_w[env_ids]
        state[env_ids, at + 2] = self.above_estimate_m[env_ids]
        state[env_ids, at + 3] = force
        state[env_ids, at + 4] = (force - self._force_before[env_ids]) * (self.servo_ticks / self.control_dt_s)

    def success(self) -> Array:
        """Success flags (N,): the pad is at rest at the goal, and its force is in the range."""
        low, high = SUCCESS_FORCE_N
        force, speed = self.force_n, self.hand.vel_w[:, :3]
        return (
            ((self.delta_w**2).sum(axis=1) < SUCCESS_DISTANCE_M**2)
            & (force > low)
            & (force < high)
            & ((speed**2).sum(axis=1) < SUCCESS_SPEED_MPS**2)
        )

    def distance(self) -> Array:
        """Distance to success (N,): horizontal metres, height above the goal, and the force's error in metres."""
        xp, force = self.xp, self.force_n
        above = xp.abs(self.hand.pos_w[:, 2] - self._mocap_pos[:, 1, 2])
        wrong = xp.abs(force - sum(SUCCESS_FORCE_N) / 2)
        return xp.sqrt((self.delta_w**2).sum(axis=1)) + above + METERS_PER_N * wrong


def _between(ends: tuple[float, float], share: Reals) -> Reals:
    """Numbers (n,) that divide a range as shares (n,) say."""
    return ends[0] + (ends[1] - ends[0]) * share


def make_robot(seed: int) -> RepeatingRobot:
    """Make a simulated robot with this task for the control loop; a driver process steps it in real time."""
    from robotrl.sims.mujoco.engine.robot import RepeatingRobot

    return RepeatingRobot(MujocoCore(Press("sparse", LIMIT_S), 1, seed, threads=1))
