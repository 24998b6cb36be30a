"""Batches of Gymnasium environments whose rows are restarted by the caller, and whose faults are named.

Rows of single environments (`make_batch`) run with Gymnasium's autoreset off: the sim above restarts the rows that it
chooses, each with a seed of its own. An environment's own vector class (`make_own`) keeps its autoreset.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from robotrl.errors import ConfigError
from robotrl.sims.gymnasium_sim.faults import EnvironmentFault, Foreign, line
from robotrl.sims.gymnasium_sim.making import Recipe, bare, make_single, making
from robotrl.sims.gymnasium_sim.processes import Method, make_processes
from robotrl.sims.gymnasium_sim.spaces import leaves, pick
from robotrl.sims.gymnasium_sim.telling import Teller

AnyVectorEnv = VectorEnv[Any, Any, Any]
Vectorization = Literal["sync", "async", "vector"]
SUCCESS_KEYS = ("success", "is_success")
"""Where environments say in `info` that the task is done."""
PROBE_STEPS = 5


class Probe(NamedTuple):
    """What one environment of the kind showed of itself."""

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    structure: Mapping[str, int] | None
    """Groups of columns of the observation, as MuJoCo's environments name them."""
    dt_s: float | None
    """Seconds between two actions, where it says so."""
    limit_steps: int | None
    repeats: bool
    """Whether a seed gave the same episode twice."""
    draws: bool
    """Whether it gave a picture."""
    no_picture: str
    """Why not, otherwise."""


def probe(recipe: Recipe, pictures: bool) -> Probe:
    """Make one environment, run it twice from the same seed, draw it if `pictures`, and close it.

    Raises:
        ConfigError: see `make_single` and `Teller`.
        EnvironmentFault: it raised, or gave what its spaces do not allow.
    """
    spec = gym.spec(bare(recipe.env_id))
    plain = make_single(recipe)
    modes = plain.metadata.get("render_modes") or ()
    env = Watched(plain, recipe, 0)
    unwrapped: Any = plain.unwrapped
    runs = [_run(env), _run(env)]
    repeats = all(np.array_equal(a, b) for a, b in zip(*runs, strict=True)) and len(runs[0]) == len(runs[1])
    structure = getattr(unwrapped, "observation_structure", None)
    named = (_seconds(getattr(unwrapped, name, None)) for name in ("dt", "control_timestep"))
    dt_s = next(filter(None, named), None) or _rate(plain.metadata.get("render_fps"))
    env.close()
    no_picture = "it has no render mode 'rgb_array'" if "rgb_array" not in modes else ""
    if pictures and not no_picture and hasattr(unwrapped, "mujoco_renderer"):
        no_picture = _no_graphics(os.environ, sys.platform)
    if pictures and not no_picture:
        no_picture = _try_picture(recipe)
    return Probe(
        env.observation_space,
        env.action_space,
        _groups(structure),
        dt_s,
        spec.max_episode_steps,
        repeats,
        pictures and not no_picture,
        no_picture,
    )


def _run(env: Watched) -> list[np.ndarray[Any, Any]]:
    """Observations and rewards of a few steps from seed 0."""
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    seen = [np.asarray(pick(observation, leaf.path)) for leaf in env.leaves]
    for _ in range(PROBE_STEPS):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        seen += [np.array(pick(observation, leaf.path)) for leaf in env.leaves]
        seen.append(np.array(reward))
        if terminated or truncated:
            break
    return seen


def _try_picture(recipe: Recipe) -> str:
    """Why the environment cannot draw itself on this machine; empty if it can."""
    try:
        env = make_single(recipe, "rgb_array")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # GLFW warns about a missing display before it fails
            env.reset(seed=0)
            picture: Any = env.render()
        env.close()
    except Exception as error:  # foreign code and graphics drivers: a missing picture must not stop a sim
        return f"{type(error).__name__}: {line(error)}"
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.dtype != np.uint8:
        return "render() gave no (height, width, 3) array of uint8"
    return ""


def _no_graphics(environ: Mapping[str, str], platform: str) -> str:
    """Why MuJoCo's renderer has nothing to draw with; empty if it may have.

    It must not be tried to find out: where there is no display, a second failure aborts the process.
    """
    if platform != "linux" or any(environ.get(name) for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY")):
        return ""
    return "there is no display; where EGL or OSMesa is installed, set MUJOCO_GL=egl or MUJOCO_GL=osmesa"


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float | np.floating) and value > 0 else None


def _rate(value: object) -> float | None:
    rate = _seconds(value)
    return None if rate is None else 1.0 / rate


def _groups(structure: object) -> Mapping[str, int] | None:
    """Named runs of columns; entries about what was left out of the observation are no columns."""
    if not isinstance(structure, Mapping):
        return None
    items = {str(name): length for name, length in structure.items() if "skipped" not in str(name)}
    return items if all(isinstance(length, int) for length in items.values()) else None


