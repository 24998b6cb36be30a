"""Chains as a policy draws them while it learns, and how likely they are now: what methods through the chain share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robotrl.fn import chain
from robotrl.fn.random.noise import randn
from robotrl.spec import Chain, HasChain


class SampledChain(NamedTuple):
    """What `draw_chain` gives."""

    ctx: Tensor
    """(n, D) the policy's contexts."""
    chain: Chain
    """The steps that were drawn with noise; densities of what is executed."""


@torch.no_grad()
def draw_chain(
    policy: Any,
    kernel: chain.Kernel,
    obs: dict[str, Tensor],
    generator: torch.Generator,
    *,
    steps: range | None = None,
    start_noise: float = 1.0,
    before: Callable[[Tensor], Tensor] | None = None,
    noise_bound: float | None = None,
) -> SampledChain:
    """Run the noisy chain on observations (n, ...).

    Args:
        policy: the generative policy.
        kernel: the law of the steps.
        obs: raw observations.
        generator: of all noise.
        steps: the last steps of the chain, which are recorded; by default all.
        start_noise: deviation of the initial noise.
        before: takes the initial noise (n, H, A) to the point where `steps` begin.
        noise_bound: see `chain.sample`.
    """
    ctx = policy.encode(obs)
    start = initial_noise(policy, ctx, generator, start_noise)
    if before is not None:
        start = before(start)
    drawn = chain.sample(policy, ctx, kernel, start, generator, steps, noise_bound)
    return SampledChain(ctx, drawn._replace(log_prob=chain.executed(policy, drawn.log_prob)))


def chain_log_prob(
    policy: HasChain, ctx: Tensor, kernel: chain.Kernel, points: Tensor, steps: range | None = None
) -> Tensor:
    """Log-densities (B, n, H, A) of what is executed; see `chain.chain_log_prob`."""
    return chain.executed(policy, chain.chain_log_prob(policy, ctx, kernel, points, steps))


def initial_noise(policy: Any, ctx: Tensor, generator: torch.Generator, deviation: float = 1.0) -> Tensor:
    """Normal noise (n, H, A) for contexts (n, D)."""
    shape = (len(ctx), *policy.noise_shape)
    return deviation * randn(shape, generator, ctx.device, ctx.dtype)


def step_log_prob(log_prob: Tensor) -> Tensor:
    """One number for each denoising step: the mean of (B, K, H, A) over chunk and action, (B, K)."""
    return log_prob.flatten(2).mean(2)
