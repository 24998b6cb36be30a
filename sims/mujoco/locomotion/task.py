"""Shared code of Gymnasium's locomotion tasks: starts, controls, observations; `RewardAndEnd` adds reward and end."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, check_number, out_of_range, unknown
from robotrl.fn.random import counter_rng
from robotrl.sims.mujoco.engine.arrays import Array
from robotrl.sims.mujoco.engine.physics import Derived
from robotrl.sims.mujoco.engine.task import Ids, Outcome, Param, TaskPhysics
from robotrl.sims.mujoco.locomotion.columns import INF, Segment, spec_of
from robotrl.sims.mujoco.render.views import AnyView
from robotrl.spec import Spec, TrainDefaults
from robotrl.utils.installation import install_line

Dtype = Literal["float32", "float64"]
Range = tuple[float, float]

LIMIT_STEPS = 1000
"""Time limit of Gymnasium's registered tasks, in control steps."""


TRAIN_DEFAULTS = TrainDefaults(
    {
        "sim.num_envs": 32,
        "policy.horizon": 1,
        "algo.critic_warmup_env_steps": 0,
        "algo.normalize_reward": True,
        "evaluation.score": "return",
        "evaluation.episodes": 32,
        "evaluation.num_envs": 32,
    }
)
"""Settings that suit walking robots: single actions, rewards of many sizes, and the return as score."""


class Robot(NamedTuple):
    """Gymnasium model of a robot with its control and start settings."""

    name: str
    """Name of the sim."""
    asset: str
    """File name of the model in Gymnasium's assets."""
    timestep_s: float
    """Physics step, s."""
    substeps: int
    """Physics steps in a control step (frame skip)."""
    motors: tuple[tuple[str, float], ...]
    """Joint and gear of each actuator; the gear is the torque, N m, for an action of 1."""
    control_limit: float
    """Largest magnitude of an action."""
    views: Mapping[str, AnyView]
    """Cameras by name."""
    start_seed: int
    """Seed that makes the starts of different robots independent."""
    normal_velocities: bool
    """Draw start velocities from a normal distribution; uniform if false."""


class Common(NamedTuple):
    """Options shared by all locomotion tasks."""

    reset_noise_scale: float
    limit_steps: int
    dtype: Dtype


class RewardAndEnd(Protocol):
    """Interface for the reward and end of a task, for all envs at once."""

    @property
    def ends_early(self) -> bool:
        """True if it can end an episode before the time limit."""
        ...

    def bind(self, physics: TaskPhysics) -> None:
        """Store views of the simulations' arrays."""
        ...

    def before(self) -> None:
        """Store values before a step that the reward needs afterwards, e.g. the position."""
        ...

    def after(self) -> tuple[Array, Array]:
        """Reward (N,) of the last step, and flags (N,) of the episodes that it ended."""
        ...


