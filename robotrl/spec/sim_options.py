"""Options of sims: frozen dataclasses with `build`, made from values by name."""

from __future__ import annotations

import inspect
import math
import os
from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, make_dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol, get_args, get_origin, get_type_hints, runtime_checkable

from robotrl.errors import ConfigError, check_count, check_number, nearest, short
from robotrl.spec.json_fields import hints_of
from robotrl.spec.sims import VecSim


@runtime_checkable
class SimOptions(Protocol):
    """Config of a sim: a frozen dataclass of its options."""

    def build(self, num_envs: int, seed: int) -> VecSim:
        """Build the sim with `num_envs` parallel envs; `seed` seeds all its random streams."""
        ...


@runtime_checkable
class HasPolicyOptions(Protocol):
    """Config of a sim that shares the meaning of observations and actions with other sims."""

    policy_options: ClassVar[tuple[str, ...]]
    """Options that this meaning depends on, such as scales; a policy takes them along to another sim that has them."""


def carried_options(trained_on: SimOptions, other: SimOptions, values: Mapping[str, Any]) -> dict[str, Any]:
    """Options that a policy takes along from the sim that it was trained on to another one.

    Args:
        trained_on: config of the sim that it was trained on.
        other: config of the other sim.
        values: options that were set when it was trained.
    """
    if not (isinstance(trained_on, HasPolicyOptions) and isinstance(other, HasPolicyOptions)):
        return {}
    shared = set(trained_on.policy_options) & set(other.policy_options)
    return {name: value for name, value in values.items() if name in shared}


def with_values(default: Any, values: Mapping[str, Any], owner: str) -> Any:
    """Options with some fields set.

    Python and JSON forms are accepted: a list, or a text with commas, for a tuple of texts; a mapping for a nested
    dataclass, whose other fields stay; a path for a text.

    Args:
        default: an instance, or a class whose defaults apply.
        values: field name to value.
        owner: name of the options in errors, e.g. "sim 'mujoco/reach'".

    Raises:
        ConfigError: an unknown name, or a field without default that is missing.
    """
    cls: Any = default if isinstance(default, type) else type(default)
    declared = {field.name: field for field in fields(cls) if field.init}
    for name in values:
        if name not in declared:
            close = nearest(name, list(declared))
            hint = f"did you mean {close!r}? " if close else ""
            known = ", ".join(sorted(declared)) or "none"
            raise ConfigError(f"option {short(repr(name))} of {owner} is unknown: {hint}known: {known}")
    hints = hints_of(cls)
    if not isinstance(default, type):
        given = {
            name: _converted(hints[name], value, getattr(default, name), f"{name} of {owner}")
            for name, value in values.items()
        }
        return replace(default, **given)
    missing = [
        name
        for name, field in declared.items()
        if name not in values and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        raise ConfigError(f"option {missing[0]!r} of {owner} is missing")
    given = {
        name: _converted(hints[name], value, _default_of(declared[name]), f"{name} of {owner}")
        for name, value in values.items()
    }
    return cls(**given)


INFINITE = {math.inf: "inf", -math.inf: "-inf"}
"""Texts that stand for infinite numbers, which JSON does not have."""


def json_values(options: Any) -> dict[str, Any]:
    """Fields of a sim's options as JSON values by name; `with_values` reads them back.

    Raises:
        ConfigError: an infinite number in a field that may hold texts as well, which would come back as a text.
    """
    hints = hints_of(type(options))
    for name, value in asdict(options).items():
        if not is_dataclass(vars(options)[name]) and not _holds_numbers(hints[name]) and _has_infinite(value):
            raise ConfigError(f"option {name} holds an infinite number: expected finite ones, which a run can store")
    return {name: _json_value(value) for name, value in asdict(options).items()}


def _has_infinite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_infinite, value.values()))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, tuple | list):
        return any(map(_has_infinite, value))  # pyright: ignore[reportUnknownArgumentType]
    return isinstance(value, float) and math.isinf(value)


