"""`robotrl.train`: training from Python, on a named sim or one's own environment, and the run that it leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robotrl.composition import (
    algorithm_cfg,
    compose,
    policy_cfg,
    weighted_rewards,
    with_algo,
    with_schedule,
    with_sim,
)
from robotrl.config import SimCfg, TrainCfg
from robotrl.errors import ConfigError, unknown
from robotrl.registry import PRESETS, SIMS
from robotrl.run.callbacks import Callback
from robotrl.run.directory import Run
from robotrl.run.free_path import free_run_dir
from robotrl.run.logs import read_scalars
from robotrl.run.policy_checkpoint import load_policy

if TYPE_CHECKING:
    from robotrl.rollout.evaluate import EvalResult
    from robotrl.spec import Policy, Split


class TrainedRun:
    """A run on disk, in training or finished: its scalars, policy and evaluations.

    Args:
        path: the run's directory.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._run = Run.open(self.path)

    @property
    def scalars(self) -> dict[str, list[float]]:
        """Logged scalars by name, in the order of the iterations; NaN where an iteration has none."""
        rows = read_scalars(self.path / "scalars.jsonl")
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name, float("nan")) for row in rows] for name in names}

    @property
    def config(self) -> dict[str, Any]:
        """Resolved config of the run, as JSON values."""
        return self._run.config

    @cached_property
    def policy(self) -> Policy:
        """Policy of the best checkpoint."""
        return load_policy(self.path)

    @property
    def animations(self) -> list[Path]:
        """Animations that evaluations rendered, oldest first."""
        return sorted((self.path / "rollouts").glob("*.gif"))

    def evaluate(self, episodes: int = 256, split: Split = "test", seed: int = 0) -> EvalResult:
        """Evaluate the best checkpoint on the first starts of a split; see `robotrl.api.evaluation.evaluate_path`."""
        from robotrl.api.evaluation import evaluate_path

        return evaluate_path(self.path, episodes=episodes, split=split, seed=seed)

    def export(self, out: Path | str, **options: Any) -> Path:
        """Export the best checkpoint as a bundle; returns its directory. `options` are those of `robotrl.export`."""
        from robotrl.api.exporting import export

        export(self.path, Path(out), **options)
        return Path(out)

    def __repr__(self) -> str:
        return f"TrainedRun({str(self.path)!r})"


def train(
    sim: Any = None,
    algo: Any = None,
    policy: Any = None,
    *,
    preset: str | None = None,
    reward: str | Sequence[str] | Mapping[str, float] = (),
    run_dir: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    **top: Any,
) -> TrainedRun:
    """Train a policy, as `robotrl train` does.

    Args:
        sim: name from `robotrl list sims`, a sim's config, or one's own environment: a `gymnasium.Env`, its class, or a
            function that makes one.
        algo: name from `robotrl list algorithms`, or an algorithm's config.
        policy: name from `robotrl list policies`, a policy's config, or the class of one's own `torch.nn.Module`, which
            is called with the widths of its input and output; None takes the algorithm's default.
        preset: name of a preset, whose parts the arguments above replace; without it `sim` and `algo` are needed.
        reward: name of a reward source, several of them, or their weights by name; none takes the sim's own reward.
        run_dir: directory of the run, absent or empty; None takes a free one under `runs`.
        settings: config fields by path: {"algo.env_steps": 20_000, "sim.num_envs": 8}.
        callbacks: user callbacks, see `robotrl.run.callbacks`.
        top: fields of the config's top level: seed, init_from, dataset, device and so on.

    Returns:
        The finished run.

    Raises:
        RobotrlError: a fault of the config, the data or the disk.
        SystemExit: the run was interrupted; it is saved, and `robotrl train --resume` continues it.
    """
    # slow to import
    from robotrl import training

    cfg, name = configured(sim, algo, policy, preset)
    rewards = weighted_rewards(reward)
    cfg = replace(cfg, rewards=rewards) if rewards else cfg
    for path, value in {**top, **(settings or {})}.items():
        cfg = _set(cfg, path.split("."), value, path)
    cfg = with_schedule(cfg) if preset is None else cfg
    where = Path(run_dir) if run_dir is not None else free_run_dir(name)
    return TrainedRun(training.train(cfg, where, callbacks))


