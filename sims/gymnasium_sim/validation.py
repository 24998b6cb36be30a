"""Wrapper that validates a single environment and names it in error messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from robotrl.errors import ConfigError
from robotrl.sims.gymnasium_sim.env_factory import EnvRecipe
from robotrl.sims.gymnasium_sim.faults import EnvironmentFault, Foreign
from robotrl.sims.gymnasium_sim.instructions import InstructionEncoder
from robotrl.sims.gymnasium_sim.spaces import leaves, pick
from robotrl.sims.gymnasium_sim.success import flag_in, flag_of


class Spaces(NamedTuple):
    """Spaces of an environment after its first reset, since some environments create them there."""

    observation: gym.Space[Any]
    """Observation space before texts are encoded."""
    action: gym.Space[Any]


def spaces_of(env: gym.Env[Any, Any]) -> Spaces:
    """Current spaces of an environment."""
    return Spaces(env.observation_space, env.action_space)


class ValidatedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Validating wrapper: errors name the environment, row, episode step and field; `info` keeps only `success`.

    Args:
        env: the environment.
        recipe: id and settings of the environment.
        row: its row in the batch.
        spaces: spaces that it must have in every episode.

    Raises:
        ConfigError: see `InstructionEncoder`.
    """

    def __init__(self, env: gym.Env[Any, Any], recipe: EnvRecipe, row: int, spaces: Spaces) -> None:
        super().__init__(env)
        try:
            self._encoder = InstructionEncoder(env, recipe.instructions, spaces.observation)
            self.leaves = leaves(self._encoder.space)
        except ConfigError as error:
            raise ConfigError(f"sim 'gym/{recipe.env_id}': {error}") from error
        self.observation_space, self.action_space = self._encoder.space, spaces.action
        self._known_action_space = spaces.action
        self.info: dict[str, Any] = {}
        """Complete `info` of the last `step`."""
        self.states_success = False
        """True once `info` has contained a success flag."""
        self._env_id, self._row, self._steps = recipe.env_id, row, 0
        self._keys = recipe.success_keys
        self._resetting, self._stepping, self._rendering = (
            Foreign(name, self._fault) for name in ("reset", "step", "render")
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode and return its validated first observation."""
        self._steps = 0
        with self._resetting:
            out = self.env.reset(seed=seed, options=options or None)
        return self.started(out)

    def started(self, out: Any) -> tuple[Any, dict[str, Any]]:
        """Validate and encode the result of the environment's own `reset`."""
        observation, info = self._values("reset", out, 2)
        self._check_action_space()
        return self._checked(self._worded(self._encoder.started, observation, info)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment and validate the result."""
        self._steps += 1
        with self._stepping:
            out = self.env.step(action)
        observation, reward, terminated, truncated, info = self._values("step", out, 5)
        if not isinstance(reward, float):  # np.float64 is one
            number = np.asarray(reward)
            if number.shape not in ((), (1,)) or number.dtype.kind not in "biuf":
                raise self._fault(f"reward is {reward!r}: expected one number")
            reward = float(number.reshape(()))
        observation = self._checked(self._worded(self._encoder.shown, observation))
        return (
            observation,
            reward,
            self._flag("terminated", terminated),
            self._flag("truncated", truncated),
            self._success(info),
        )

    def render(self) -> Any:
        """Render an image."""
        with self._rendering:
            return self.env.render()

    def _success(self, info: Any) -> dict[str, Any]:
        """The success flag of `info`, as a dict for the vector environment's `info`."""
        if not isinstance(info, dict):
            raise self._fault(f"info is {type(info).__name__}: expected a dict")
        self.info = info
        try:
            said = flag_in(info, self._keys)
        except ValueError as error:
            raise self._fault(str(error)) from error
        if said is None:
            return {}
        self.states_success = True
        return {"success": said}

    def _flag(self, name: str, value: Any) -> bool:
        if isinstance(value, bool | np.bool_):
            return bool(value)
        # environments with an internal batch of one return an array or tensor with one element
        try:
            found = flag_of(value, name)
        except ValueError as error:
            raise self._fault(str(error).partition(";")[0]) from error
        if found is None:
            raise self._fault(f"{name} is None: expected True or False")
        return found

    def _check_action_space(self) -> None:
        """Refuse a changed action space after `reset`; a new but equal space is accepted."""
        now = self.env.action_space
        if now is not self._known_action_space and now != self.action_space:
            had, has = (" ".join(str(space).split())[:100] for space in (self.action_space, now))
            raise self._fault(
                f"reset() has changed the action space from {had} to {has}: expected the same in every episode"
            )
        self._known_action_space = now

    def _values(self, name: str, out: Any, count: int) -> tuple[Any, ...]:
        if not (isinstance(out, tuple) and len(out) == count):
            found = f"{len(out)} values" if isinstance(out, tuple) else type(out).__name__
            raise self._fault(f"{name}() returned {found}: expected a tuple of {count}")
        return out

    def _worded(self, tell: Callable[..., Any], *given: Any) -> Any:
        """Encoded observation; errors name this env and step."""
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