class Locomotion:
    """One of Gymnasium's locomotion tasks.

    Args:
        robot: model and control settings.
        segments: parts of the observation, in order; the first is "coordinates".
        score: reward and end.
        derived: mode of MuJoCo's derived fields that segments and score read, see `Derived`.
        options: options shared by all tasks.

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
        """MJCF of Gymnasium's model."""
        return self._xml

    @property
    def ends_early(self) -> bool:
        """True if an episode can end before the time limit."""
        return self._score.ends_early

    def bind(self, physics: TaskPhysics) -> None:
        """Store views of the simulations' arrays."""
        self._physics, self._model = physics, physics.model
        self._default = np.concatenate([physics.model.qpos0, np.zeros(physics.model.nv)])
        self._ctrl = physics.ctrl
        self._clip = physics.xp.clip
        self._score.bind(physics)
        self._never = physics.xp.zeros_like(self._ctrl[:, 0], dtype=physics.xp.bool)
        self._parts: list[tuple[slice, Array, Range | None]] = []
        at = 0
        for segment in self._segments:
            for seen in _observed(physics, segment):
                self._parts.append((slice(at, at + seen.shape[1]), seen, segment.clip))
                at += seen.shape[1]

    def memory(self) -> Mapping[str, NDArray[Any]]:
        """No arrays: the physics state is complete."""
        return {}

    def params(self) -> dict[str, Param]:
        """Parameters that may be randomized: friction, masses, motor strength, joint damping."""
        model = self._model
        geoms, bodies = tuple(range(model.ngeom)), tuple(range(1, model.nbody))
        hinges = tuple(int(dof) for dof in np.flatnonzero(np.asarray(model.dof_damping) > 0))
        return {
            "friction": Param(("geom_friction",), geoms, 0.2, 4.0, (0,)),
            "mass": Param(("body_mass", "body_inertia"), bodies, 0.5, 2.0),
            "motor_strength": Param(("actuator_gainprm",), tuple(range(model.nu)), 0.2, 2.0, (0,)),
            "joint_damping": Param(("dof_damping",), hinges, 0.2, 5.0),
        }

    def plan(self, state_ids: Ids) -> NDArray[np.float64]:
        """Start coordinates (n, nq + nv): the model's default with noise."""
        nq, nv = self._model.nq, self._model.nv
        u = counter_rng.uniform(self._robot.start_seed, state_ids, nq + 2 * nv)
        noise = 2 * u[:, : nq + nv] - 1
        if self._robot.normal_velocities:
            # Box-Muller transform; 1 - u is never 0
            radius = np.sqrt(-2 * np.log(1 - u[:, nq : nq + nv]))
            noise[:, nq:] = radius * np.cos(2 * np.pi * u[:, nq + nv :])
        return self._default + self._noise * noise

    def start(self, env_ids: Array, plans: NDArray[np.float64]) -> None:
        """Write start states; controls, warm start and applied forces are reset as in a new simulation."""
        self._physics.put(env_ids, plans)

    def command(self, actions: Array) -> None:
        """Set motor torques in units of each motor's gear."""
        self._score.before()
        self._ctrl[:] = actions

    def observe(self, out: Mapping[str, Array], env_ids: Array) -> None:
        """Write the concatenated segments."""
        state = out["state"]
        for columns, seen, clip in self._parts:
            values = seen[env_ids]
            state[env_ids, columns] = values if clip is None else self._clip(values, *clip)

    def outcome(self, actions: Array) -> Outcome:
        """Reward and end of the last step; success means reaching the time limit."""
        reward, failure = self._score.after()
        return Outcome(reward, self._never, failure)


def _observed(physics: TaskPhysics, segment: Segment) -> list[Array]:
    """Live arrays (N, ...) that side by side are a segment's observed columns."""
    if segment.field == "coordinates":
        sources = physics.coordinates()
    else:
        field = physics.field(segment.field)
        sources = (field.reshape(len(field), -1),)
    hidden = sum(source.shape[1] for source in sources) - len(segment.columns) + segment.skip
    seen: list[Array] = []
    for source in sources:
        if hidden < source.shape[1]:
            seen.append(source[:, hidden:])
        hidden = max(hidden - source.shape[1], 0)
    return seen


def asset(robot: Robot) -> Path:
    """Path of a robot's model file in the installed Gymnasium.

    Raises:
        ConfigError: Gymnasium is not installed, or has no such model.
    """
    found = importlib.util.find_spec("gymnasium")
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            f"sim {robot.name!r} needs the models of 'gymnasium', which is not installed: {install_line('train')}"
        )
    path = Path(found.submodule_search_locations[0], "envs", "mujoco", "assets", robot.asset)
    if not path.is_file():
        raise ConfigError(
            f"sim {robot.name!r} needs the model {robot.asset!r} of Gymnasium 1.2 or newer: {path} does not exist;"
            f" {install_line('train')}"
        )
    return path


def checked_range(field: str, values: Range) -> Range:
    """Return (low, high) unchanged after validation.

    Raises:
        ConfigError: not two numbers in increasing order.
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
        ConfigError: a weight is not finite.
    """
    for field, value in weights.items():
        check_number(field, value, -1e6, 1e6)
