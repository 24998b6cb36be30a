"""`mujoco/tabletop`: the arm points at, lifts or pushes the object that an instruction names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.engine.arrays import Array
from robotrl.sims.mujoco.engine.task import Ids, Param, TaskPhysics
from robotrl.sims.mujoco.manipulation.arm import ARM_RASTERS, JOINTS, pointing_down
from robotrl.sims.mujoco.manipulation.gripper import (
    FINGER_COLUMNS,
    GRIPPER_ACTION,
    OPEN_M,
    TOOL_LENGTH_M,
    Gripper,
    gripper_actuators,
    gripper_mjcf,
)
from robotrl.sims.mujoco.manipulation.hand import HAND_ACTIONS, HAND_COLUMNS, WorldHand, spec_of
from robotrl.sims.mujoco.manipulation.scene import (
    AREA_HIGH_M,
    AREA_LOW_M,
    MAT,
    ArmTask,
    FreeBlock,
    parameters,
    scene_mjcf,
    upright,
)
from robotrl.sims.mujoco.render.views import AnyView, Raster, View
from robotrl.sims.mujoco.tabletop import goals, layout
from robotrl.sims.mujoco.tabletop.language import (
    MATS,
    MAX_WORDS,
    MOVABLES,
    VOCABULARY,
    Composition,
    Compositions,
    InstructionFamily,
    chosen,
    encode,
)
from robotrl.sims.mujoco.tabletop.symmetries import MIRROR
from robotrl.spec import INSTRUCTION, Spec

Reals = NDArray[np.float64]

LIMIT_S = 14.0
"""Default time limit of an episode."""
THING_KG = 0.1
WORKSPACE_LOW_M = (0.26, -0.36, 0.008)
WORKSPACE_HIGH_M = (0.70, 0.36, 0.30)
"""Opposite corners (x, y, z, world frame) of the workspace box that limits the tip."""
RGB = {"red": "0.84 0.20 0.18", "green": "0.20 0.62 0.28", "blue": "0.20 0.36 0.82"}
PALE = {"red": "0.95 0.66 0.64", "green": "0.66 0.86 0.68", "blue": "0.66 0.74 0.95"}
"""Colours (RGB) of the mats."""
MEANT_COLUMNS = tuple(
    (f"{what}_{axis}_w", "m", -np.inf, np.inf) for what in ("meant_pos", "meant_goal") for axis in "xy"
)
"""Grounding targets: position of the object named in the instruction, and its goal if that is a single point."""
_SAID = 6


class Tabletop(ArmTask[WorldHand]):
    """Tabletop task; see `make` for the arguments."""

    name = "mujoco/tabletop"
    privileged = ("things", "meant")
    views: Mapping[str, AnyView] = {
        "front": View((1.45, 0.40, 0.80), (0.36, 0.0, 0.12), 41.0),
        "side": View((1.05, -0.95, 0.60), (0.42, 0.0, 0.12), 38.0),
        "top": View((0.95, 0.0, 1.15), (0.46, 0.0, 0.02), 38.0),
        **ARM_RASTERS,
        "flat_near": Raster("top", (0.48, 0.0, 0.0), 0.56),
        "flat_front": Raster("front", (0.46, 0.0, 0.05), 0.5, tilt_deg=50.0),
    }
    mirror = MIRROR

    def __init__(
        self,
        families: Sequence[str] | str | None,
        which: Compositions,
        things: int,
        mats: int,
        reward: Literal["sparse", "shaped"],
        limit_s: float,
    ) -> None:
        super().__init__(reward, limit_s)
        self.families: tuple[InstructionFamily, ...] = chosen(families)
        self.deck = layout.deck(self.families, which, things, mats)
        self.observation_spec = {
            "state": spec_of((*HAND_COLUMNS, *FINGER_COLUMNS)),
            INSTRUCTION: instruction_spec(),
            "things": _things_spec(),
            "meant": spec_of(MEANT_COLUMNS),
        }
        self.action_spec = spec_of((*HAND_ACTIONS, GRIPPER_ACTION))

    def xml(self) -> str:
        """MJCF of arm, gripper, objects and mats."""
        half = layout.HALF_M
        things = [MAT]
        for name in MATS:
            look = f'size="{layout.MAT_HALF_M} {layout.MAT_HALF_M} 0.0008" rgba="{PALE[name.split()[0]]} 1"'
            things.append(f'<body name="{name}" mocap="true"><geom class="mark" {look}/></body>')
        for name in MOVABLES:
            rgb, shape = RGB[name.split()[0]], name.split()[1]
            size = f"{half} {half} {half}" if shape == "block" else f"{half} {half}"
            kind = "box" if shape == "block" else "cylinder"
            things.append(
                f'<body name="{name}" pos="0 0 {half}"><freejoint name="{name}"/><geom class="block" type="{kind}"'
                f' size="{size}" mass="{THING_KG}" rgba="{rgb} 1"/></body>'
            )
        return scene_mjcf("tabletop", gripper_mjcf(), "\n".join(things), gripper_actuators())

    def bind(self, physics: TaskPhysics) -> None:
        """Store views of the simulations' arrays."""
        super().bind(physics)
        self.hand = WorldHand(physics, TOOL_LENGTH_M, WORKSPACE_LOW_M, WORKSPACE_HIGH_M)
        self.gripper = Gripper(physics)
        self.things = tuple(FreeBlock(physics, name) for name in MOVABLES)
        self._mats_w: Array = physics.bind("mocap_pos")
        xp, k = physics.xp, len(MOVABLES)
        self._directions: Array = physics.array(layout.DIRECTIONS_M)
        self._area_low, self._area_high = (physics.array(np.array(corner)) for corner in (AREA_LOW_M, AREA_HIGH_M))
        self.instruction_ids: Array = physics.zeros((_SAID,), xp.int64)
        """(N, 6) instruction of each env; see `layout.TabletopStarts.instruction_ids`."""
        self.words: Array = physics.array(np.zeros((physics.num_envs, MAX_WORDS), np.int32))
        """(N, MAX_WORDS) word numbers of the observed instruction."""
        self._start: Array = physics.zeros((k, 2))
        self._start_yaw: Array = physics.zeros((k,))
        self._lifted: Array = physics.zeros(dtype=xp.bool)
        self.here: Array = physics.zeros((k,), xp.bool)
        """(N, 6) true for objects on the table."""
        self.pos_w: Array = physics.zeros((k, 3))
        """(N, 6, 3) positions of the movable objects, m, as last observed."""
        self.yaw_w: Array = physics.zeros((k,))
        """(N, 6) yaws of the movable objects, rad, modulo a quarter turn, as last observed."""
        self._speed: Array = physics.zeros((k,))

    def params(self) -> dict[str, Param]:
        """Parameters that may be randomized: all friction, the objects' masses, servo stiffness."""
        return parameters(self._model, *MOVABLES)

    def memory(self) -> Mapping[str, NDArray[Any]]:
        """Task state: instruction, observed words, objects present, start poses, and the lifted flag."""
        return {
            "says": self.instruction_ids,
            "words": self.words,
            "here": self.here,
            "start": self._start,
            "start_yaw": self._start_yaw,
            "lifted": self._lifted,
        }

    def plan(self, state_ids: Ids) -> Reals:
        """Start states (n, 69): instruction (6), joints (6), objects (6 x 7), mats (3 x 3), presence flags (6)."""
        found = layout.lay(state_ids, self.deck)
        n = len(state_ids)
        joints = pointing_down(found.tip[:, :3], found.tip[:, 3], TOOL_LENGTH_M)
        pos = np.full((n, len(MOVABLES), 3), layout.HALF_M)
        pos[:, :, :2] = found.pos
        poses = upright(pos.reshape(-1, 3), found.yaw.reshape(-1)).reshape(n, -1)
        mats = np.zeros((n, len(MATS), 3))
        mats[:, :, :2] = found.mats
        parts = (found.instruction_ids, joints, poses, mats.reshape(n, -1), found.here)
        return np.concatenate([np.asarray(part, np.float64) for part in parts], axis=1)

    def start(self, env_ids: Array, plans: Reals) -> None:
        """Write start states: everything at rest, the gripper open, the arm held by its servos."""
        array, n, poses = self._physics.array, len(plans), 7 * len(MOVABLES)
        said = plans[:, :_SAID].astype(np.int64)
        self.instruction_ids[env_ids] = array(said)
        at = _SAID + len(JOINTS)
        joints = np.concatenate([plans[:, _SAID:at], np.full((n, 2), OPEN_M)], axis=1)
        things = plans[:, at : at + poses]
        mats = plans[:, at + poses : at + poses + 3 * len(MATS)].reshape(n, len(MATS), 3)
        self._mats_w[env_ids] = array(mats)
        self.here[env_ids] = array(plans[:, at + poses + 3 * len(MATS) :] > 0)
        self.hand.place(env_ids, array(np.concatenate([joints, things], axis=1)), array(joints))
        rows = things.reshape(n, len(MOVABLES), 7)
        self._start[env_ids] = array(rows[..., :2])
        self._start_yaw[env_ids] = array(2 * np.arctan2(rows[..., 6], rows[..., 3]))
        self._lifted[env_ids] = False
        self.words[env_ids] = array(np.array([encode(instruction_text(row)) for row in said]).reshape(n, MAX_WORDS))

    def moved(self, env_ids: Ids, offsets_m: Reals) -> None:
        """Measure pushes and lifts from where the things (n, things, 2) were moved to before the first step."""
        self._start[env_ids] += self._physics.array(offsets_m)

    def command(self, actions: Array) -> None:
        """Command Cartesian steps and finger targets; the workspace box limits the fingertips."""
        super().command(actions)
        self.gripper.command(actions[:, 4])

    def observe(self, out: Mapping[str, Array], env_ids: Array) -> None:
        """Write observations; `observation_spec` names the columns."""
        xp, state = self.xp, out["state"]
        self.hand.observe(state, env_ids)
        self.gripper.observe(state, env_ids, len(HAND_COLUMNS))
        out[INSTRUCTION][env_ids] = self.words[env_ids]
        things = out["things"]
        for k, thing in enumerate(self.things):
            pos, yaw = thing.pos_w[env_ids], thing.yaw_w(env_ids)
            self.pos_w[env_ids, k], self.yaw_w[env_ids, k] = pos, yaw
            self._speed[env_ids, k] = xp.sqrt((thing.vel_w[env_ids] ** 2).sum(axis=1))
            here = self.here[env_ids, k]
            at = 6 * k
            things[env_ids, at] = 1.0 * here
            things[env_ids, at + 1 : at + 4] = pos * here[:, None]
            things[env_ids, at + 4] = xp.sin(4 * yaw) * here
            things[env_ids, at + 5] = xp.cos(4 * yaw) * here
        mats = self._mats_w[env_ids][:, :, :2]
        here = (mats[..., 0] < layout.AWAY_M)[..., None]
        at = 6 * len(self.things)
        things[env_ids, at : at + 3 * len(MATS)] = xp.concat([1.0 * here, mats * here], axis=2).reshape(len(mats), -1)
        instruction_ids, pos = self.instruction_ids[env_ids], self.pos_w[env_ids]
        every, named = xp.arange(len(instruction_ids), device=pos.device), instruction_ids[:, 1]
        self._lifted[env_ids] |= pos[every, named, 2] > layout.HALF_M + goals.OFF_TABLE_M
        out["meant"][env_ids, :2] = pos[every, named, :2]
        begin = self._start[env_ids][every, named]
        out["meant"][env_ids, 2:] = layout.spot(instruction_ids, pos[..., :2], mats, begin, xp, self._directions)

    def now(self) -> goals.SceneState:
        """Scene state as last observed."""
        vel = self.hand.vel_w[:, :3]
        return goals.SceneState(
            self.instruction_ids,
            self.pos_w,
            self._speed,
            self.yaw_w,
            self._mats_w[..., :2],
            self.hand.pos_w,
            self.xp.sqrt((vel**2).sum(axis=1)),
            self._start,
            self._start_yaw,
            self._lifted,
        )

    def success(self) -> Array:
        """Success flags (N,): the instruction is carried out."""
        return goals.done(self.now(), self.xp, self._directions)

    def failure(self) -> Array:
        """Failure flags (N,): an object has left the allowed area."""
        pos = self.pos_w[..., :2]
        outside = ((pos < self._area_low) | (pos > self._area_high)).any(axis=2)
        return (outside & self.here).any(axis=1)

    def distance(self) -> Array:
        """Distance to success (N,), m; see `goals.distance`."""
        return goals.distance(self.now(), self.xp, self._directions)