def configured(sim: Any, algo: Any, policy: Any, preset: str | None) -> tuple[TrainCfg[Any, Any], str]:
    """Config of the named or given parts, and a name for the run.

    Raises:
        ConfigError: a name is unknown, or a part is missing.
    """
    sim_name, options = _sim_of(sim)
    if preset is None:
        if sim_name is None or algo is None:
            missing = "sim" if sim_name is None else "algo"
            raise ConfigError(f"{missing} is None: expected a sim and an algorithm, or a preset")
        base = compose(sim_name, algo if isinstance(algo, str) else "ppo", policy if isinstance(policy, str) else None)
        name = f"{sim_name.rpartition('/')[2]}-{algo if isinstance(algo, str) else type(algo).__name__}"
    else:
        base, name = PRESETS.load(preset)(), preset
        if sim_name is not None:
            base, lost = with_sim(base, sim_name)
            if lost:
                raise ConfigError(f"sim {sim_name!r} has no {', '.join(lost)}, which preset {preset!r} sets")
        if isinstance(algo, str):
            base = with_algo(base, algorithm_cfg(algo))
        if isinstance(policy, str):
            base = replace(base, policy=policy_cfg(policy))
    if options is not None:
        base = replace(base, sim=replace(base.sim, options=options))
    if algo is not None and not isinstance(algo, str):
        base = with_algo(base, algo)
    if isinstance(policy, type) and not is_dataclass(policy):
        base = _with_network(base, policy)
    elif policy is not None and not isinstance(policy, str):
        base = replace(base, policy=policy)
    return base, name


def _sim_of(sim: Any) -> tuple[str | None, Any]:
    """Name of a sim, and its config if one was given."""
    if sim is None or isinstance(sim, str):
        return sim, None
    if isinstance(sim, SimCfg):
        return sim.name, sim.options
    if is_dataclass(sim) and not isinstance(sim, type):
        if "env_id" in vars(sim):
            return f"gym/{vars(sim)['env_id']}", sim
        if "served" in vars(sim):
            return f"remote/{vars(sim)['served']}", sim
        for name in SIMS.names():
            if SIMS.load(name) is type(sim):
                return name, sim
        raise ConfigError(f"sim is a {type(sim).__name__}, which no sim of `robotrl list sims` has: expected its name")
    from robotrl.sims.interop.own_env import register_own

    return f"gym/{register_own(sim)}", None


def _with_network(cfg: TrainCfg[Any, Any], network: type) -> TrainCfg[Any, Any]:
    """The config with one's own network class in its policy."""
    own = f"{network.__module__}:{network.__qualname__}"
    if "net" not in vars(cfg.policy):
        raise ConfigError(
            f"policy is the class {own}, and {type(cfg.policy).__name__} takes no network of one's own: expected the"
            " policy gaussian, beta, categorical or by-action"
        )
    return replace(cfg, policy=replace(cfg.policy, net=own))


def _set(part: Any, path: list[str], value: Any, whole: str) -> Any:
    first, *rest = path
    inner: Any = part.options if isinstance(part, SimCfg) and first not in vars(part) else part
    names = [field.name for field in fields(inner)] if is_dataclass(inner) else []
    if first not in names:
        raise unknown("setting", whole, [f"{whole.rpartition('.')[0]}.{name}".lstrip(".") for name in names])
    made: Any = _set(vars(inner)[first], rest, value, whole) if rest else value
    changed: Any = replace(inner, **{first: made})  # pyright: ignore[reportArgumentType]
    return changed if inner is part else replace(part, options=changed)
