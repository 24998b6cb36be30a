"""Shared parts of PPO and its relatives: batches from rollouts, order of minibatches, log scalars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robotrl.engine.base import ENGINE_MODES
from robotrl.engine.distributed import ALONE, DistributedContext
from robotrl.engine.engine import Updates
from robotrl.engine.minibatches import part
from robotrl.errors import check_at_least, check_positive, out_of_range, unknown
from robotrl.fn.advantage import gae, normalize, vtrace
from robotrl.fn.loss import explained_variance
from robotrl.learners.collection.acting import RolloutActing
from robotrl.learners.learner import Setup
from robotrl.learners.normalizers import RewardNormalizer
from robotrl.learners.parts import Part
from robotrl.rollout.storage import Rollout
from robotrl.spec import VecSim
from robotrl.utils.batched import in_parts

Keep = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""Function from raw observations (B, ...) to the arrays that are kept of them."""
Value = Callable[[dict[str, Tensor]], Tensor]
"""Function from raw observations (B, ...) to values (B,)."""
OBS = "obs/"
"""Prefix of raw observations among a batch's rows."""
ROWS = 4096
"""Observations per batch of the critic; images of a whole rollout would not fit into memory."""


def check_settings(cfg: Any, horizon: int) -> None:
    """Check the settings that PPO and its relatives share.

    Args:
        cfg: the algorithm's settings.
        horizon: H of the policy's chunks; a rollout must hold a whole one.

    Raises:
        ConfigError: a setting is out of range; names the field, its value and the expectation.
    """
    check_ranges(cfg)
    if cfg.num_steps < horizon:
        raise out_of_range("algo.num_steps", cfg.num_steps, f"{horizon} or more, the policy's horizon")


def check_ranges(cfg: Any) -> None:
    """Check the settings of `check_settings` that depend on no policy.

    Args:
        cfg: the algorithm's settings.

    Raises:
        ConfigError: a setting is out of range.
    """
    for name, value in (("env_steps", cfg.env_steps), ("epochs", cfg.epochs), ("minibatch", cfg.minibatch)):
        check_at_least(f"algo.{name}", value, 1)
    check_at_least("algo.critic_warmup_env_steps", cfg.critic_warmup_env_steps, 0)
    for name, value in (("lr", cfg.lr), ("critic_lr", cfg.critic_lr), ("max_grad_norm", cfg.max_grad_norm)):
        check_positive(f"algo.{name}", value)
    if not 0 < cfg.gamma <= 1:
        raise out_of_range("algo.gamma", cfg.gamma, "above 0, at most 1")
    if not 0 <= cfg.gae_lambda <= 1:
        raise out_of_range("algo.gae_lambda", cfg.gae_lambda, "0 to 1")
    if not 0 < cfg.clip_coef < 1:
        raise out_of_range("algo.clip_coef", cfg.clip_coef, "above 0 and below 1")
    if cfg.target_kl is not None and not cfg.target_kl > 0:
        raise out_of_range("algo.target_kl", cfg.target_kl, "above 0, or none")
    if cfg.engine not in ENGINE_MODES:
        raise unknown("algo.engine", str(cfg.engine), ENGINE_MODES)


