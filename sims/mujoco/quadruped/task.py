"""`mujoco/quadruped-velocity`: a quadruped tracks velocity commands with joint position targets at 50 Hz.

The page docs/sims/quadruped-velocity.md gives observation, action, reward, starts and ends as tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from robotrl.fn.random import counter_rng
from robotrl.sims.mujoco.engine.arrays import Array
from robotrl.sims.mujoco.engine.physics import Derived
from robotrl.sims.mujoco.engine.task import Ids, Outcome, Param, TaskPhysics
from robotrl.sims.mujoco.quadruped import rewards, robot, schedule
from robotrl.sims.mujoco.quadruped.rewards import RewardScales
from robotrl.sims.mujoco.quadruped.schedule import CommandCfg, PushScheduleCfg
from robotrl.sims.mujoco.quadruped.terrain import Terrain
from robotrl.sims.mujoco.render.views import AnyView, Raster, View
from robotrl.spec import Spec

Reals = NDArray[np.float64]

CONTROL_DT_S = robot.PHYSICS_DT_S * robot.SUBSTEPS
NOISE = {"trunk_rate": 0.2, "gravity": 0.05, "joint_pos": 0.01, "joint_vel": 0.5}
"""Amplitudes of measurement noise for `noise` 1, in rad/s, 1, rad and rad/s."""
CONTACT_M = 0.005
"""Clearance below which a foot, knee or trunk counts as touching the ground."""
FALLEN_GRAVITY_Z = -0.5
"""Projected gravity z above which the robot has fallen (tilt of more than 60 degrees)."""
START_CLEARANCE_M = 0.06
TERMS = tuple(field.name for field in fields(RewardScales))
RANDOMIZATION: Mapping[str, tuple[float, float]] = {
    "friction": (0.5, 1.5),
    "trunk_mass": (0.85, 1.3),
    "kp": (0.85, 1.15),
    "kd": (0.8, 1.2),
    "latency": (0.0, 2.0),
}
"""Default (low, high) of the multipliers drawn for each start."""
_START_SEED = 0x90D


class QuadrupedVelocity:
    """Velocity-tracking task; see `robotrl.sims.mujoco.quadruped.velocity.make` for the options.

    Args:
        terrain: the ground.
        scales: scales of the reward terms.
        command: distribution of velocity commands.
        push: distribution of pushes.
        noise: measurement noise, as a multiple of `NOISE`.
        limit_steps: time limit, control steps.
        end_on_fall: end the episode at a fall.
    """

    name = "mujoco/quadruped-velocity"
    control_dt_s = CONTROL_DT_S
    substeps = robot.SUBSTEPS
    reads_derived_fields: Derived = "fresh"
    survival = True
    privileged = ("privileged",)
    views: Mapping[str, AnyView] = {
        "track": Raster("side", (0.0, 0.0, -0.05), 1.3, track="trunk", track_height=True, tile_m=0.2),
        "side": View((0.9, -1.5, 0.75), (0.0, 0.0, 0.2), 36.0),
        "front": View((1.7, 0.5, 0.6), (0.0, 0.0, 0.2), 32.0),
        "top": View((0.0, 0.0, 2.4), (0.0, 0.0, 0.0), 36.0),
        "track_top": Raster("top", (0.0, 0.0, 0.0), 1.3, track="trunk", tile_m=0.2),
    }

    def __init__(
        self,
        terrain: Terrain,
        scales: RewardScales,
        command: CommandCfg,
        push: PushScheduleCfg,
        noise: float,
        limit_steps: int,
        end_on_fall: bool,
    ) -> None:
        self.terrain = terrain
        self.command_cfg = command
        self.push_cfg = push
        self.limit_steps = limit_steps
        self._end_on_fall = end_on_fall
        self._noisy = noise > 0
        widths = {"trunk_rate": 3, "gravity": 3, "joint_pos": 12, "joint_vel": 12}
        self._amplitudes = noise * np.concatenate([np.full(width, NOISE[name]) for name, width in widths.items()])
        self._scales: list[float] = (np.array([*asdict(scales).values()]) * CONTROL_DT_S).tolist()
        self.observation_spec = {"state": _state_spec(), "privileged": _privileged_spec()}
        self.robot = robot.robot_card(self.observation_spec["state"].names)
        self.action_spec = Spec(
            shape=(12,),
            names=tuple(f"{joint}_target" for joint in robot.JOINTS),
            units=(f"{robot.ACTION_SCALE_RAD} rad",) * 12,
            low=(-robot.ACTION_LIMIT,) * 12,
            high=(robot.ACTION_LIMIT,) * 12,
        )

    def xml(self) -> str:
        """MJCF of robot and terrain."""
        return robot.mjcf(self.terrain.geoms, self.terrain.assets)

    @property
    def ends_early(self) -> bool:
        """True if a fall ends an episode before the time limit."""
        return self._end_on_fall

    def bind(self, physics: TaskPhysics) -> None:
        """Store views of the simulations' arrays."""
        model, n, xp = physics.model, physics.num_envs, physics.xp
        self._physics, self._model, self._xp = physics, model, xp
        self._qpos: Array = physics.bind("qpos")
        self._qvel: Array = physics.bind("qvel")
        self._ctrl: Array = physics.ctrl
        self._time: Array = physics.bind("time")
        self._warmstart: Array = physics.bind("qacc_warmstart")
        self._history: Array = physics.bind("history")
        self._force: Array = physics.field("actuator_force")
        sensors: Array = physics.field("sensordata")
        self._rate_b, self._up_b, self._velocity_b = sensors[:, 0:3], sensors[:, 3:6], sensors[:, 6:9]
        self._points_w = sensors[:, 9:33].reshape(n, 8, 3)
        """(N, 8, 3) positions of feet, then knees."""
        self._foot_velocity_w = sensors[:, 33:45].reshape(n, 4, 3)
        self._random = self._physical(physics)
        self._ground = self.terrain.on(physics)
        default = np.array(robot.default_pose_rad())
        low, high = (np.array(side) for side in zip(*robot.joint_range_rad(), strict=True))
        self._default = physics.array(default)
        self._soft_low, self._soft_high = map(physics.array, rewards.soft_range(low, high))
        self._trunk_half = physics.array(np.array(robot.TRUNK_HALF_M))
        self._noise = physics.array(self._amplitudes)
        self._start_history = physics.array(_start_history(model, default))

        self.steps: Array = physics.zeros(dtype=xp.int64)
        self.ids: Array = physics.zeros(dtype=xp.int64)
        self.commands: Array = physics.zeros((3,))
        self._action: Array = physics.zeros((12,))
        self._air_s: Array = physics.zeros((4,))
        self._push_offset: Array = physics.zeros(dtype=xp.int64)
        # values from before the current control step
        self._command_before: Array = physics.zeros((3,))
        self._action_before: Array = physics.zeros((12,))
        self._joint_vel_before: Array = physics.zeros((12,))
        self._nothing = physics.zeros(dtype=xp.bool)
        self.terms: Array = xp.zeros((len(TERMS), n), dtype=self._qpos.dtype, device=self._qpos.device)
        """Scaled reward terms of the last step, one row per name in `TERMS`."""

    def _physical(self, physics: TaskPhysics) -> list[tuple[Array, float]]:
        """Live columns (N,) of the randomized parameters, with nominal values, in the order of the privileged spec."""
        model, expand = physics.model, physics.parameter
        foot, trunk = int(model.geom("FR_foot").id), int(model.body("trunk").id)
        return [
            (expand("geom_friction")[:, foot, 0], float(model.geom_friction[foot, 0])),
            (expand("body_mass")[:, trunk], float(model.body_mass[trunk])),
            (expand("actuator_gainprm")[:, 0, 0], float(model.actuator_gainprm[0, 0])),
            (expand("actuator_biasprm")[:, 0, 2], float(model.actuator_biasprm[0, 2])),
            (expand("actuator_delay")[:, 0], float(model.actuator_delay[0])),
        ]

    def memory(self) -> Mapping[str, NDArray[Any]]:
        """Task state: start id, step, current command, last action and air time of the feet."""
        return {
            "steps": self.steps,
            "ids": self.ids,
            "commands": self.commands,
            "action": self._action,
            "air_s": self._air_s,
            "push_offset": self._push_offset,
        }

    def params(self) -> dict[str, Param]:
        """Parameters that may be randomized."""
        model = self._model
        motors = tuple(range(12))
        feet = tuple(int(model.geom(f"{leg}_foot").id) for leg in robot.LEGS)
        trunk = (int(model.body("trunk").id),)
        return {
            "friction": Param(("geom_friction",), feet, 0.1, 2.5, (0,)),
            "trunk_mass": Param(("body_mass", "body_inertia"), trunk, 0.5, 2.0),
            "kp": Param(("actuator_gainprm", "actuator_biasprm"), motors, 0.5, 1.5, (0, 1)),
            "kd": Param(("actuator_biasprm",), motors, 0.5, 2.0, (2,)),
            "latency": Param(
                ("actuator_delay",), motors, 0.0, robot.LATENCY_STEPS * robot.PHYSICS_DT_S / robot.LATENCY_S
            ),
        }

    def plan(self, state_ids: Ids) -> Reals:
        """Start states (n, 23): id, position (3), yaw, joint offsets (12), velocities (6)."""
        u = counter_rng.uniform(_START_SEED, state_ids, 23)
        plan = np.zeros((len(u), 23))
        plan[:, 0] = state_ids
        plan[:, 1:3] = self.terrain.places(u[:, :4])
        plan[:, 3] = robot.STAND_HEIGHT_M + START_CLEARANCE_M + self._highest(plan[:, 1], plan[:, 2])
        plan[:, 4] = 2 * np.pi * u[:, 4]
        plan[:, 5:17] = 0.2 * (u[:, 5:17] - 0.5)
        plan[:, 17:23] = 0.6 * (u[:, 17:23] - 0.5)
        return plan

    def _highest(self, x: Reals, y: Reals) -> Reals:
        """Highest ground under a standing robot, for any heading."""
        offsets = np.linspace(-0.35, 0.35, 8)
        dx, dy = (grid.ravel() for grid in np.meshgrid(offsets, offsets))
        return self.terrain.height(x[:, None] + dx, y[:, None] + dy).max(axis=1)

    def start(self, env_ids: Array, plans: Reals) -> None:
        """Write start states: near the default pose, held by the motors."""
        array, ids = self._physics.array, plans[:, 0].astype(np.int64)
        qpos, qvel = np.zeros((len(plans), 19)), np.zeros((len(plans), 18))
        qpos[:, 0:3] = plans[:, 1:4]
        qpos[:, 3] = np.cos(plans[:, 4] / 2)
        qpos[:, 6] = np.sin(plans[:, 4] / 2)
        qpos[:, 7:] = np.array(robot.default_pose_rad()) + plans[:, 5:17]
        qvel[:, :6] = plans[:, 17:23]
        self._qpos[env_ids], self._qvel[env_ids] = array(qpos), array(qvel)
        self._warmstart[env_ids] = 0
        self._time[env_ids] = 0
        self._ctrl[env_ids] = self._default
        self._history[env_ids] = self._start_history
        self.steps[env_ids] = 0
        self.ids[env_ids] = array(ids)
        self.commands[env_ids] = array(schedule.commands(self.command_cfg, ids, np.zeros_like(ids)))
        self._action[env_ids] = 0
        self._air_s[env_ids] = 0
        self._push_offset[env_ids] = array(schedule.push_offsets(self.push_cfg, ids))

    def command(self, actions: Array) -> None:
        """Set joint targets, apply pushes and advance the command schedule."""
        self._action_before[:] = self._action
        self._action[:] = actions
        self._ctrl[:] = self._action * robot.ACTION_SCALE_RAD
        self._ctrl += self._default
        self._push()
        self._joint_vel_before[:] = self._qvel[:, 6:]
        self._command_before[:] = self.commands
        self.steps += 1
        due = self.steps % self.command_cfg.period_steps == 0
        rows = self._physics.some(due)
        if rows is not None:
            new = schedule.commands(self.command_cfg, self.ids[rows], self.steps[rows], self._physics)
            self.commands[rows] = self._xp.where(due[rows][:, None], new, self.commands[rows])

    def _push(self) -> None:
        if not self.push_cfg.speed_mps and not self.push_cfg.yaw_rad_s:
            return
        due = (self.steps + self._push_offset) % self.push_cfg.period_steps == 0
        due = due & (self.steps > 0)
        rows = self._physics.some(due)
        if rows is not None:
            kick = schedule.pushes(self.push_cfg, self.ids[rows], self.steps[rows], self._physics)
            kick = self._xp.where(due[rows][:, None], kick, 0.0)
            self._qvel[rows, 0:2] += kick[:, 0:2]
            self._qvel[rows, 5] += kick[:, 2]

    def observe(self, out: Mapping[str, Array], env_ids: Array) -> None:
        """Write observations; see `_state_spec` and `_privileged_spec` for the columns."""
        qpos, rate = self._qpos[env_ids], self._rate_b[env_ids]
        measured = self._xp.empty((len(qpos), 30), dtype=qpos.dtype, device=qpos.device)
        measured[:, 0:3] = rate
        measured[:, 3:6] = -self._up_b[env_ids]
        measured[:, 6:18] = qpos[:, 7:] - self._default
        measured[:, 18:30] = self._qvel[env_ids, 6:]
        if self._noisy:
            measured += schedule.noise(self._noise, self.ids[env_ids], self.steps[env_ids], self._physics)
        state = out["state"]
        state[env_ids, 0:6] = measured[:, 0:6]
        state[env_ids, 6:9] = self.commands[env_ids]
        state[env_ids, 9:33] = measured[:, 6:30]
        state[env_ids, 33:45] = self._action[env_ids]
        privileged = out["privileged"]
        privileged[env_ids, 0:3] = self._velocity_b[env_ids]
        privileged[env_ids, 3:6] = rate
        privileged[env_ids, 6:9] = -self._up_b[env_ids]
        privileged[env_ids, 9] = self._height(env_ids)
        privileged[env_ids, 10:14] = 1.0 * (self._clearance(env_ids, slice(0, 4)) < CONTACT_M + robot.FOOT_RADIUS_M)
        for column, (values, nominal) in enumerate(self._random, start=14):
            privileged[env_ids, column] = values[env_ids] / nominal

    def _height(self, env_ids: Array) -> Array:
        """Height (n,), m, of the trunk's centre over the ground below it."""
        qpos = self._qpos[env_ids]
        return qpos[:, 2] - self._ground.height(qpos[:, 0], qpos[:, 1])

    def _clearance(self, env_ids: Array, points: slice) -> Array:
        """Height (n, k), m, of the centres of feet or knees over the ground below them."""
        at = self._points_w[env_ids][:, points]
        return at[:, :, 2] - self._ground.height(at[:, :, 0], at[:, :, 1])

    def _fallen(self, height: Array) -> Array:
        """Flags (N,) of envs where the trunk touches the ground or the robot has tipped over."""
        lowest = height - self._xp.abs(self._up_b) @ self._trunk_half
        return (lowest < CONTACT_M) | (self._up_b[:, 2] < -FALLEN_GRAVITY_Z)

    def outcome(self, actions: Array) -> Outcome:
        """Reward (sum of the scaled terms) and failure (fall) of the last step."""
        del actions
        xp, every = self._xp, slice(None)
        height, clearance = self._height(every), self._clearance(every, every)
        fallen = self._fallen(height)
        contact = clearance[:, :4] < CONTACT_M + robot.FOOT_RADIUS_M
        command = self._command_before
        standing = rewards.asks_to_stand(command, xp)
        self._air_s += CONTROL_DT_S
        landed = contact & (self._air_s > 1.5 * CONTROL_DT_S)
        offset = self._qpos[:, 7:] - self._default
        velocity, rate, up = self._velocity_b, self._rate_b, self._up_b
        values = (
            rewards.tracking(rewards.sum_squares(command[:, :2] - velocity[:, :2], xp), xp),
            rewards.tracking((command[:, 2] - rate[:, 2]) ** 2, xp),
            velocity[:, 2] ** 2,
            rewards.sum_squares(rate[:, :2], xp),
            rewards.sum_squares(up[:, :2], xp),
            (height - robot.STAND_HEIGHT_M) ** 2,
            rewards.sum_squares(self._force, xp),
            rewards.sum_squares((self._qvel[:, 6:] - self._joint_vel_before) / CONTROL_DT_S, xp),
            rewards.sum_squares(self._action - self._action_before, xp),
            rewards.air_time(self._air_s, landed, standing, xp),
            rewards.trot(self._air_s, contact, standing),
            rewards.foot_slip(self._foot_velocity_w, contact),
            (clearance[:, 4:] < CONTACT_M + robot.KNEE_RADIUS_M).sum(axis=1),
            rewards.joint_limit(self._qpos[:, 7:], self._soft_low, self._soft_high, xp),
            rewards.sum_squares(offset[:, 0::3], xp),
            rewards.stand_still(offset, standing, xp),
            fallen & self._end_on_fall,
        )
        for row, value in enumerate(values):
            self.terms[row] = value * self._scales[row]
        self._air_s *= ~contact
        return Outcome(self.terms.sum(axis=0), self._nothing, fallen if self._end_on_fall else self._nothing)


