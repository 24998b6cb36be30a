"""Two-finger gripper for the arm: MJCF, finger control and observation.

Each finger is a slide joint with a force-limited position servo. The fingers are not coupled: only friction holds a
gripped object, and only the servos' stiffness keeps it centred.
"""

from __future__ import annotations

from collections.abc import Mapping

from robotrl.sims.mujoco.engine.arrays import Array
from robotrl.sims.mujoco.engine.task import TaskPhysics
from robotrl.sims.mujoco.manipulation.arm import JOINTS
from robotrl.sims.mujoco.manipulation.hand import Column

FINGERS = ("left_finger", "right_finger")
TOOL_LENGTH_M = 0.14
"""Distance from flange to fingertips."""
OPEN_M = 0.04
"""Distance of an open finger's pad from the centre."""
STIFFNESS_N_PER_M = 300.0
DAMPING_NS_PER_M = 60.0
FORCE_LIMIT_N = 10.0
PAD_HALF_M = (0.011, 0.006, 0.02)
"""Half width, half thickness and half height of a finger's pad."""
PAD_FRICTION = 1.0

FINGER_COLUMNS: tuple[Column, ...] = tuple((f"{name}_pos", "m", -0.02, OPEN_M + 0.02) for name in FINGERS)
SWAPPED_FINGERS: Mapping[str, str] = {f"{FINGERS[i]}_pos": f"{FINGERS[1 - i]}_pos" for i in range(2)}
"""Column of a finger to that of the other, whose place it takes in the mirror."""
GRIPPER_ACTION: Column = ("finger_target", f"{OPEN_M / 2:g} m from half open", -1.0, 1.0)


def gripper_mjcf() -> str:
    """MJCF elements for the flange body: palm and fingers; the finger joints follow the arm's joints."""
    wide, thick, tall = PAD_HALF_M

    def finger(name: str, side: int) -> str:
        return f"""
<body name="{name}" pos="0 {side * thick} {TOOL_LENGTH_M - tall}" gravcomp="1">
  <joint name="{name}" type="slide" axis="0 {side} 0" range="0 {OPEN_M}" armature="0.05" damping="1"
   actuatorfrcrange="{-FORCE_LIMIT_N} {FORCE_LIMIT_N}"/>
  <geom name="{name}" class="tool" type="box" size="{wide} {thick} {tall}" mass="0.05"
   friction="{PAD_FRICTION} 0.02 0.0001" condim="4" solref="0.01 1" solimp="0.98 0.995 0.001"/>
  <geom class="arm_light" type="box" size="{wide} {thick} 0.012" pos="0 0 {-tall - 0.012}" mass="0.02"/>
</body>"""

    palm = TOOL_LENGTH_M - 2 * tall - 0.024
    return f"""
<geom class="arm_dark" type="cylinder" size="0.022 {(palm - 0.024) / 2}" pos="0 0 {(palm - 0.024) / 2}" mass="0.1"/>
<geom class="arm_dark" type="box" size="0.018 {OPEN_M + 2 * thick} 0.012" pos="0 0 {palm - 0.012}" mass="0.2"/>
{finger(FINGERS[0], 1)}{finger(FINGERS[1], -1)}"""


def gripper_actuators() -> str:
    """MJCF elements for <actuator>, to follow the arm's."""
    return "\n".join(
        f'<position name="{name}" joint="{name}" kp="{STIFFNESS_N_PER_M}" kv="{DAMPING_NS_PER_M}"'
        f' ctrlrange="0 {OPEN_M}" forcerange="{-FORCE_LIMIT_N} {FORCE_LIMIT_N}"/>'
        for name in FINGERS
    )


class Gripper:
    """Fingers of all envs."""

    def __init__(self, physics: TaskPhysics) -> None:
        first = len(JOINTS)
        self.pos: Array = physics.bind("qpos")[:, first : first + 2]
        """(N, 2) distance of each pad from the centre, m."""
        self._ctrl: Array = physics.ctrl[:, first : first + 2]
        self._asarray = physics.xp.asarray

    def command(self, action: Array) -> None:
        """Set both finger targets from actions (N,): -1 is closed, 1 is open."""
        self._ctrl[:] = (OPEN_M / 2 * (1 + self._asarray(action, dtype=self.pos.dtype)))[:, None]

    def observe(self, state: Array, env_ids: Array, at: int) -> None:
        """Write `FINGER_COLUMNS` into the rows `env_ids` of `state`, from column `at`."""
        state[env_ids, at : at + 2] = self.pos[env_ids]
