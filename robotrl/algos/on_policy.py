"""What PPO and its relatives share: from a rollout to a batch, from a batch to gradient steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robotrl.data.rollout import Rollout
from robotrl.errors import out_of_range
from robotrl.fn.advantage import gae, normalise
from robotrl.fn.loss import explained_variance

Encode = Callable[[dict[str, Tensor]], Tensor]
Value = Callable[[Tensor], Tensor]
EncodeValue = Callable[[dict[str, Tensor], Tensor], Tensor | None]


def check_settings(cfg: Any, horizon: int) -> None:
    """Refuse settings that no run of PPO or a relative could use.

    Args:
        cfg: the algorithm's settings.
        horizon: H of the policy's chunks; a rollout must hold a whole one.

    Raises:
        ConfigError: the field, its value and what was expected.
    """
    for name, value in (("env_steps", cfg.env_steps), ("epochs", cfg.epochs), ("minibatch", cfg.minibatch)):
        if value < 1:
            raise out_of_range(f"algo.{name}", value, "1 or more")
    if cfg.steps_per_env < horizon:
        raise out_of_range("algo.steps_per_env", cfg.steps_per_env, f"{horizon} or more, the policy's horizon")
    for name, value in (("lr", cfg.lr), ("critic_lr", cfg.critic_lr), ("grad_norm", cfg.grad_norm)):
        if not 0 < value < math.inf:
            raise out_of_range(f"algo.{name}", value, "above 0")
    if not 0 < cfg.gamma <= 1:
        raise out_of_range("algo.gamma", cfg.gamma, "above 0, at most 1")
    if not 0 <= cfg.lam <= 1:
        raise out_of_range("algo.lam", cfg.lam, "0 to 1")
    if not 0 < cfg.clip_coef < 1:
        raise out_of_range("algo.clip_coef", cfg.clip_coef, "above 0 and below 1")


class Batch(NamedTuple):
    """B complete decisions, flat."""

    ctx: Tensor
    """(B, D) encoded observations."""
    record: dict[str, Tensor]
    """(B, ...) what the decider kept; holds `log_prob` (B,) under the policy that acted."""
    advantage: Tensor
    """(B,) normalised."""
    value_target: Tensor
    """(B,)."""
    explained_variance: float
    """Of the critic, on this batch, before its update."""
    value_ctx: Tensor | None = None
    """(B, D') what the critic sees, if that is not `ctx`."""


@torch.no_grad()
def make_batch(
    rollout: Rollout,
    encode: Encode,
    value: Value,
    gamma: float,
    lam: float,
    encode_value: EncodeValue | None = None,
) -> Batch:
    """Advantages of a rollout's decisions, and the decisions flattened.

    Args:
        rollout: from `Collector.collect`.
        encode: observations (B, ...) to contexts (B, D).
        value: what the critic sees to values (B,).
        gamma: discount of an env step.
        lam: lambda of GAE, for each decision.
        encode_value: observations and contexts to what the critic sees; None, or an answer of None: the contexts.
    """
    valid = rollout.valid
    obs = {key: array[valid] for key, array in rollout.obs.items()}
    next_obs = {key: array[valid] for key, array in rollout.next_obs.items()}
    ctx, next_ctx = encode(obs), encode(next_obs)
    value_ctx = next_value_ctx = None
    if encode_value is not None:
        value_ctx, next_value_ctx = encode_value(obs, ctx), encode_value(next_obs, next_ctx)
    values = torch.zeros_like(rollout.reward)
    next_values = torch.zeros_like(rollout.reward)
    values[valid] = value(ctx if value_ctx is None else value_ctx)
    next_values[valid] = value(next_ctx if next_value_ctx is None else next_value_ctx)
    next_values[rollout.terminated] = 0.0
    out = gae(
        rollout.reward,
        values,
        next_values,
        gamma ** rollout.length.to(values.dtype),
        rollout.terminated | rollout.truncated,
        valid,
        lam,
    )
    advantage = normalise(out.advantage, valid)
    target = out.value_target[valid]
    return Batch(
        ctx,
        {name: array[valid] for name, array in rollout.record.items()},
        advantage[valid],
        target,
        float(explained_variance(values[valid], target)),
        value_ctx,
    )


def minibatches(size: int, minibatch: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Index tensors that cover 0..size-1 once in random order, in parts of about `minibatch` and nearly equal size."""
    order = torch.randperm(size, generator=generator)
    yield from torch.tensor_split(order, max(1, round(size / minibatch)))


def summary(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over the gradient steps of an iteration, each over the steps that have the name.

    Of `ratio_error` the first is kept: it is of the policy that acted, so 0 but for rounding, and but for decisions
    that were begun before the last iteration's update and completed after it.
    """
    names = dict.fromkeys(name for update in updates for name in update)
    columns = {name: [update[name] for update in updates if name in update] for name in names}
    return {name: c[0] if name == "ratio_error" else sum(c) / len(c) for name, c in columns.items()}