def _start_history(model: mujoco.MjModel, default: Reals) -> Reals:
    """MuJoCo's command history of motors that have held the default pose for the length of the history."""
    data = mujoco.MjData(model)
    history = np.array(data.history).reshape(model.nu, -1)
    samples = int(model.actuator_history[0, 0])
    history[:, -samples:] = default[:, None]
    return history.ravel()


def _state_spec() -> Spec:
    inf = float("inf")
    command = (("command_x_b", "m/s"), ("command_y_b", "m/s"), ("command_yaw_rate_b", "rad/s"))
    columns: list[tuple[str, str, float]] = [
        *((f"trunk_rate_{axis}_b", "rad/s", inf) for axis in "xyz"),
        *((f"gravity_{axis}_b", "1", inf) for axis in "xyz"),
        *((name, unit, inf) for name, unit in command),
        *((f"{joint}_offset", "rad", inf) for joint in robot.JOINTS),
        *((f"{joint}_vel", "rad/s", inf) for joint in robot.JOINTS),
        *((f"{joint}_last_action", f"{robot.ACTION_SCALE_RAD} rad", robot.ACTION_LIMIT) for joint in robot.JOINTS),
    ]
    names, units, bounds = zip(*columns, strict=True)
    return Spec((len(columns),), names, units, tuple(-bound for bound in bounds), bounds)


def _privileged_spec() -> Spec:
    inf = float("inf")
    columns: list[tuple[str, str, float, float]] = [
        *((f"trunk_vel_{axis}_b", "m/s", -inf, inf) for axis in "xyz"),
        *((f"true_trunk_rate_{axis}_b", "rad/s", -inf, inf) for axis in "xyz"),
        *((f"true_gravity_{axis}_b", "1", -inf, inf) for axis in "xyz"),
        ("trunk_height", "m", -inf, inf),
        *((f"{leg}_foot_contact", "1", 0.0, 1.0) for leg in robot.LEGS),
        *((f"{name}_multiplier", "1", 0.0, inf) for name in ("friction", "trunk_mass", "kp", "kd", "latency")),
    ]
    names, units, low, high = zip(*columns, strict=True)
    return Spec((len(columns),), names, units, low, high)
