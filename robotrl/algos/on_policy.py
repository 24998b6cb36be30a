"""What PPO and its relatives share: from a rollout to a batch, from a batch to gradient steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.data.rollout import Rollout
from robotrl.fn.advantage import gae, normalise
from robotrl.fn.loss import explained_variance

Encode = Callable[[dict[str, Tensor]], Tensor]
Value = Callable[[Tensor], Tensor]


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


@torch.no_grad()
def make_batch(rollout: Rollout, encode: Encode, value: Value, gamma: float, lam: float) -> Batch:
    """Advantages of a rollout's decisions, and the decisions flattened.

    Args:
        rollout: from `Collector.collect`.
        encode: observations (B, ...) to contexts (B, D).
        value: contexts to values (B,).
        gamma: discount of an env step.
        lam: lambda of GAE, for each decision.
    """
    valid = rollout.valid
    ctx = encode({key: array[valid] for key, array in rollout.obs.items()})
    next_ctx = encode({key: array[valid] for key, array in rollout.next_obs.items()})
    values = torch.zeros_like(rollout.reward)
    next_values = torch.zeros_like(rollout.reward)
    values[valid] = value(ctx)
    next_values[valid] = value(next_ctx)
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
    )


def minibatches(size: int, minibatch: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Index tensors that cover 0..size-1 once in random order, in parts of about `minibatch` and nearly equal size."""
    order = torch.randperm(size, generator=generator)
    yield from torch.tensor_split(order, max(1, round(size / minibatch)))


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, parameters: list[Tensor], grad_norm: float) -> None:
    """One gradient step, the gradient clipped to a norm."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, grad_norm)
    optimizer.step()
