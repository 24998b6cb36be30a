"""Training config composed of names: a sim, an algorithm and a policy, each with its defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

from robotrl.config import CountsEnvSteps, SimCfg, TrainCfg, WeightedReward, changed_options, in_env_steps
from robotrl.errors import ConfigError
from robotrl.registry import ALGORITHMS, POLICIES, REWARDS, sim_options


@runtime_checkable
class HasDefaultPolicy(Protocol):
    """An algorithm's config that names the policy which it trains by default."""

    default_policy: ClassVar[str]
    """Name from `robotrl list policies`."""


@runtime_checkable
class HasTrainDefaults(Protocol):
    """A sim's config that states settings of training which suit its tasks."""

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
    if isinstance(options, HasTrainDefaults):
        for path, value in options.train_defaults.items():
            cfg = _with(cfg, path.split("."), value)
    return in_env_steps(cfg) if _counts_env_steps(cfg.algo) else cfg


def _counts_env_steps(algo: Any) -> bool:
    # with a budget of 0 env steps it learns offline, and its iterations are updates
    return isinstance(algo, CountsEnvSteps) and algo.env_steps > 0


def with_algo(cfg: TrainCfg[Any, Any], algo: Any) -> TrainCfg[Any, Any]:
    """The same training by another algorithm, evaluated and saved by what that algorithm counts.

    Args:
        cfg: the config.
        algo: the algorithm's config.
    """
    if type(algo) is not type(cfg.algo):
        cfg = replace(cfg, tuned_on="any")
    if cfg.evaluation.every_env_steps is not None and not _counts_env_steps(algo):
        every = None if cfg.evaluation.every_env_steps else 0
        evaluation = replace(cfg.evaluation, every=every, every_env_steps=None)
        cfg = replace(cfg, evaluation=evaluation, checkpoint_every=None, checkpoint_every_env_steps=None)
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
    kept = {field: value for field, value in changed.items() if field in vars(default) and field != "env_id"}
    lost = [field for field in changed if field not in kept and field != "env_id"]
    return replace(cfg, sim=replace(cfg.sim, name=name, options=sim_options(name, kept))), lost


def _with(part: Any, path: list[str], value: Any) -> Any:
    """A config with one field set; unchanged if it has no such field."""
    first, *rest = path
    if first not in vars(part):
        return part
    return replace(part, **{first: _with(vars(part)[first], rest, value) if rest else value})
