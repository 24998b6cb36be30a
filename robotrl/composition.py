"""Training config composed of names: a sim, an algorithm and a policy, each with its defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

from robotrl.config import (
    DEFAULT_EVERY,
    CountsEnvSteps,
    EvalCfg,
    SimCfg,
    TrainCfg,
    WeightedReward,
    changed_options,
    has_offline_part,
)
from robotrl.errors import ConfigError, unknown
from robotrl.registry import ALGORITHMS, POLICIES, REWARDS, sim_options

EVALUATIONS = 10
"""Number of evaluations, and of checkpoints, over a composed run's budget of env steps."""


@runtime_checkable
class HasDefaultPolicy(Protocol):
    """An algorithm's config that names the policy which it trains by default."""

    default_policy: ClassVar[str]
    """Name from `robotrl list policies`."""


@runtime_checkable
class HasTrainDefaults(Protocol):
    """A sim's or an algorithm's config that states settings of training which suit it."""

    train_defaults: ClassVar[Mapping[str, Any]]
    """Config field ("evaluation.score", "policy.horizon") to its value; fields that a config lacks are left out."""


def algorithm_cfg(name: str) -> Any:
    """Config of the algorithm named `name`, with its defaults.

    Raises:
        ConfigError: the name is unknown.
    """
    return ALGORITHMS.load(name)()


def policy_cfg(name: str) -> Any:
    """Config of the policy named `name`, with its defaults.

    Raises:
        ConfigError: the name is unknown.
    """
    row: Any = POLICIES.load(name)
    cfg: Any = row if is_dataclass(row) else row.Cfg
    return cfg()


def compose(sim: str, algo: str, policy: str | None = None) -> TrainCfg[Any, Any]:
    """Config of a sim, an algorithm and a policy with their defaults.

    Settings that both the sim and the algorithm state (`train_defaults`) are the algorithm's. Its schedule is still
    open: `with_schedule` sets it, once the budget is known.

    Args:
        sim: name from `robotrl list sims`.
        algo: name from `robotrl list algorithms`.
        policy: name from `robotrl list policies`; None takes the algorithm's default.

    Raises:
        ConfigError: a name is unknown, or no policy is given and the algorithm names none.
    """
    options, settings = sim_options(sim), algorithm_cfg(algo)
    if policy is None:
        if not isinstance(settings, HasDefaultPolicy):
            raise ConfigError(f"algorithm {algo!r} names no policy of its own: expected --policy NAME")
        policy = settings.default_policy
    cfg = TrainCfg(sim=SimCfg(sim, options=options), algo=settings, policy=policy_cfg(policy))
    for part in (options, settings):
        if isinstance(part, HasTrainDefaults):
            for path, value in part.train_defaults.items():
                cfg = _with(cfg, path.split("."), value)
    return cfg


def with_schedule(cfg: TrainCfg[Any, Any]) -> TrainCfg[Any, Any]:
    """The same training with ten evaluations and checkpoints over its budget of env steps, where none are scheduled.

    Args:
        cfg: the config; one whose algorithm learns from a dataset alone is returned as it is.
    """
    if not isinstance(cfg.algo, CountsEnvSteps) or cfg.algo.env_steps == 0:
        return cfg
    spread = max(1, cfg.algo.env_steps // EVALUATIONS)
    # iterations are those of the updates before the first env step
    offline = DEFAULT_EVERY if has_offline_part(cfg.algo) else None
    evaluation, saved = cfg.evaluation, cfg.checkpoint_every
    if evaluation.every_env_steps is None and (evaluation.every is None or offline is not None):
        every = offline if evaluation.every is None else evaluation.every
        cfg = replace(cfg, evaluation=replace(evaluation, every=every, every_env_steps=spread))
    if cfg.checkpoint_every_env_steps is None and (saved is None or offline is not None):
        cfg = replace(cfg, checkpoint_every=offline if saved is None else saved, checkpoint_every_env_steps=spread)
    return cfg


def with_algo(cfg: TrainCfg[Any, Any], algo: Any) -> TrainCfg[Any, Any]:
    """The same training by another algorithm, evaluated and saved by what that algorithm counts.

    Args:
        cfg: the config.
        algo: the algorithm's config.
    """
    if type(algo) is not type(cfg.algo):
        stated = algo.train_defaults if isinstance(algo, HasTrainDefaults) else {}
        cfg = replace(cfg, tuned_on=stated.get("tuned_on", "any"))
    evaluation = cfg.evaluation
    if evaluation.every_env_steps is None:
        return replace(cfg, algo=algo)
    every, saved = evaluation.every, cfg.checkpoint_every
    if not isinstance(algo, CountsEnvSteps):
        every = (None if evaluation.every_env_steps else 0) if every is None else every
        evaluation, cfg = replace(evaluation, every_env_steps=None), replace(cfg, checkpoint_every_env_steps=None)
    elif not has_offline_part(algo):
        every, saved = None, None
    elif every is None:
        every, saved = DEFAULT_EVERY if evaluation.every_env_steps else 0, DEFAULT_EVERY
    cfg = replace(cfg, evaluation=replace(evaluation, every=every), checkpoint_every=saved)
    return replace(cfg, algo=algo)


def weighted_rewards(names: str | Sequence[str] | Mapping[str, float]) -> tuple[WeightedReward, ...]:
    """Reward sources with their defaults.

    Args:
        names: one name from `robotrl list rewards`, several, or weights by name.

    Raises:
        ConfigError: a name is unknown, or a source has a setting without default.
    """
    weights = {names: 1.0} if isinstance(names, str) else names
    weights = weights if isinstance(weights, Mapping) else dict.fromkeys(weights, 1.0)
    out: list[WeightedReward] = []
    for name, weight in weights.items():
        make = REWARDS.load(name)
        missing = [one.name for one in fields(make) if one.default is MISSING and one.default_factory is MISSING]
        if missing:
            raise ConfigError(f"reward {name!r} needs {', '.join(missing)}: expected a WeightedReward in rewards")
        out.append(WeightedReward(name, weight, make()))
    return tuple(out)


NAMED_BY = ("env_id", "served")
"""Fields that hold the rest of the name of a sim of a family, "gym/ID" or "remote/NAME"."""


def with_sim(cfg: TrainCfg[Any, Any], name: str) -> tuple[TrainCfg[Any, Any], list[str]]:
    """The same training on another sim.

    Args:
        cfg: the config.
        name: name from `robotrl list sims`.

    Returns:
        The config, and the names of its sim options that the other sim does not have; all others are kept.

    Raises:
        ConfigError: the name is unknown.
    """
    changed, default = changed_options(cfg.sim), sim_options(name)
    changed = {field: value for field, value in changed.items() if field not in NAMED_BY}
    kept = {field: value for field, value in changed.items() if field in vars(default)}
    lost = [field for field in changed if field not in kept]
    return replace(cfg, sim=replace(cfg.sim, name=name, options=sim_options(name, kept))), lost


def _with(part: Any, path: list[str], value: Any) -> Any:
    """A config with one field set; unchanged if it is an algorithm's or a policy's that has no such field.

    Raises:
        ConfigError: no config of a training has such a field.
    """
    first, *rest = path
    if first not in vars(part):
        if isinstance(part, TrainCfg | SimCfg | EvalCfg):
            raise unknown(f"setting of {type(part).__name__} in train_defaults", first, vars(part))
        return part
    return replace(part, **{first: _with(vars(part)[first], rest, value) if rest else value})
