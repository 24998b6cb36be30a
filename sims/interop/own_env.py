"""Registers one's own environment, an instance or a class, with Gymnasium, so that a sim can be made of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from robotrl.errors import ConfigError

NAMESPACE = "own"


def register_own(env: Any) -> str:
    """Register an environment; returns its id, "own/NAME-v0", for the sim "gym/ID".

    The id lives as long as this process. A run that is resumed elsewhere needs an environment that an importable module
    registers.

    Args:
        env: a `gymnasium.Env`, of which each env gets a deep copy; or its class, or a function without arguments that
            makes one.

    Raises:
        ConfigError: it is none of these, or the instance cannot be copied.
    """
    make = _maker(env)
    name = type(env).__name__ if isinstance(env, gym.Env) else str(getattr(env, "__name__", type(env).__name__))
    stem = f"{NAMESPACE}/{''.join(c for c in name if c.isalnum() or c in '_-') or 'Env'}"
    version = sum(known.rpartition("-v")[0] == stem for known in gym.registry)
    found = f"{stem}-v{version}"
    gym.register(id=found, entry_point=make)
    return found


def env_of_spaces(observations: gym.Space[Any], actions: gym.Space[Any]) -> gym.Env[Any, Any]:
    """Make an environment that has these spaces and cannot be stepped, e.g. of a dataset without its environment."""
    env: gym.Env[Any, Any] = gym.Env()
    env.observation_space, env.action_space = observations, actions
    return env


def _maker(env: Any) -> Callable[..., gym.Env[Any, Any]]:
    if isinstance(env, gym.Env):
        try:
            copy.deepcopy(env)  # pyright: ignore[reportUnknownArgumentType]
        except Exception as error:  # third-party code
            raise ConfigError(
                f"sim is a {type(env).__name__} that cannot be copied ({type(error).__name__}: {error}): expected its"
                " class, or a function that makes one"
            ) from error
        return lambda **kwargs: _rendering(copy.deepcopy(env), kwargs)  # pyright: ignore[reportUnknownArgumentType]
    if callable(env):
        return lambda **kwargs: _made(env, kwargs)
    raise ConfigError(f"sim is {env!r}: expected a name, a gymnasium.Env, its class, or a function that makes one")


def _made(make: Callable[..., Any], kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    """Make an environment with the render mode, if it takes one."""
    try:
        return make(**kwargs)
    except TypeError:
        if not kwargs:
            raise
        return _rendering(make(), kwargs)


def _rendering(env: gym.Env[Any, Any], kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    """Set the render mode of an environment that is made already."""
    if kwargs.get("render_mode") in env.metadata.get("render_modes", ()):
        env.render_mode = kwargs["render_mode"]
    return env