def _holds_numbers(hint: Any) -> bool:
    """True for a type of numbers, or of sequences or values of them, and of no texts."""
    inner = get_args(hint)[1:] if get_origin(hint) in (dict, abc.Mapping) else get_args(hint)
    kinds = [kind for kind in inner if kind not in (type(None), Ellipsis)]
    return all(map(_holds_numbers, kinds)) if kinds else hint in (float, int)


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return INFINITE.get(value, value)
    if isinstance(value, tuple | list):
        return [_json_value(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, Mapping):
        return {key: _json_value(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value


def changed_fields(options: Any, default: Any) -> dict[str, Any]:
    """Fields of `options` that differ from those of `default`, as JSON values by name."""
    given, usual = json_values(options), json_values(default)
    return {name: value for name, value in given.items() if value != usual.get(name, MISSING)}


def _default_of(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _converted(hint: Any, value: Any, default: Any, owner: str) -> Any:
    """A value in the form of its field's type; other values are left for the type check."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, list):
        return _tuple(value, hint)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, str) and _holds_numbers(hint):
        return _number(value)
    if isinstance(value, str) and _takes_texts(hint):
        return tuple(value.split(","))
    if isinstance(value, Mapping):
        nested = default if is_dataclass(default) else next(filter(is_dataclass, (hint, *get_args(hint))), None)
        if nested is not None:
            return with_values(nested, value, owner)  # pyright: ignore[reportUnknownArgumentType]
        return {key: _tuple(item, hint) if isinstance(item, list) else item for key, item in value.items()}  # pyright: ignore
    return value


def _tuple(value: list[Any], hint: Any) -> tuple[Any, ...]:
    return tuple(map(_number, value)) if _holds_numbers(hint) else tuple(value)


def _number(value: Any) -> Any:
    """A number for the text of an infinite one; other values as they are."""
    return next((number for number, text in INFINITE.items() if value == text), value)


def _takes_texts(hint: Any) -> bool:
    """True for a type that takes a tuple of texts but no text."""
    kinds = get_args(hint) if get_origin(hint) not in (tuple, abc.Sequence, None) else (hint,)
    return str not in kinds and any(get_origin(kind) is tuple and get_args(kind) == (str, ...) for kind in kinds)


@dataclass(frozen=True)
class FactoryOptions:
    """Options of a sim that is registered as a function `make(num_envs, seed, *, ...)`."""

    def build(self, num_envs: int, seed: int) -> VecSim:
        """Build the sim."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return _factory_of(type(self))(num_envs, seed, **given)

    def __reduce__(self) -> tuple[Any, ...]:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return _remade, (_factory_of(type(self)), given)


def _remade(factory: Callable[..., VecSim], given: dict[str, Any]) -> Any:
    return options_of_factory(factory)(**given)


def _factory_of(cls: type) -> Callable[..., VecSim]:
    return vars(cls)["factory"]


@cache
def options_of_factory(factory: Callable[..., VecSim]) -> type[FactoryOptions]:
    """Dataclass whose fields are the keyword-only arguments of a function `make(num_envs, seed, *, ...)`."""
    hints = _factory_hints(factory)
    declared: list[Any] = []
    for parameter in inspect.signature(factory).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            name, hint, default = parameter.name, hints.get(parameter.name, Any), parameter.default
            declared.append((name, hint) if default is parameter.empty else (name, hint, default))
    name = "".join(part.title() for part in f"{factory.__module__}.{factory.__qualname__}".split("."))
    return make_dataclass(
        f"{name}Options",
        declared,
        bases=(FactoryOptions,),
        namespace={"factory": staticmethod(factory), "__module__": factory.__module__},
        frozen=True,
        kw_only=True,
    )


def _factory_hints(factory: Any) -> dict[str, Any]:
    made_by = inspect.unwrap(factory)
    if not inspect.isfunction(made_by):
        return {}
    found: dict[str, Any] = {}
    for name, hint in made_by.__annotations__.items():
        try:
            found |= get_type_hints(SimpleNamespace(__annotations__={name: hint}), made_by.__globals__)
        except NameError:  # imported for the type checker only
            continue
    return found


# faults between a sim and its policy

LONGEST_FAULT_STEPS = 1_000
"""Longest delay and longest burst, control steps."""
FARTHEST_PLACE_M, LARGEST_SHIFT_PX, MOST_WORDS_LOST, LARGEST_CHANGE = 0.2, 64, 100, 0.95
"""Largest offset of a thing and of a picture, most words that are not heard, largest relative change of a mass."""


@dataclass(frozen=True)
class PerturbCfg:
    """Faults on the way between sim and policy; one step is the sim's control step."""

    obs_delay_steps: int = 0
    """Age of each observation, steps: the policy decides on the state of so many steps ago, the first one of the
    episode at its beginning. Observations for a critic alone are not delayed."""
    action_delay_steps: int = 0
    """Steps that pass between a decision and its execution (latency of inference and actuation). Until the first
    action arrives, the sim gets zeros, clipped to the action bounds. A trajectory that comes late stays where it was on
    the road, and until the first one comes the ego goes straight on at its speed."""
    draw_delay: bool = False
    """Each episode draws its delay from 0 to `action_delay_steps`, so that a policy meets all of them in training."""
    committed_steps: int = 0
    """Length D of the observations "committed_actions" and "committed_mask": actions that are decided and not executed
    yet; `action_delay_steps` or more. 0: they are not observed."""
    drop_rate: float = 0.0
    """Chance per step, 0 to 1, that the observation is lost and a burst of losses begins; the policy is given the last
    one that arrived."""
    drop_steps: int = 1
    """Length of a burst of lost observations, steps."""
    plans_from_observation: bool = False
    """A trajectory counts from where and when its observation was, as that of a planner whose plans bear its
    observation's time: the ego is given what is left of it. Otherwise it counts from where the ego is when it is given,
    however old the observation."""
    interpolate_actions: bool = False
    """Each action is approached in a straight line from the one before, over a control step, as by a bundle that is
    exported with `--interpolation linear`: the sim, which takes one action a step, gets the mean of both."""
    place_m: float = 0.0
    """Places: each loose thing of the scene begins its episode elsewhere, by up to so many meters along x and along
    y."""
    looks_gain: float = 0.0
    """Looks: each color channel of the observed pictures is brighter or darker by a factor of up to 1 plus or minus
    this, drawn for each episode."""
    looks_shift_px: int = 0
    """Looks: the observed pictures are shifted by up to so many pixels along both axes, drawn for each episode, as by a
    camera that was mounted askew."""
    words_lost: int = 0
    """Words: number of words of each instruction that are not heard, drawn for each episode; one always stays."""
    noise: Mapping[str, float] | None = None
    """Noise: unit of observed numbers to the standard deviation of their error, in that unit, e.g. m 0.005 rad 0.01;
    errors are normal and independent in each step."""
    mass: float = 0.0
    """Mass: each episode multiplies the masses that the sim lets be set (`HasParams`) by 1 plus or minus up to this."""
    friction: float = 0.0
    """Friction: each episode multiplies the frictions that the sim lets be set by 1 plus or minus up to this."""

    @property
    def active(self) -> bool:
        """True if observations or actions are late, lost, or interpolated."""
        faults = self.obs_delay_steps or self.action_delay_steps or self.drop_rate or self.committed_steps
        return bool(faults or self.interpolate_actions)

    def check(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value out of range.
        """
        check_count("perturb.obs_delay_steps", self.obs_delay_steps, 0, LONGEST_FAULT_STEPS, "control steps")
        check_count("perturb.action_delay_steps", self.action_delay_steps, 0, LONGEST_FAULT_STEPS, "control steps")
        check_count("perturb.committed_steps", self.committed_steps, 0, LONGEST_FAULT_STEPS, "control steps")
        if self.committed_steps and self.action_delay_steps > self.committed_steps:
            raise ConfigError(
                f"perturb.action_delay_steps is {self.action_delay_steps} and perturb.committed_steps is"
                f" {self.committed_steps}: expected at most as many, or 0 committed ones, which are then not observed"
            )
        if self.draw_delay and not self.action_delay_steps:
            raise ConfigError("perturb.draw_delay is set and perturb.action_delay_steps is 0: expected 1 or more")
        if self.plans_from_observation and not (self.obs_delay_steps or self.drop_rate):
            raise ConfigError(
                "perturb.plans_from_observation is set, and no observation is old: expected perturb.obs_delay_steps of"
                " 1 or more, or perturb.drop_rate above 0"
            )
        check_number("perturb.drop_rate", self.drop_rate, 0.0, 1.0)
        check_count("perturb.drop_steps", self.drop_steps, 1, LONGEST_FAULT_STEPS, "control steps")
        check_number("perturb.place_m", self.place_m, 0.0, FARTHEST_PLACE_M, "m")
        check_number("perturb.looks_gain", self.looks_gain, 0.0, 1.0)
        check_count("perturb.looks_shift_px", self.looks_shift_px, 0, LARGEST_SHIFT_PX, "pixels")
        check_count("perturb.words_lost", self.words_lost, 0, MOST_WORDS_LOST, "words")
        for unit, deviation in (self.noise or {}).items():
            check_number(f"perturb.noise {unit}", deviation, 0.0, math.inf, unit)
        check_number("perturb.mass", self.mass, 0.0, LARGEST_CHANGE)
        check_number("perturb.friction", self.friction, 0.0, LARGEST_CHANGE)


UNPERTURBED = PerturbCfg()
"""No faults, the default of every sim."""


# sims that are used as a robot is


@dataclass(frozen=True)
class LogOnlyCfg:
    """Log-only mode: the sim gives what a robot gives, a limited number of episodes from starts that nobody chooses."""

    episodes: int = 0
    """Budget: number of episodes of all envs together. A step after the last one is refused. 0: the mode is off."""
    success_delay_episodes: int = 0
    """Number of further episodes after which the success of an episode is told; what is still open is told when the
    budget is used up."""
    false_success_rate: float = 0.0
    """Chance, 0 to 1, that a failure is told as a success, as by a classifier that errs."""
    false_failure_rate: float = 0.0
    """Chance, 0 to 1, that a success is told as a failure."""
    shows_reward: bool = False
    """Rewards within episodes are the sim's; otherwise they are 0."""

    def check(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value out of range, or one beside a mode that is off.
        """
        check_count("log_only.episodes", self.episodes, 0, MOST_LOG_EPISODES, "episodes")
        check_count(
            "log_only.success_delay_episodes", self.success_delay_episodes, 0, MOST_LOG_EPISODES, "further episodes"
        )
        check_number("log_only.false_success_rate", self.false_success_rate, 0.0, 1.0)
        check_number("log_only.false_failure_rate", self.false_failure_rate, 0.0, 1.0)
        if self.episodes == 0 and self != NOT_LOG_ONLY:
            raise ConfigError("log_only.episodes is 0 beside other settings of it: expected the budget, 1 or more")


MOST_LOG_EPISODES = 1_000_000
"""Largest budget of the log-only mode, episodes."""
NOT_LOG_ONLY = LogOnlyCfg()
"""The mode is off, the default of every sim."""


@runtime_checkable
class HasLogOnly(Protocol):
    """Config of a sim with the option `log_only`, which `robotrl.registry.build_sim` applies."""

    @property
    def log_only(self) -> LogOnlyCfg:
        """Settings of the log-only mode."""
        ...


def without_log_only(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a sim by name, as it is evaluated: not in log-only mode."""
    return {name: value for name, value in options.items() if name != "log_only"}


@runtime_checkable
class HasHistory(Protocol):
    """Config of a sim with the option `history`, which `robotrl.registry.build_sim` applies."""

    @property
    def history(self) -> int:
        """Control steps whose observations a policy is given; 1: the present one alone."""
        ...


@runtime_checkable
class HasPerturb(Protocol):
    """Config of a sim with the option `perturb`, which `robotrl.registry.build_sim` applies."""

    @property
    def perturb(self) -> PerturbCfg:
        """Faults between the sim and its policy."""
        ...
