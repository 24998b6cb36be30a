"""Shared part of Gymnasium's locomotion tasks: starts, controls, observations; a `RewardAndEnd` adds the rest."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, check_number, out_of_range, unknown
from robotrl.fn.random import counter_rng
from robotrl.sims.mujoco.engine.physics import Derived, Physics
from robotrl.sims.mujoco.engine.task import Ids, Outcome, Param, Real
from robotrl.sims.mujoco.locomotion.columns import INF, Segment, spec_of
from robotrl.sims.mujoco.render.views import AnyView
from robotrl.spec import Spec

Array = NDArray[np.float64]
Dtype = Literal["float32", "float64"]
Range = tuple[float, float]

LIMIT_STEPS = 1000
"""Time limit of Gymnasium's registered tasks, in control steps."""


class Robot(NamedTuple):
    """A model of Gymnasium's and how its task drives it."""

    name: str
    """Of the sim."""
    asset: str
    """File among Gymnasium's models."""
    timestep_s: float
    """Physics step."""
    substeps: int
    """Physics steps in a control step (frame skip)."""
    motors: tuple[tuple[str, float], ...]
    """Joint and gear of each actuator: an action of 1 is a torque of so many N m."""
    control_limit: float
    """Actions lie between minus this and this."""
    views: Mapping[str, AnyView]
    """Cameras."""
    start_seed: int
    """Makes starts of different robots independent."""
    normal_velocities: bool
    """Whether start velocities are drawn from a normal distribution; otherwise from a uniform one."""


class Common(NamedTuple):
    """Options that all tasks have."""

    reset_noise_scale: float
    limit_steps: int
    dtype: Dtype


class RewardAndEnd(Protocol):
    """Reward and end of a task, for all envs at once."""

    def bind(self, physics: Physics, ctrl: Array) -> None:
        """Take views of the simulations' arrays; `ctrl` (N, U) are the controls of the step."""
        ...

    def before(self) -> None:
        """A step is about to be made: keep what its reward compares with."""
        ...

    def after(self) -> tuple[Array, NDArray[np.bool_]]:
        """Reward (N,) of the step just made, and whether it ended the episode (N,)."""
        ...


