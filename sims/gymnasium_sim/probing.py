"""Probes one environment before the batch is made: spaces, determinism, success flag, rendering."""

from __future__ import annotations

import copy
import math
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from robotrl.errors import RobotrlError
from robotrl.sims.gymnasium_sim.action_codec import ActionCodec, action_codec
from robotrl.sims.gymnasium_sim.env_factory import EnvRecipe, bare, make_single
from robotrl.sims.gymnasium_sim.faults import EnvironmentFault, Foreign, line
from robotrl.sims.gymnasium_sim.pictures import REMEDY, fault_of
from robotrl.sims.gymnasium_sim.spaces import Leaf, leaves, pick
from robotrl.sims.gymnasium_sim.validation import Spaces, ValidatedEnv, spaces_of

STEPS = 5
"""Steps of the probe episode, which is run twice to test determinism."""


class EnvProbe(NamedTuple):
    """Results of probing one environment."""

    spaces: Spaces
    """Spaces after a reset."""
    observation_space: gym.Space[Any]
    """Observation space with texts and instruction as word numbers."""
    structure: Mapping[str, int] | None
    """Named groups of observation columns with their lengths, from MuJoCo environments; else None."""
    dt_s: float | None
    """Seconds between two actions, None if the environment does not state it."""
    limit_steps: int | None
    differs: str
    """First difference between two episodes with the same seed and actions; empty if there was none."""
    info_keys: tuple[str, ...]
    """Keys of the last `info` that `step` returned."""
    states_success: bool
    """True if `info` had a success flag."""
    draws: bool
    """True if the environment rendered an image."""
    no_picture: str
    """Reason why it rendered no image; empty otherwise."""


class ProbedValue(NamedTuple):
    """One value recorded in the probe episode: an observation array, reward or flag."""

    what: str
    """Description, e.g. "step 2: observation 'state'"."""
    value: np.ndarray[Any, Any]
    names: tuple[str, ...]
    """Names of the elements of the last axis, if known."""


def probe(recipe: EnvRecipe, pictures: bool) -> EnvProbe:
    """Make one environment, run its first steps twice with one seed, render it if `pictures`, and close it.

    Raises:
        ConfigError: see `make_single` and `InstructionEncoder`.
        EnvironmentFault: the environment raised an exception or returned a value outside its spaces.
    """
    spec = gym.spec(bare(recipe.env_id))
    plain = make_single(recipe)
    with Foreign("reset", lambda what: EnvironmentFault(f"gym/{recipe.env_id}: env 0, episode step 0: {what}")):
        out = plain.reset(seed=0)
    spaces = spaces_of(plain)
    env = ValidatedEnv(plain, recipe, 0, spaces)
    # sample once, since reset may create a new, unseeded space; from a copy, since the environment may sample too
    drawn = copy.deepcopy(spaces.action)
    drawn.seed(0)
    actions = [drawn.sample() for _ in range(STEPS)]
    first = _played(env, env.started(out), actions)
    second = _played(env, env.reset(seed=0), actions)
    unwrapped: Any = plain.unwrapped
    structure = getattr(unwrapped, "observation_structure", None)
    dt_s = stated_dt_s(plain)
    modes = plain.metadata.get("render_modes") or ()
    env.close()
    no_picture = _no_mode(recipe, modes)
    if pictures and not no_picture and hasattr(unwrapped, "mujoco_renderer"):
        no_picture = _no_graphics(os.environ, sys.platform)
    if pictures and not no_picture:
        no_picture = _try_picture(recipe)
    return EnvProbe(
        spaces,
        env.observation_space,
        _groups(structure),
        dt_s,
        spec.max_episode_steps,
        difference(first, second),
        tuple(str(key) for key in env.info),
        env.states_success,
        pictures and not no_picture,
        no_picture,
    )


def _played(env: ValidatedEnv, started: tuple[Any, dict[str, Any]], actions: list[Any]) -> list[ProbedValue]:
    """Values recorded while a newly started episode executes the actions."""
    observation, _ = started
    seen = [_part(observation, leaf, "the first") for leaf in env.leaves]
    for i, action in enumerate(actions):
        observation, reward, terminated, truncated, _ = env.step(action)
        seen += [_part(observation, leaf, f"step {i + 1}:") for leaf in env.leaves]
        ends = (("reward", reward), ("terminated", terminated), ("truncated", truncated))
        seen += [ProbedValue(f"step {i + 1}: {name}", np.array(value), ()) for name, value in ends]
        if terminated or truncated:
            break
    return seen


