"""Denoising chains: one sampler and one likelihood for every generative policy and every noise rule.

A policy supplies `encode` and `velocity` (`robotrl.spec.HasChain`). A *kernel* turns them into one step of the chain,
`kernel(policy, ctx, x, t, dt) -> Transition(mean, std)`; `sample` and `chain_log_prob` call the same kernel on the same
time grid, so that the ratio of new to old probability is 1 before the first update. t = 0 is noise, t = 1 the action.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from robotrl.spec import Chain, HasChain

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Transition(NamedTuple):
    """A diagonal Gaussian step of the chain."""

    mean: Tensor
    """(B, H, A)."""
    std: Tensor | None
    """(B, H, A), or None for a deterministic step."""


class Kernel(Protocol):
    """One step of a chain from x at time t over dt."""

    def __call__(self, policy: HasChain, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Transition:
        """The law of the next point; x (B, H, A), t and dt (B,)."""
        ...


def ode(policy: HasChain, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Transition:
    """The deterministic Euler step of the flow; what runs on the robot."""
    return Transition(x + policy.velocity(ctx, x, t, dt) * _column(dt), None)


def noise_net(std_of: Callable[[Tensor, Tensor], Tensor]) -> Kernel:
    """ReinFlow's step: the Euler step plus noise of a learned, bounded scale (ReinFlow 2505.22094, eq. 5).

    Args:
        std_of: (ctx (B, D), t (B,)) to a standard deviation (B, H, A); usually `robotrl.policies.noise.NoiseNet`.
    """

    def kernel(policy: HasChain, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Transition:
        return Transition(x + policy.velocity(ctx, x, t, dt) * _column(dt), std_of(ctx, t))

    return kernel


def flow_sde(scale: float) -> Kernel:
    """The flow turned into an SDE with the same marginals (Flow-GRPO 2505.05470, time reversed to ours).

    In our convention (x_t = (1 - t) noise + t action) the score is (t v - x) / (1 - t), and with
    sigma(t) = scale * sqrt((1 - t) / t) the step is dx = [v + sigma^2 / 2 * score] dt + sigma dW. The factor
    1 / (1 - t) of the score cancels against sigma^2, so nothing diverges at the action's end. sigma diverges at pure
    noise, so the first step divides by its length instead of by t = 0.

    Args:
        scale: `a` of the formula; 0 gives `ode`.
    """

    def kernel(policy: HasChain, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Transition:
        velocity = policy.velocity(ctx, x, t, dt)
        if scale == 0:
            return Transition(x + velocity * _column(dt), None)
        here, step = _column(t), _column(dt)
        divisor = torch.maximum(here, step)
        drift = velocity + scale**2 / (2 * divisor) * (here * velocity - x)
        std = scale * ((1 - here) / divisor).sqrt() * step.sqrt()
        return Transition(x + drift * step, std.expand_as(x))

    return kernel


def sample(
    policy: HasChain, ctx: Tensor, kernel: Kernel, noise: Tensor, generator: torch.Generator | None = None
) -> Chain:
    """Draw a chain.

    Args:
        policy: the generative policy.
        ctx: (B, D) from `policy.encode`.
        kernel: the law of each step.
        noise: (B, H, A) where the chain starts, usually standard normal.
        generator: source of the steps' noise.

    Returns:
        All K+1 points, and the log-density of each transition under `kernel`.
    """
    x, points, log_probs = noise, [noise], list[Tensor]()
    for t, dt in _grid(policy.denoising_steps, noise):
        mean, std = kernel(policy, ctx, x, t, dt)
        if std is None:
            x = mean
            log_probs.append(torch.zeros_like(x))
        else:
            eps = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
            x = mean + std * eps
            log_probs.append(normal_log_prob(x, mean, std))
        points.append(x)
    return Chain(torch.stack(points, 1), torch.stack(log_probs, 1))


def integrate(policy: HasChain, ctx: Tensor, noise: Tensor) -> Tensor:
    """The end (B, H, A) of the deterministic chain: `sample` with `ode`, without the record."""
    x = noise
    for t, dt in _grid(policy.denoising_steps, noise):
        x = ode(policy, ctx, x, t, dt).mean
    return x


def chain_log_prob(policy: HasChain, ctx: Tensor, kernel: Kernel, points: Tensor) -> Tensor:
    """Log-density of each transition of given chains under `kernel`; the start's density is left out (it is constant).

    All K steps go through the network as one batch.

    Args:
        policy: the generative policy.
        ctx: (B, D).
        kernel: the law of each step; must be stochastic.
        points: (B, K+1, H, A).

    Returns:
        (B, K, H, A).

    Raises:
        ValueError: the kernel is deterministic, or K is not the policy's.
    """
    batch, length = points.shape[:2]
    steps = length - 1
    if steps != policy.denoising_steps:
        raise ValueError(f"chain has {steps} steps: expected {policy.denoising_steps}, the policy's denoising_steps")
    t = torch.arange(steps, dtype=points.dtype, device=points.device) / steps
    mean, std = kernel(
        policy,
        ctx.unsqueeze(1).expand(-1, steps, -1).reshape(batch * steps, -1),
        points[:, :-1].reshape(batch * steps, *points.shape[2:]),
        t.repeat(batch),
        torch.full((batch * steps,), 1 / steps, dtype=points.dtype, device=points.device),
    )
    if std is None:
        raise ValueError("a deterministic kernel has no log-density")
    target = points[:, 1:].reshape(mean.shape)
    return normal_log_prob(target, mean, std).reshape(batch, steps, *points.shape[2:])


def normal_log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Elementwise log-density of a normal distribution."""
    return -0.5 * ((x - mean) / std) ** 2 - std.log() - _HALF_LOG_2PI


def _column(t: Tensor) -> Tensor:
    return t[:, None, None]


def _grid(steps: int, like: Tensor) -> list[tuple[Tensor, Tensor]]:
    batch = like.shape[0]
    dt = torch.full((batch,), 1 / steps, dtype=like.dtype, device=like.device)
    # k / K in the tensor's own precision, as chain_log_prob computes it
    times = torch.arange(steps, dtype=like.dtype, device=like.device) / steps
    return [(times[k].expand(batch), dt) for k in range(steps)]