class Locomotion:
    """One of Gymnasium's locomotion tasks.

    Args:
        robot: model and control.
        segments: what is observed, in order; the first is "coordinates".
        score: reward and end.
        derived: which of MuJoCo's derived fields segments and score read.
        options: what the tasks have in common.

    Raises:
        ConfigError: an option is out of range, or Gymnasium's models are not installed.
    """

    survival = True

    def __init__(
        self, robot: Robot, segments: tuple[Segment, ...], score: RewardAndEnd, derived: Derived, options: Common
    ) -> None:
        check_number("reset_noise_scale", options.reset_noise_scale, 0, 10)
        if not 1 <= options.limit_steps <= 10_000_000:
            raise out_of_range("limit_steps", options.limit_steps, "1 to 10000000 control steps")
        if options.dtype not in ("float32", "float64"):
            raise unknown("dtype", str(options.dtype), ("float32", "float64"))
        self.name = robot.name
        self.control_dt_s = robot.timestep_s * robot.substeps
        self.substeps = robot.substeps
        self.limit_steps = options.limit_steps
        self.reads_derived_fields: Derived = derived
        self.views = robot.views
        self.observation_spec = {"state": spec_of(segments, options.dtype)}
        limit = robot.control_limit
        self.action_spec = Spec(
            shape=(len(robot.motors),),
            names=tuple(f"{joint}_torque" for joint, _ in robot.motors),
            units=tuple(f"{gear:g} N m" for _, gear in robot.motors),
            low=(-limit,) * len(robot.motors),
            high=(limit,) * len(robot.motors),
            dtype=options.dtype,
        )
        self._robot = robot
        self._segments = segments
        self._score = score
        self._noise = options.reset_noise_scale
        self._xml = asset(robot).read_text()

    def xml(self) -> str:
        """Gymnasium's MJCF."""
        return self._xml

    def bind(self, physics: Physics) -> None:
        """Take views of the simulations' arrays."""
        model = self._model = physics.model
        self._state: Array = physics.batch.state
        first = physics.offset("qpos")
        self._coordinates = slice(first, first + model.nq + model.nv)
        self._rest: Array = self._state[0].copy()
        self._ctrl = physics.ctrl
        self._score.bind(physics, physics.ctrl)
        self._never = np.zeros(len(self._state), bool)
        self._parts: list[tuple[slice, NDArray[Any], Range | None]] = []
        at = 0
        for segment in self._segments:
            if segment.field == "coordinates":
                # adjacent in a state row, so that one copy takes both
                whole = self._state[:, self._coordinates]
            else:
                whole = physics.field(segment.field).reshape(len(self._state), -1)
            seen = whole[:, whole.shape[1] - len(segment.columns) + segment.skip :]
            self._parts.append((slice(at, at + seen.shape[1]), seen, segment.clip))
            at += seen.shape[1]

    def memory(self) -> Mapping[str, Array]:
        """Nothing: all is in the physics state."""
        return {}

    def params(self) -> dict[str, Param]:
        """What may be randomised: friction, masses, strength of the motors, damping of the joints."""
        model = self._model
        geoms, bodies = tuple(range(model.ngeom)), tuple(range(1, model.nbody))
        hinges = tuple(int(dof) for dof in np.flatnonzero(np.asarray(model.dof_damping) > 0))
        return {
            "friction": Param(("geom_friction",), geoms, 0.2, 4.0, (0,)),
            "mass": Param(("body_mass", "body_inertia"), bodies, 0.5, 2.0),
            "motor_strength": Param(("actuator_gainprm",), tuple(range(model.nu)), 0.2, 2.0, (0,)),
            "joint_damping": Param(("dof_damping",), hinges, 0.2, 5.0),
        }

    def plan(self, state_ids: Ids) -> Array:
        """Start coordinates (n, nq + nv): the model's own with noise."""
        nq, nv = self._model.nq, self._model.nv
        u = counter_rng.uniform(self._robot.start_seed, state_ids, nq + 2 * nv)
        noise = 2 * u[:, : nq + nv] - 1
        if self._robot.normal_velocities:
            # Box and Muller; 1 - u is never 0
            radius = np.sqrt(-2 * np.log(1 - u[:, nq : nq + nv]))
            noise[:, nq:] = radius * np.cos(2 * np.pi * u[:, nq + nv :])
        return self._rest[self._coordinates] + self._noise * noise

    def start(self, env_ids: Ids, plans: Array) -> None:
        """Write start states; all else (controls, warm start, applied forces) is as in a new simulation."""
        rows = np.broadcast_to(self._rest, (len(env_ids), len(self._rest))).copy()
        rows[:, self._coordinates] = plans
        self._state[env_ids] = rows

    def command(self, actions: Real) -> None:
        """Torques, in units of each motor's gear."""
        self._score.before()
        self._ctrl[:] = actions

    def observe(self, out: Mapping[str, Real], env_ids: Ids | slice) -> None:
        """Write the segments side by side."""
        state = out["state"]
        for columns, seen, clip in self._parts:
            values = seen[env_ids]
            if clip is not None:
                values = np.minimum(np.maximum(values, clip[0]), clip[1])
            state[env_ids, columns] = values

    def outcome(self, actions: Real) -> Outcome:
        """The score of the step just made; success is to reach the time limit."""
        reward, failure = self._score.after()
        return Outcome(reward, self._never, failure)


def asset(robot: Robot) -> Path:
    """The file of a robot's model, in the Gymnasium that is installed.

    Raises:
        ConfigError: Gymnasium is not installed, or has no such model.
    """
    found = importlib.util.find_spec("gymnasium")
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            f"sim {robot.name!r} needs the models of 'gymnasium', which is not installed: pip install 'robotrl[train]'"
        )
    path = Path(found.submodule_search_locations[0], "envs", "mujoco", "assets", robot.asset)
    if not path.is_file():
        raise ConfigError(
            f"sim {robot.name!r} needs the model {robot.asset!r} of Gymnasium 1.2 or newer: {path} does not exist;"
            " pip install 'robotrl[train]'"
        )
    return path


def checked_range(field: str, values: Range) -> Range:
    """(low, high) as given.

    Raises:
        ConfigError: not two numbers in rising order.
    """
    try:
        low, high = (float(value) for value in values)
    except (TypeError, ValueError):
        low, high = INF, -INF
    if not low <= high:
        raise out_of_range(field, values, "two numbers (low, high) in rising order")
    return low, high


def check_weights(**weights: float) -> None:
    """Refuse weights that are not finite numbers.

    Raises:
        ConfigError: the weight, its value and what was expected.
    """
    for field, value in weights.items():
        check_number(field, value, -1e6, 1e6)