def instruction_text(row: Sequence[int] | NDArray[np.int64]) -> str:
    """Text of the instruction in a row of `layout.TabletopStarts.instruction_ids`."""
    family, a, b, mat, direction, way = (int(x) for x in row)
    return Composition(InstructionFamily(family), a, b, mat, direction).say(way)


def instruction_spec() -> Spec:
    """Spec of an instruction's word numbers."""
    names = tuple(f"word_{i}" for i in range(MAX_WORDS))
    high = float(len(VOCABULARY) - 1)
    low, units = (0.0,) * MAX_WORDS, ("1",) * MAX_WORDS
    return Spec((MAX_WORDS,), names, units, low, (high,) * MAX_WORDS, "int32", VOCABULARY)


def _things_spec() -> Spec:
    columns: list[tuple[str, str, float, float]] = []
    for name in MOVABLES:
        word = name.replace(" ", "_")
        columns.append((f"{word}_here", "1", 0.0, 1.0))
        columns += [(f"{word}_pos_{axis}_w", "m", -np.inf, np.inf) for axis in "xyz"]
        columns += [(f"{word}_yaw4_{part}", "1", -1.0, 1.0) for part in ("sin", "cos")]
    for name in MATS:
        word = name.replace(" ", "_")
        columns.append((f"{word}_here", "1", 0.0, 1.0))
        columns += [(f"{word}_pos_{axis}_w", "m", -1.0, 1.0) for axis in "xy"]
    return spec_of(tuple(columns))