class Rollouts:
    """Sim, random streams and reward normalization of an on-policy learner; lays out rollouts and their updates.

    Args:
        cfg: the algorithm's settings, see `check_settings`.
        setup: the learner's setup.
        sim: the training sim; it is reset here.
        acting: the policy as it acts in rollouts.
        normalize_reward: whether to divide rewards by the running standard deviation of the return.
    """

    def __init__(self, cfg: Any, setup: Setup, sim: VecSim, acting: RolloutActing, normalize_reward: bool) -> None:
        self._cfg, self._world = cfg, setup.world
        self.capacity = cfg.num_steps * sim.num_envs
        """Largest number of decisions in a rollout: each takes at least one step."""
        steps = self._steps = self.capacity * setup.world.size
        self.iterations = math.ceil(cfg.env_steps / steps)
        """Number of iterations of the whole run."""
        self.updates = setup.expected(self.iterations * cfg.epochs * math.ceil(steps / acting.horizon / cfg.minibatch))
        """Expected number of updates of the whole run."""
        normalizer = RewardNormalizer(sim.num_envs, cfg.gamma, setup.world)
        self.reward_normalizer = normalizer if normalize_reward else None
        self.generator = torch.Generator().manual_seed(setup.seed)
        self.collector = setup.collectors.rollouts(sim, acting, cfg.gamma, setup.seed, self.generator)

    def collect(self, policy: Any) -> tuple[Rollout, Tensor]:
        """Collect a rollout; returns it with normalized rewards, and the sim's rewards (M, N).

        The scale of the rewards becomes `policy.reward_scale`.
        """
        rollout = self._world.with_episodes(self.collector.rollout(self._cfg.num_steps))
        reward = rollout.reward
        if self.reward_normalizer is not None:
            rollout = self.reward_normalizer.normalize(rollout)
            policy.reward_scale = self.reward_normalizer.scale
        return rollout, reward

    def critic_only(self, iteration: int) -> bool:
        """True if an iteration, counted from 1, begins within the critic's warm-up."""
        return (iteration - 1) * self._steps < self._cfg.critic_warmup_env_steps

    def order(self, size: int, minibatch: int, keep_all: bool) -> Tensor:
        """Return the row indices of an iteration's minibatches; see `epoch_order`."""
        most = self._world.most(size)
        return epoch_order(size, minibatch, self._cfg.epochs, self.generator, keep_all=keep_all, most=most)

    def parts(self) -> dict[str, Part]:
        """Return the parts of a learner's state."""
        return {
            "reward_normalizer": self.reward_normalizer,
            "generator": self.generator,
            "collector": self.collector,
        }


class OnPolicyBatch(NamedTuple):
    """B complete decisions, flattened over time and envs."""

    obs: dict[str, Tensor]
    """(B, ...) raw observations, or their cached features; encoders may learn, so each loss encodes for itself."""
    record: dict[str, Tensor]
    """(B, ...) arrays recorded at the decisions; holds `log_prob` under the policy that acted."""
    advantage: Tensor
    """(B,) advantages, normalized by default."""
    value_target: Tensor
    """(B,) targets of the critic."""
    value: Tensor
    """(B,) values of the critic before its update."""
    explained_variance: float
    """Explained variance of the critic on this batch, before its update."""

    def rows(self) -> dict[str, Tensor]:
        """Return the arrays (B, ...) as rows for the engine; observations are named "obs/KEY"."""
        return {
            **{OBS + key: x for key, x in self.obs.items()},
            **self.record,
            "advantage": self.advantage,
            "value_target": self.value_target,
        }