def _part(observation: Any, leaf: Leaf, when: str) -> ProbedValue:
    names = leaf.spec.names if leaf.raw_shape == leaf.spec.shape else ()
    return ProbedValue(f"{when} observation {leaf.key!r}", np.array(pick(observation, leaf.path)), names)


def difference(first: list[ProbedValue], second: list[ProbedValue]) -> str:
    """Describe the first difference between two episodes, with both values; empty if there is none."""
    for a, b in zip(first, second, strict=False):
        same = (a.value == b.value) | ((a.value != a.value) & (b.value != b.value))
        if np.all(same):
            continue
        place = tuple(int(i) for i in np.argwhere(~np.atleast_1d(same))[0])
        one, other = np.atleast_1d(a.value)[place], np.atleast_1d(b.value)[place]
        element = ""
        if a.value.ndim:
            element = f", {a.names[place[-1]]!r}," if a.names else f" at {list(place)}"
        return f"{a.what}{element} was {one} and then {other}"
    return ""


def _no_mode(recipe: EnvRecipe, modes: Any) -> str:
    """Reason why the environment has no "rgb_array" render mode to try; empty if it has one."""
    given = recipe.kwargs.get("render_mode", "rgb_array")
    if given != "rgb_array":
        return f"option kwargs says render_mode {given!r}"
    return "" if "rgb_array" in modes else f"it has no render mode 'rgb_array': {REMEDY}"


def _try_picture(recipe: EnvRecipe) -> str:
    """Reason why the environment cannot render on this machine; empty if it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # GLFW warns about a missing display before it fails
            env = make_single(recipe, "rgb_array")
            env.reset(seed=0)
            picture: Any = env.render()
        env.close()
    except RobotrlError as error:
        return f"made with render_mode 'rgb_array', which was added for pictures: {line(error)}"
    except Exception as error:  # third-party code and graphics drivers: a failed render must not prevent the sim
        return f"{type(error).__name__}: {line(error)}"
    return fault_of(picture)


def _no_graphics(environ: Mapping[str, str], platform: str) -> str:
    """Reason why MuJoCo's renderer cannot work here; empty if it may work.

    Found without trying: on machines without a display, a second failure aborts the process.
    """
    if platform != "linux" or any(environ.get(name) for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY")):
        return ""
    return "there is no display; where EGL or OSMesa is installed, set MUJOCO_GL=egl or MUJOCO_GL=osmesa"


def stated_dt_s(env: Any) -> float | None:
    """Seconds between two actions as stated by the environment (`dt`, `control_timestep`, `render_fps`), or None."""
    for name in ("dt", "control_timestep"):
        try:
            found = _positive(getattr(env.unwrapped, name, None))
        except Exception:  # a property of third-party code that cannot be read counts as not stated
            continue
        if found is not None:
            return found
    rate = _positive(env.metadata.get("render_fps"))
    return None if rate is None else 1.0 / rate


class EnvInterface(NamedTuple):
    """Arrays of one environment that its user steps: the same names and numbers as those of the sim `gym/ID`."""

    name: str
    """Sim name, "gym/ID"; "gym" for an environment that is not registered."""
    leaves: tuple[Leaf, ...]
    codec: ActionCodec
    dt_s: float | None
    """Seconds between two actions, None if the environment does not state it."""

    def observed(self, observation: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Observation of the environment as arrays by key."""
        return {leaf.key: leaf.convert(np.asarray(pick(observation, leaf.path))[None])[0] for leaf in self.leaves}

    def acted(self, action: Any) -> np.ndarray[Any, Any]:
        """(A,) action of the environment as the sim's."""
        return self.codec.encode(np.asarray(action)[None])[0]


def is_env(env: object) -> bool:
    """True for an environment of Gymnasium."""
    return isinstance(env, gym.Env)


def interface_of(env: gym.Env[Any, Any]) -> EnvInterface:
    """Arrays of an environment's observations and actions.

    Raises:
        ConfigError: unsupported spaces.
    """
    structure = getattr(env.unwrapped, "observation_structure", None)
    return EnvInterface(
        "gym" if env.spec is None else f"gym/{env.spec.id}",
        leaves(env.observation_space, structure=_groups(structure)),
        action_codec(env.action_space),
        stated_dt_s(env),
    )


def _positive(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return None
    number = float(value)
    return number if 0 < number < math.inf else None


def _groups(structure: object) -> Mapping[str, int] | None:
    """Named groups of columns with their lengths; entries for skipped values are dropped."""
    if not isinstance(structure, Mapping):
        return None
    items = {str(name): length for name, length in structure.items() if "skipped" not in str(name)}
    return items if all(isinstance(length, int) for length in items.values()) else None