class Watched(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose faults name it, the row, the episode step and the field; `info` keeps `success` alone.

    Args:
        env: the environment.
        recipe: how it was made.
        row: its place in the batch.

    Raises:
        ConfigError: see `Teller`.
    """

    def __init__(self, env: gym.Env[Any, Any], recipe: Recipe, row: int) -> None:
        super().__init__(env)
        self._teller = Teller(env, recipe.telling)
        self.observation_space = self._teller.space
        self.leaves = leaves(self.observation_space)
        self._env_id, self._row, self._steps = recipe.env_id, row, 0
        self._resetting, self._stepping, self._rendering = (
            Foreign(name, self._fault) for name in ("reset", "step", "render")
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._steps = 0
        with self._resetting:
            out = self.env.reset(seed=seed, options=options or None)
        observation, info = self._values("reset", out, 2)
        return self._checked(self._worded(self._teller.started, observation, info)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Advance the environment."""
        self._steps += 1
        with self._stepping:
            out = self.env.step(action)
        observation, reward, terminated, truncated, info = self._values("step", out, 5)
        if not isinstance(reward, float):  # np.float64 is one
            number = np.asarray(reward)
            if number.shape not in ((), (1,)) or number.dtype.kind not in "biuf":
                raise self._fault(f"reward is {reward!r}: expected one number")
            reward = float(number.reshape(()))
        success: dict[str, Any] = {}
        for key in SUCCESS_KEYS:
            # environments that are batches of one give an array or a tensor of one
            if key in info and (said := np.asarray(info[key])).size == 1:
                success = {"success": bool(said.reshape(()))}
                break
        observation = self._checked(self._worded(self._teller.shown, observation))
        return observation, reward, bool(terminated), bool(truncated), success

    def render(self) -> Any:
        """A picture."""
        with self._rendering:
            return self.env.render()

    def _values(self, name: str, out: Any, count: int) -> tuple[Any, ...]:
        if not (isinstance(out, tuple) and len(out) == count):
            found = f"{len(out)} values" if isinstance(out, tuple) else type(out).__name__
            raise self._fault(f"{name}() returned {found}: expected a tuple of {count}")
        return out

    def _worded(self, tell: Callable[..., Any], *given: Any) -> Any:
        """An observation with words; what is wrong with them is said of this env and step."""
        try:
            return tell(*given)
        except ConfigError as error:
            raise ConfigError(f"{self._where()}: {error}") from error
        except EnvironmentFault as error:
            raise self._fault(str(error)) from error
        except (LookupError, TypeError):
            raise self._fault("the observation lacks a part that its space has") from None

    def _checked(self, observation: Any) -> Any:
        for leaf in self.leaves:
            try:
                value = np.asarray(pick(observation, leaf.path))
            except (KeyError, IndexError, TypeError):
                raise self._fault(f"the observation lacks {leaf.key!r}") from None
            except ValueError:
                raise self._fault(f"observation {leaf.key!r} is no array of one shape") from None
            if value.shape != leaf.raw_shape:
                raise self._fault(f"observation {leaf.key!r} has shape {value.shape}: expected {leaf.raw_shape}")
            if value.dtype.kind not in "biuf":
                raise self._fault(f"observation {leaf.key!r} has dtype {value.dtype}: expected numbers")
        return observation

    def _fault(self, what: str) -> EnvironmentFault:
        return EnvironmentFault(f"{self._where()}: {what}")

    def _where(self) -> str:
        return f"gym/{self._env_id}: env {self._row}, episode step {self._steps}"


def make_batch(
    recipe: Recipe,
    num_envs: int,
    vectorization: Literal["sync", "async"],
    method: Method | None,
    render_mode: str | None,
) -> AnyVectorEnv:
    """`num_envs` single environments as Gymnasium's vector environment, in this process or in one process each.

    Rows that ended wait for `reset(options={"reset_mask": ...})`. `method` is how processes start.
    """

    def one(row: int) -> gym.Env[Any, Any]:
        return Watched(make_single(recipe, render_mode), recipe, row)

    makers = [partial(one, row) for row in range(num_envs)]
    if vectorization == "sync":
        return SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.DISABLED)
    return make_processes(recipe.env_id, makers, method)


def make_own(env_id: str, num_envs: int, kwargs: Mapping[str, Any]) -> AnyVectorEnv:
    """The environment's own vector class.

    Raises:
        ConfigError: it has none, it needs a missing package, or its autoreset mode is unknown.
        EnvironmentFault: making it raised anything else.
    """
    if gym.spec(bare(env_id)).vector_entry_point is None:
        raise ConfigError(
            f"sim 'gym/{env_id}' has no vector class of its own: expected vectorization 'sync' or 'async'"
        )
    with making(env_id, kwargs):
        env = gym.make_vec(env_id, num_envs=num_envs, vectorization_mode="vector_entry_point", **kwargs)
    if not isinstance(env.metadata.get("autoreset_mode"), AutoresetMode):
        raise ConfigError(
            f"sim 'gym/{env_id}': its vector class does not say its autoreset mode (metadata['autoreset_mode']):"
            " expected vectorization 'sync' or 'async'"
        )
    return env
