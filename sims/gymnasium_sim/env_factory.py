"""Creates and wraps a single Gymnasium environment, with error messages that name it."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import gymnasium as gym

from robotrl.errors import ConfigError, nearest, out_of_range
from robotrl.sims.gymnasium_sim.faults import EnvironmentFault, Foreign, line
from robotrl.sims.gymnasium_sim.instructions import InstructionSource
from robotrl.sims.gymnasium_sim.pictures import draw_offscreen
from robotrl.sims.interop.own_env import NAMESPACE
from robotrl.utils.user_module import beside_the_user, user_callable, user_module

ENDLESS = 2**31 - 1
"""Effectively infinite time limit, for environments that require an integer limit."""
EXPECTED = "MODULE:CALLABLE, several with commas between them"


Wrapper = Callable[[gym.Env[Any, Any]], Any]
MADE_BY_US = {
    "max_episode_steps": "expected the option limit_steps",
    "id": "expected it in the sim's name, gym/ID",
    "disable_env_checker": "expected without it, it is no argument of the environment",
}
"""Arguments of `gymnasium.make` that the option `kwargs` must not contain, and the error text for each."""


class EnvRecipe(NamedTuple):
    """Everything needed to create one environment."""

    env_id: str
    kwargs: Mapping[str, Any]
    wrappers: tuple[str, ...] = ()
    """Wrappers as "MODULE:CALLABLE"; the first is the innermost."""
    instructions: InstructionSource | None = None
    """Source and vocabulary of its instructions; None without text."""
    success_keys: tuple[str, ...] = ()
    """Keys of `info` with the success flag; the first one present counts."""


def solved_return(env_id: str) -> float | None:
    """Registered mean return (`reward_threshold`) from which an environment counts as solved, or None."""
    threshold: Any = gym.spec(bare(env_id)).reward_threshold
    return float(threshold) if isinstance(threshold, int | float) and math.isfinite(threshold) else None


def known_id(env_id: str) -> str:
    """Return `env_id` if Gymnasium knows it; "module:ID" imports the module first, also from the working directory.

    Raises:
        ConfigError: unknown id (the message suggests the nearest one), or the module cannot be imported.
    """
    module, colon, name = env_id.rpartition(":")
    before = set(gym.registry)
    if colon:
        user_module(module, f"sim 'gym/{env_id}'")
    try:
        gym.spec(name)
    except gym.error.Error as error:
        raise ConfigError(f"sim 'gym/{env_id}' is unknown: {_hint(name, module, before)}") from error
    return env_id


def _hint(name: str, module: str, before: set[str]) -> str:
    """Suggestion for an id that Gymnasium does not know."""
    if name.startswith(f"{NAMESPACE}/"):
        return (
            "it was an environment of a Python program, which only that program has; expected an environment that a"
            " module registers, 'gym/MODULE:ID': see docs/own-environment.md"
        )
    stem = name.rpartition("-v")[0] or name
    versions = [known for known in gym.registry if known.rpartition("-v")[0] == stem]
    close = max(versions, key=_version) if versions else nearest(name, gym.registry)
    near = f"did you mean 'gym/{module}{':' if module else ''}{close}'? " if close else ""
    if module:
        added = sorted(set(gym.registry) - before)
        message = f"importing {module} registered {', '.join(added) or 'no environment (or had done so before)'}"
        return f"{near}{message}: expected one that it registers, by gymnasium.register(id=...)"
    return (
        f"{near}`gymnasium.pprint_registry()` lists the ids, and 'gym/MODULE:ID' imports a module that registers more"
    )


def bare(env_id: str) -> str:
    """Environment id without its "module:" prefix."""
    return env_id.rpartition(":")[2]


def _version(env_id: str) -> int:
    digits = env_id.rpartition("-v")[2]
    return int(digits) if digits.isdecimal() else -1


def wrappings(given: Any) -> tuple[str, ...]:
    """Validated wrapper names of the option `wrapper`; each can be imported.

    Args:
        given: "MODULE:CALLABLE", several separated by commas, or a list of them; None for no wrapper.

    Raises:
        ConfigError: a value of another type, a module that cannot be imported, or a module without such a callable.
    """
    if given is None:
        return ()
    names: Any = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise out_of_range("wrapper", given, EXPECTED)
    out = tuple(name.strip() for name in names)
    for name in out:
        load_wrapper(name)
    return out


def load_wrapper(name: str) -> Wrapper:
    """Import the wrapper "MODULE:CALLABLE"; the module may be in the working directory.

    Raises:
        ConfigError: see `wrappings`.
    """
    return user_callable(name, "wrapper", EXPECTED)


def checked_kwargs(kwargs: Any) -> dict[str, Any]:
    """Validated option `kwargs`: keyword arguments of the environment.

    Raises:
        ConfigError: not a mapping with string keys, or a key that `gymnasium.make` reserves.
    """
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise out_of_range("kwargs", kwargs, 'arguments by name, e.g. {"size": 5}')
    for name, instead in MADE_BY_US.items():
        if name in kwargs:
            raise ConfigError(f"kwargs holds {name!r}: {instead}")
    return dict(kwargs)


@contextmanager
def making(env_id: str, kwargs: Mapping[str, Any]) -> Generator[None]:
    """Context manager: re-raise errors during the creation of an environment with the environment's name."""
    try:
        yield
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        raise ConfigError(f"sim 'gym/{env_id}' needs a package that is not installed: {line(error)}") from error
    except Exception as error:
        message = f"{type(error).__name__}: {line(error)}"
        if isinstance(error, TypeError) and kwargs:
            raise ConfigError(f"sim 'gym/{env_id}': option kwargs is {dict(kwargs)}: {message}") from error
        raise EnvironmentFault(f"gym/{env_id}: making it raised {message}") from error


