"""Sampling of noisy denoising chains and their log-densities, shared by methods through the chain."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robotrl.fn import chain
from robotrl.fn.random.noise import randn
from robotrl.spec import Chain, HasChain, HasDeployNoise


class SampledChain(NamedTuple):
    """Result of `draw_chain`."""

    ctx: Tensor
    """(n, D) the policy's contexts."""
    chain: Chain
    """Chain of the steps sampled with noise, with log-densities of the executed actions."""


def warn_of_start_noise(policy: object, start_noise: float) -> None:
    """Warn if chains learn from other initial noise than the policy is deployed with.

    Args:
        policy: the policy that is fine-tuned.
        start_noise: standard deviation of the initial noise in training.
    """
    if isinstance(policy, HasDeployNoise) and policy.deploy_noise != start_noise:
        warnings.warn(
            f"chains learn from initial noise of standard deviation {start_noise:g} (algo.start_noise), and the policy"
            f" is deployed with {policy.deploy_noise:g} (policy.deploy_noise): what it learns may not show when it is"
            " deployed; give both the same value",
            stacklevel=3,
        )


def warn_of_step_noise(policy: object, eta: float) -> None:
    """Warn if the steps of chains that learn are noisy and the policy is deployed without any noise.

    Args:
        policy: the policy that is fine-tuned.
        eta: noise of the steps in training, see `chain.ddim`.
    """
    if isinstance(policy, HasDeployNoise) and policy.deploy_noise == 0 and eta > 0:
        warnings.warn(
            f"the steps of chains in training have DDPM's noise (algo.eta is {eta:g}), and the policy is deployed"
            " without noise (policy.deploy_noise is 0): chains pass through points that it never meets when it is"
            " deployed; expected algo.eta 0, with which the floor algo.sample_std alone explores",
            stacklevel=3,
        )


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
    """Sample the noisy chain on observations (n, ...).

    Args:
        policy: the generative policy.
        kernel: transition kernel of the denoising steps.
        obs: raw observations.
        generator: random generator of all noise.
        steps: the last steps of the chain, which are recorded; default: all.
        start_noise: standard deviation of the initial noise.
        before: function from the initial noise (n, H, A) to the point where `steps` begin.
        noise_bound: see `chain.sample`.
    """
    ctx = policy.encode(obs)
    start = initial_noise(policy, ctx, generator, start_noise)
    if before is not None:
        start = before(start)
    sampled = chain.sample(policy, ctx, kernel, start, generator, steps, noise_bound)
    return SampledChain(ctx, sampled._replace(log_prob=chain.executed(policy, sampled.log_prob)))


def chain_log_prob(
    policy: HasChain, ctx: Tensor, kernel: chain.Kernel, points: Tensor, steps: range | None = None
) -> Tensor:
    """Log-densities (B, n, H, A) of the executed part of the chunk; see `chain.chain_log_prob`."""
    return chain.executed(policy, chain.chain_log_prob(policy, ctx, kernel, points, steps))


def initial_noise(policy: Any, ctx: Tensor, generator: torch.Generator, std: float = 1.0) -> Tensor:
    """Sample Gaussian noise (n, H, A) for contexts (n, D)."""
    shape = (len(ctx), *policy.noise_shape)
    return std * randn(shape, generator, ctx.device, ctx.dtype)


def step_log_prob(log_prob: Tensor) -> Tensor:
    """Mean log-density of each denoising step: (B, K, H, A) averaged over chunk and action to (B, K)."""
    return log_prob.flatten(2).mean(2)