def observations(rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the raw observations among the rows of a minibatch, by their own keys."""
    return part(rows, OBS)


@torch.no_grad()
def make_batch(
    rollout: Rollout,
    value: Value,
    gamma: float,
    gae_lambda: float,
    critic_batch: int | None = None,
    world: DistributedContext = ALONE,
    normalized: bool = True,
    keep: Keep = dict,
    log_ratio: Tensor | None = None,
) -> OnPolicyBatch:
    """Compute the advantages of a rollout's decisions, and flatten the decisions to a batch.

    Args:
        rollout: result of `Collector.collect`.
        value: the critic.
        gamma: discount per env step.
        gae_lambda: lambda of GAE, per decision.
        critic_batch: observations per batch of the critic; None is `ROWS`.
        world: the processes whose advantages are normalized together.
        normalized: whether to normalize the advantages.
        keep: function from observations to those that the critic and every epoch read; called once per array.
        log_ratio: (B,) log-probability of each decision under the policy that learns minus that under the one that
            acted: advantages and targets are those of V-trace. None: those of GAE.
    """
    valid = rollout.valid
    obs = keep({key: array[valid] for key, array in rollout.obs.items()})
    next_obs = keep({key: array[valid] for key, array in rollout.next_obs.items()})
    values = torch.zeros_like(rollout.reward)
    next_values = torch.zeros_like(rollout.reward)
    values[valid] = in_parts(value, obs, critic_batch or ROWS).to(values.dtype)
    next_values[valid] = in_parts(value, next_obs, critic_batch or ROWS).to(values.dtype)
    next_values[rollout.terminated] = 0.0
    discount = gamma ** rollout.length.to(values.dtype)
    reward = rollout.reward
    if rollout.scored is not None:
        # an unknown reward is taken to be as the critic expects it: it tells nothing
        reward = torch.where(rollout.scored, reward, values - discount * next_values)
    ended = rollout.terminated | rollout.truncated
    if log_ratio is None:
        out = gae(reward, values, next_values, discount, ended, valid, gae_lambda)
    else:
        ratios = torch.zeros_like(values)
        ratios[valid] = log_ratio.to(values.dtype)
        out = vtrace(reward, values, next_values, discount, ended, valid, ratios, gae_lambda)
    advantage = out.advantage
    if normalized:
        advantage = normalize(advantage, valid, world.rows(advantage[valid]))
    target = out.value_target[valid]
    return OnPolicyBatch(
        obs,
        {name: array[valid] for name, array in rollout.record.items()},
        advantage[valid],
        target,
        values[valid],
        float(explained_variance(values[valid], target)),
    )


def epoch_order(
    size: int, minibatch: int, epochs: int, generator: torch.Generator, keep_all: bool, most: int = 0
) -> Tensor:
    """Return the row indices of all minibatches of all epochs; each epoch is shuffled and cut separately.

    Args:
        size: B, rows.
        minibatch: M.
        epochs: passes over the rows.
        generator: random generator of the shuffles.
        keep_all: True: every row is in every epoch, and rows from the epoch's beginning fill up its last minibatch.
            False: the number of minibatches is B / M rounded, and an epoch leaves out up to half a minibatch of random
            rows, so that B a little above n M does not cost n + 1 updates.
        most: largest number of rows of any process; all processes make as many updates as that one.
    """
    rows = max(size, most)
    count = math.ceil(rows / minibatch) if keep_all else max(1, round(rows / minibatch))
    whole = count * minibatch
    orders = [torch.randperm(size, generator=generator) for _ in range(epochs)]
    return torch.cat([torch.cat([o] * math.ceil(whole / size))[:whole] for o in orders])


def known_rewards(rollout: Rollout) -> Tensor:
    """(M, N) bool: complete decisions whose reward is known."""
    return rollout.valid if rollout.scored is None else rollout.valid & rollout.scored


def rollout_scalars(rollout: Rollout, batch: OnPolicyBatch, reward: Tensor) -> dict[str, float]:
    """Return the scalars to log of a rollout.

    Args:
        rollout: the rollout as collected.
        batch: its batch.
        reward: (M, N) the sim's rewards, before any normalization.
    """
    return {
        "rollout_success": float(rollout.episodes.float().mean()) if len(rollout.episodes) else math.nan,
        "rollout_return": float(rollout.returns.mean()) if len(rollout.returns) else math.nan,
        "rollout_episodes": float(len(rollout.episodes)),
        "rollout_reward": float(reward[known_rewards(rollout)].mean()),
        "explained_variance": batch.explained_variance,
        "value_target": float(batch.value_target.mean()),
    }


def joined(parts: Sequence[Updates]) -> Updates:
    """Concatenate consecutive updates; NaN where a part of another phase lacks a name."""
    names = dict.fromkeys(name for part in parts for name in part.info)
    blank = [torch.full_like(part.info["loss"], math.nan) for part in parts]
    columns = {
        name: torch.cat([part.info.get(name, nothing) for part, nothing in zip(parts, blank, strict=True)])
        for name in names
    }
    return Updates(columns)


def update_scalars(updates: Updates) -> dict[str, float]:
    """Return the scalars to log of an iteration's updates: means; the actor's over the updates in which it learned.

    The engine's info must hold "actor_on"; updates of the critic alone lack the actor's names, or have NaN there.
    """
    on = updates.info["actor_on"] > 0
    kept = {name: values for name, values in updates.info.items() if name not in ("loss", "actor_on")}
    scalars = {name: float(values.nanmean()) for name, values in kept.items()}
    scalars["actor_updates"] = float(on.sum())
    for name in ("pg_loss", "approx_kl", "clip_fraction"):
        if name in updates.info:
            scalars[name] = float(updates.info[name][on].mean())
    if "ratio_error" in updates.info:
        # before the first update, the policy that learns is the one that acted: the error is 0 but for rounding, and
        # for decisions begun before the last iteration's update and completed after it
        scalars["ratio_error"] = float(updates.info["ratio_error"][0]) if on.any() else math.nan
    return scalars


def finite(scalars: Mapping[str, float]) -> dict[str, float]:
    """Drop NaN and infinite scalars, e.g. the success rate of a rollout in which no episode ended."""
    return {name: value for name, value in scalars.items() if math.isfinite(value)}