def make_single(recipe: EnvRecipe, render_mode: str | None = None) -> gym.Env[Any, Any]:
    """Create one environment with its wrappers, without Gymnasium's time limit: the sim applies the limit itself.

    Its constructor gets only the arguments that the user gave, and `render_mode` if set.

    Args:
        recipe: id, keyword arguments and wrappers.
        render_mode: render mode for images; None leaves the user's `kwargs` as they are.

    Raises:
        ConfigError: a missing package, an unknown argument, or a wrapper that returned no environment.
        EnvironmentFault: creating or wrapping the environment raised any other exception.
    """
    # a spawned process has not imported the module yet
    env_id = known_id(recipe.env_id)
    kwargs = {**recipe.kwargs, **({} if render_mode is None else {"render_mode": render_mode})}
    if "render_mode" in kwargs:
        draw_offscreen()
    named = ":" in env_id or bool(recipe.wrappers)
    # the environment may import further modules of the user
    with beside_the_user() if named else nullcontext():
        with making(env_id, recipe.kwargs):
            env = gym.make(bare(env_id), max_episode_steps=_no_limit(env_id), disable_env_checker=True, **kwargs)
        for name in recipe.wrappers:
            with Foreign(f"wrapper {name}", lambda what: EnvironmentFault(f"gym/{env_id}: {what}")):
                wrapped = load_wrapper(name)(env)
            if not isinstance(wrapped, gym.Env):
                raise ConfigError(f"wrapper is {name!r}, which gave {type(wrapped).__name__}: expected a gymnasium.Env")
            env = wrapped
    return env


def _no_limit(env_id: str) -> int:
    """Value of `max_episode_steps` that disables the time limit of `gymnasium.make`.

    -1 omits Gymnasium's `TimeLimit` wrapper. Wrappers that an environment is registered with (ManiSkill's) use the
    number literally and would end each episode after one step; they get a very large number.
    """
    return ENDLESS if gym.spec(bare(env_id)).additional_wrappers else -1
