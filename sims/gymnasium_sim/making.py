"""One Gymnasium environment, made and wrapped; what goes wrong on the way is named."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import gymnasium as gym

from robotrl.errors import ConfigError, nearest, out_of_range
from robotrl.sims.gymnasium_sim.faults import EnvironmentFault, Foreign, line
from robotrl.sims.gymnasium_sim.telling import Telling

ENDLESS = 2**31 - 1
"""Steps of an episode whose environment counts for itself and must be given a limit."""
EXPECTED = "MODULE:CALLABLE, several with commas between them"


class Wrapping(NamedTuple):
    """A wrapper that the user asked for."""

    name: str
    apply: Callable[[gym.Env[Any, Any]], Any]


class Recipe(NamedTuple):
    """How an environment is made."""

    env_id: str
    kwargs: Mapping[str, Any]
    wrappers: tuple[Wrapping, ...] = ()
    """The first is the innermost."""
    telling: Telling | None = None
    """What it is told in words."""


def known_id(env_id: str) -> str:
    """Return `env_id` if Gymnasium knows it; "module:ID" imports the module first.

    Raises:
        ConfigError: it does not; the nearest id is given.
    """
    module, name = env_id.rpartition(":")[0], bare(env_id)
    try:
        if module:
            importlib.import_module(module)
        gym.spec(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"sim 'gym/{env_id}' needs the module {error.name!r}, which is not installed") from error
    except gym.error.Error as error:
        stem = name.rpartition("-v")[0] or name
        versions = [known for known in gym.registry if known.rpartition("-v")[0] == stem]
        close = max(versions, key=_version) if versions else nearest(name, gym.registry)
        hint = f"did you mean 'gym/{close}'? " if close and not module else ""
        raise ConfigError(
            f"sim 'gym/{env_id}' is unknown: {hint}`gymnasium.pprint_registry()` lists the ids,"
            " and 'gym/MODULE:ID' imports a module that registers more"
        ) from error
    return env_id


def bare(env_id: str) -> str:
    """The id without the module that registers it."""
    return env_id.rpartition(":")[2]


def _version(env_id: str) -> int:
    digits = env_id.rpartition("-v")[2]
    return int(digits) if digits.isdecimal() else -1


def wrappings(given: Any) -> tuple[Wrapping, ...]:
    """The wrappers that the option `wrapper` names.

    Args:
        given: "MODULE:CALLABLE", several with commas between them, or a list of such; None is none.

    Raises:
        ConfigError: a value of another kind, a module that cannot be imported, or no such callable in it.
    """
    if given is None:
        return ()
    names: Any = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise out_of_range("wrapper", given, EXPECTED)
    return tuple(_wrapping(name.strip()) for name in names)


def _wrapping(name: str) -> Wrapping:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise out_of_range("wrapper", name, EXPECTED)
    module = _module(name, module_name)
    found = getattr(module, attribute, None)
    if found is None:
        close = nearest(attribute, [known for known in vars(module) if not known.startswith("_")])
        hint = f"did you mean '{module_name}:{close}'? " if close else ""
        raise ConfigError(f"wrapper is {name!r}: {module_name} has no {attribute!r}: {hint}expected {EXPECTED}")
    if not callable(found):
        raise ConfigError(f"wrapper is {name!r}, of type {type(found).__name__}: expected a callable")
    return Wrapping(name, found)


def _module(name: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"wrapper is {name!r}: the module {error.name!r} is not installed: expected {EXPECTED}"
        ) from error
    except Exception as error:  # foreign code
        raise ConfigError(
            f"wrapper is {name!r}: importing {module} raised {type(error).__name__}: {line(error)}"
        ) from error


@contextmanager
def making(env_id: str, kwargs: Mapping[str, Any]) -> Generator[None]:
    """Give what the making of an environment raises the environment's name: foreign code says nothing of where."""
    try:
        yield
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        raise ConfigError(f"sim 'gym/{env_id}' needs a package that is not installed: {line(error)}") from error
    except TypeError as error:
        raise ConfigError(f"sim 'gym/{env_id}': option kwargs is {dict(kwargs)}: {line(error)}") from error
    except Exception as error:
        raise EnvironmentFault(f"gym/{env_id}: making it raised {type(error).__name__}: {line(error)}") from error


def make_single(recipe: Recipe, render_mode: str | None = None) -> gym.Env[Any, Any]:
    """One environment in its wrappers, without Gymnasium's time limit: the sim keeps that itself.

    Raises:
        ConfigError: a package that it needs is missing, an argument that it does not take, or a wrapper that gave no
            environment.
        EnvironmentFault: making or wrapping it raised anything else.
    """
    # a process that was not forked has yet to import the module
    env_id, kwargs = known_id(recipe.env_id), recipe.kwargs
    with making(env_id, kwargs):
        env = gym.make(
            env_id,
            max_episode_steps=_no_limit(env_id),
            disable_env_checker=True,
            render_mode=render_mode,
            **kwargs,
        )
    for wrapping in recipe.wrappers:
        with Foreign(f"wrapper {wrapping.name}", lambda what: EnvironmentFault(f"gym/{env_id}: {what}")):
            wrapped = wrapping.apply(env)
        if not isinstance(wrapped, gym.Env):
            raise ConfigError(
                f"wrapper is {wrapping.name!r}, which gave {type(wrapped).__name__}: expected a gymnasium.Env"
            )
        env = wrapped
    return env


def _no_limit(env_id: str) -> int:
    """What tells `gymnasium.make` that there is no time limit.

    -1 leaves Gymnasium's own wrapper out. Wrappers that an environment is registered with (ManiSkill's) take the number
    as it is, and would end each episode after one step.
    """
    return ENDLESS if gym.spec(bare(env_id)).additional_wrappers else -1
