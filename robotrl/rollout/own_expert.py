"""Demonstrators written by the user: a function or a class that acts on any sim's observations.

def expert(obs):                      # {key: (N, ...) array} to actions (N, A)
    return -obs["state"][:, :2]

class Expert:                         # with memory or randomness; both arguments are optional
    def __init__(self, sim, seed): ...
    def act(self, obs, started): ...  # started: (N,) bool, envs at the first step of an episode
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import ConfigError, NumericsError, RobotrlError, nearest, out_of_range
from robotrl.rollout.evaluate import Turn
from robotrl.spec import Arrays, Spec, VecSim
from robotrl.utils.user_module import user_callable

EXPECTED = "MODULE:FUNCTION or MODULE:CLASS"
OFFERED = ("sim", "seed")
"""Arguments that an expert's class may take."""
ROUNDING = 1e-6
"""Allowed excess over a bound of an action, relative to the bound."""

Observations = dict[str, NDArray[Any]]
"""(N, ...) each, copies: an expert may change them."""
ExpertFunction = Callable[[Observations], Any]


@runtime_checkable
class ExpertWithMemory(Protocol):
    """An instance of a user's expert class."""

    def act(self, obs: Observations, started: NDArray[np.bool_]) -> Any:
        """Actions (N, A), in the units of the sim's `action_spec`."""
        ...


class OwnExpert:
    """A user's expert as an actor. Its actions are checked: shape, finite, within the sim's bounds.

    Args:
        expert: "MODULE:NAME" of a function or class, or the function or class itself.
        sim: the sim, offered to a class.
        seed: random seed, offered to a class.

    Raises:
        ConfigError: it cannot be imported or built, or is neither a function nor a class with `act`.
    """

    def __init__(self, expert: str | Callable[..., Any], sim: VecSim, seed: int) -> None:
        found: Any = user_callable(expert, "expert", EXPECTED) if isinstance(expert, str) else expert
        if not inspect.isclass(found) and not inspect.isroutine(found):
            raise out_of_range("expert", found, EXPECTED)
        self.name = expert if isinstance(expert, str) else f"{found.__module__}:{found.__qualname__}"
        self._asked = f"expert is {self.name!r}"
        self._source = _source_of(found)
        self._spec, self._n = sim.action_spec, sim.num_envs
        self._device = sim.device
        self._act = self._built(found, sim, seed) if inspect.isclass(found) else self._called(found)

    def act(self, obs: Arrays, turn: Turn) -> Tensor:
        """Actions (N, A).

        Raises:
            ConfigError: the expert raised, or its actions have another shape or are out of bounds.
            NumericsError: an action is not finite.
        """
        seen = {key: value.cpu().numpy().copy() for key, value in obs.items()}
        try:
            given = self._act(seen, turn.started.cpu().numpy().copy())
        except RobotrlError:
            raise
        except Exception as error:
            raise ConfigError(f"{self._asked}: {_error_text(error, seen)}") from error
        actions = checked_actions(given, self._spec, self._n, self._asked)
        return torch.from_numpy(actions).to(self._device)

    def provenance(self) -> dict[str, Any]:
        """Name, and name and SHA-256 of its source file, for a dataset's manifest."""
        if self._source is None:
            return {"name": self.name}
        digest = hashlib.sha256(self._source.read_bytes()).hexdigest()
        return {"name": self.name, "file": self._source.name, "sha256": digest}

    def _built(self, found: type, sim: VecSim, seed: int) -> Callable[[Observations, NDArray[np.bool_]], Any]:
        needed = _arguments(found)
        unknown = [name for name in needed if name not in OFFERED]
        if unknown:
            raise ConfigError(
                f"{self._asked}: its argument {unknown[0]!r} is unknown: expected {' and '.join(OFFERED)}"
            )
        offered = {"sim": sim, "seed": seed}
        try:
            instance: object = found(**{name: offered[name] for name in needed})
        except RobotrlError:
            raise
        except Exception as error:
            raise ConfigError(f"{self._asked}: {_error_text(error, {})}") from error
        if not isinstance(instance, ExpertWithMemory):
            raise ConfigError(f"{self._asked}: the class has no method 'act': expected act(self, obs, started)")
        return instance.act

    def _called(self, function: ExpertFunction) -> Callable[[Observations, NDArray[np.bool_]], Any]:
        try:
            inspect.signature(function).bind({})
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{self._asked}: it cannot be called with the observations alone ({error}): expected expert(obs), or a"
                " class with act(obs, started)"
            ) from error
        return lambda obs, started: function(obs)


def checked_actions(given: Any, spec: Spec, num_envs: int, asked: str) -> NDArray[np.float32]:
    """(N, A) actions as float32.

    Args:
        given: actions as an expert returned them; (N,) counts as (N, 1).
        spec: spec of an action.
        num_envs: N.
        asked: beginning of each error, e.g. "expert is 'own:reach'".

    Raises:
        ConfigError: another shape, no numbers, an action out of bounds, or a fraction where choices are numbered.
        NumericsError: an action is not finite.
    """
    expected = (num_envs, *spec.shape)
    try:
        actions = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{asked}: it returned {type(given).__name__}: expected an array of actions {expected}"
        ) from error
    if spec.shape == (1,) and actions.shape == (num_envs,):
        actions = actions[:, None]
    if actions.shape != expected:
        raise ConfigError(f"{asked}: it returned actions {actions.shape}: expected {expected}, one row for each env")
    bad = np.argwhere(~np.isfinite(actions))
    if len(bad):
        env, number = bad[0]
        raise NumericsError(
            f"{asked}: action {spec.names[number]!r} of env {env} is {actions[env, number]}: expected a finite number"
        )
    low, high = np.asarray(spec.low), np.asarray(spec.high)
    bad = np.argwhere((actions < low - ROUNDING * np.abs(low)) | (actions > high + ROUNDING * np.abs(high)))
    if len(bad):
        env, number = bad[0]
        raise ConfigError(
            f"{asked}: action {spec.names[number]!r} of env {env} is {actions[env, number]:g}: expected"
            f" {low[number]:g} to {high[number]:g} {spec.units[number]}, the sim's bounds (np.clip keeps to them)"
        )
    if spec.choices is not None and (actions != np.round(actions)).any():
        env, number = np.argwhere(actions != np.round(actions))[0]
        raise ConfigError(
            f"{asked}: action {spec.names[number]!r} of env {env} is {actions[env, number]:g}: expected a whole number,"
            " it is the number of a choice"
        )
    return actions.clip(low, high).astype(np.float32)


def _arguments(found: type) -> list[str]:
    """Names of the constructor's arguments that have no default, and of those that we offer."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:  # a class of C code
        return []
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.kind not in kinds and (p.default is p.empty or p.name in OFFERED)]


def _source_of(found: Any) -> Path | None:
    """File of the module in which an expert is defined; None in an interactive session."""
    file = vars(sys.modules[found.__module__]).get("__file__") if found.__module__ in sys.modules else None
    return Path(file) if file and Path(file).is_file() else None


def _error_text(error: Exception, obs: Mapping[str, Any]) -> str:
    """Error of the user's code; a key that the observations lack is answered with those that they have."""
    text = " ".join(str(error).split()) or "no message"
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str) and obs:
        close = nearest(error.args[0], obs)
        hint = f"did you mean {close!r}? " if close else ""
        return f"it raised KeyError: {text}: {hint}the observations are {', '.join(sorted(obs))}"
    return f"it raised {type(error).__name__}: {text}"
