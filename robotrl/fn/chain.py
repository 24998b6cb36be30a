"""Denoising chains: one sampler and one likelihood for all generative policies and noise rules.

A policy supplies `encode` and `velocity` (`robotrl.spec.HasChain`). A *kernel* turns them into one step of the chain,
`kernel(policy, ctx, x, t, dt) -> Transition(mean, std)`; `sample` and `chain_log_prob` call the same kernel on the same
time grid, the policy's `times`, so that the ratio of new to old probability is 1 before the first update.

t = 0 is noise, t = 1 the action, and every policy's points lie on straight paths, x_t = (1 - t) noise + t action. The
state sqrt(abar) action + sqrt(1 - abar) noise of a variance-preserving diffusion is the same point, scaled,
with t / (1 - t) = sqrt(abar / (1 - abar)); so every kernel works with every policy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from robotrl.fn.random.noise import randn
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
        """Distribution of the next point; x (B, H, A), t and dt (B,)."""
        ...


def ode(policy: HasChain, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Transition:
    """Deterministic Euler step of the flow, as on the robot."""
    return Transition(x + policy.velocity(ctx, x, t, dt) * _column(dt), None)


def guided(target: Tensor, weight: Tensor, most: float) -> Kernel:
    """Euler step towards a chunk that is partly given (guided real-time chunking, arXiv 2506.07339, algorithm 1).

    The action that the velocity points at, x + (1 - t) v, is corrected by the weighted error to `target`. The paper
    multiplies the error by the network's Jacobian; here the Jacobian is the identity, so that a graph can be exported.
    The gain min(most, (1 - t) / (t r^2)), with r^2 = (1 - t)^2 / (t^2 + (1 - t)^2), is at most 1 / dt: a step never
    goes beyond the target.

    Args:
        target: (B, H, A) normalized actions.
        weight: (B, H, 1) 1 where the action must be the target's, 0 where it is free.
        most: largest gain.
    """

    def kernel(policy: HasChain, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Transition:
        velocity, left = policy.velocity(ctx, x, t, dt), 1 - t
        gain = torch.minimum(((t**2 + left**2) / (t * left).clamp(min=1e-6)).clamp(max=most), 1 / dt)
        error = weight * (target - (x + _column(left) * velocity))
        return Transition(x + (velocity + _column(gain) * error) * _column(dt), None)

    return kernel


def noise_net(std_of: Callable[[Tensor, Tensor], Tensor]) -> Kernel:
    """ReinFlow's step: the Euler step plus noise with a learned, bounded scale (ReinFlow 2505.22094, eq. 5).

    Args:
        std_of: function from (ctx (B, D), t (B,)) to a standard deviation (B, H, A); usually `NoiseNet`.
    """

    def kernel(policy: HasChain, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Transition:
        return Transition(x + policy.velocity(ctx, x, t, dt) * _column(dt), std_of(ctx, t))

    return kernel


def ddim(eta: float, std_floor: float) -> Kernel:
    """Steps of DDIM (Song et al. 2021, eq. 12 and 16) and DDPM (Ho et al. 2020, eq. 7), on straight paths.

    With the action and the noise that the velocity v points at, a = x + (1 - t) v and e = x - t v, the next point is
    t' a + sqrt((1 - t')^2 - s^2) e + s z. The published standard deviation sigma, written for x_t, is
    s = eta (1 - t') sqrt(1 - (t (1 - t') / (t' (1 - t)))^2). Without noise (eta 0), this is the Euler step, `ode`.

    Args:
        eta: 0 is deterministic DDIM, 1 is DDPM with the smaller of its two variances.
        std_floor: minimum standard deviation of a step, as in DPPO (2409.00588); the mean does not depend on it.
            Without it, the last step would have no density.

    Raises:
        ValueError: a number out of range, or noise without a floor.
    """
    if not 0 <= eta <= 1 or std_floor < 0:
        raise ValueError(f"eta={eta}, std_floor={std_floor}: expected 0 to 1, and 0 or more")
    if eta > 0 and std_floor == 0:
        raise ValueError(f"std_floor is 0 with eta={eta}: expected above 0, the last step has no noise of its own")
    if eta == 0 and std_floor == 0:
        return ode

    def kernel(policy: HasChain, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Transition:
        velocity = policy.velocity(ctx, x, t, dt)
        here, there = _column(t), _column(t + dt)
        left = (1 - there).clamp(min=0)
        kept = here * left / (there * (1 - here))
        std = eta * left * (1 - kept**2).clamp(min=0).sqrt()
        action, noise = x + (1 - here) * velocity, x - here * velocity
        mean = there * action + (left**2 - std**2).clamp(min=0).sqrt() * noise
        return Transition(mean, std.clamp(min=std_floor).expand_as(x))

    return kernel


def flow_sde(scale: float) -> Kernel:
    """Steps of the SDE with the flow's marginals (Flow-GRPO 2505.05470, with time reversed).

    In our convention (x_t = (1 - t) noise + t action) the score is (t v - x) / (1 - t), and with sigma(t) = scale *
    sqrt((1 - t) / t) the step is dx = [v + sigma^2 / 2 * score] dt + sigma dW. The factor 1 / (1 - t) of the score
    cancels against sigma^2, so nothing diverges at t = 1. sigma diverges at t = 0, so the first step divides by its
    length instead of by t.

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


def cps(noise: float, std_floor: float) -> Kernel:
    """Steps that keep the coefficients of the flow's marginals (CPS, arXiv 2509.05952), on straight paths.

    With the action a and the noise e that the velocity points at, see `ddim`, the next point is
    t' a + (1 - t') (cos(pi noise / 2) e + sin(pi noise / 2) z): the noise of a point is turned into fresh noise of the
    same size, so that no step has more noise than the path has there. Chains end narrower than the flow where its
    actions vary, because fresh noise cannot carry what the noise before told about the action.

    Args:
        noise: share of fresh noise, 0 to 1: 0 is the Euler step, 1 keeps nothing of the noise before.
        std_floor: minimum standard deviation of a step; the mean does not depend on it. Without it, the last step,
            whose deviation is 0, would have no density.

    Raises:
        ValueError: a number out of range, or noise without a floor.
    """
    if not 0 <= noise <= 1 or std_floor < 0:
        raise ValueError(f"noise={noise}, std_floor={std_floor}: expected 0 to 1, and 0 or more")
    if noise > 0 and std_floor == 0:
        raise ValueError(f"std_floor is 0 with noise={noise}: expected above 0, the last step has no noise of its own")
    if noise == 0 and std_floor == 0:
        return ode
    kept, fresh = math.cos(math.pi * noise / 2), math.sin(math.pi * noise / 2)

    def kernel(policy: HasChain, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Transition:
        velocity = policy.velocity(ctx, x, t, dt)
        here, there = _column(t), _column(t + dt)
        left = (1 - there).clamp(min=0)
        action, before = x + (1 - here) * velocity, x - here * velocity
        mean = there * action + left * kept * before
        return Transition(mean, (left * fresh).clamp(min=std_floor).expand_as(x))

    return kernel


def sample(
    policy: HasChain,
    ctx: Tensor,
    kernel: Kernel,
    noise: Tensor,
    generator: torch.Generator | None = None,
    steps: range | None = None,
    noise_bound: float | None = None,
    draws: Tensor | None = None,
) -> Chain:
    """Sample a chain, or a part of one.

    Args:
        policy: the generative policy.
        ctx: (B, D) from `policy.encode`.
        kernel: transition kernel of each step.
        noise: (B, H, A) first point: standard normal noise, or the point before the first of `steps`.
        generator: source of the steps' noise.
        steps: consecutive steps out of 0..K-1; default: all.
        noise_bound: clip range of the standard normal noise; the log-density ignores the clipping.
        draws: (B, n, H, A) standard normal noise of the steps; default: sampled here.

    Returns:
        The n+1 points of the n steps, and the log-density of each transition under `kernel`.
    """
    x, points, log_probs = noise, [noise], list[Tensor]()
    times, lengths = _grid(policy, noise)
    for i, k in enumerate(steps or range(policy.denoising_steps)):
        mean, std = kernel(policy, ctx, x, times[k].expand(len(x)), lengths[k].expand(len(x)))
        if std is None:
            x = mean
            log_probs.append(torch.zeros_like(x))
        else:
            eps = randn(x.shape, generator, x.device, x.dtype) if draws is None else draws[:, i]
            if noise_bound is not None:
                eps = eps.clamp(-noise_bound, noise_bound)
            x = mean + std * eps
            log_probs.append(normal_log_prob(x, mean, std))
        points.append(x)
    return Chain(torch.stack(points, 1), torch.stack(log_probs, 1))


def integrate(policy: HasChain, ctx: Tensor, noise: Tensor, steps: range | None = None, kernel: Kernel = ode) -> Tensor:
    """Return the end (B, H, A) of a deterministic chain: `sample` with `kernel`, without the record."""
    x = noise
    times, lengths = _grid(policy, noise)
    for k in steps or range(policy.denoising_steps):
        x = kernel(policy, ctx, x, times[k].expand(len(x)), lengths[k].expand(len(x))).mean
    return x


def chain_log_prob(policy: HasChain, ctx: Tensor, kernel: Kernel, points: Tensor, steps: range | None = None) -> Tensor:
    """Log-density of each transition of given chains; the first point's constant density is left out.

    All steps go through the network as one batch.

    Args:
        policy: the generative policy.
        ctx: (B, D).
        kernel: transition kernel of each step; must be stochastic.
        points: (B, n+1, H, A) as `sample` returned them.
        steps: the n consecutive steps out of 0..K-1 of these points; default: all.

    Returns:
        (B, n, H, A).

    Raises:
        ValueError: the kernel is deterministic, or there are not n+1 points.
    """
    steps = steps or range(policy.denoising_steps)
    batch, count = len(points), len(steps)
    if points.shape[1] != count + 1:
        raise ValueError(f"chain has {points.shape[1] - 1} steps: expected {count}, the policy's denoising_steps")
    times, lengths = (grid[steps.start : steps.stop] for grid in _grid(policy, points))
    mean, std = kernel(
        policy,
        ctx.unsqueeze(1).expand(-1, count, -1).reshape(batch * count, -1),
        points[:, :-1].reshape(batch * count, *points.shape[2:]),
        times.repeat(batch),
        lengths.repeat(batch),
    )
    if std is None:
        raise ValueError("a deterministic kernel has no log-density")
    target = points[:, 1:].reshape(mean.shape)
    return normal_log_prob(target, mean, std).reshape(batch, count, *points.shape[2:])


def executed(policy: HasChain, x: Tensor) -> Tensor:
    """Return the executed part (..., H, A) of points or densities (..., H', A').

    A pretrained policy may output more steps and a wider action; those have no effect and must not count in a ratio.
    """
    return x[..., : policy.horizon, : policy.action_spec.shape[0]]


def uniform_times(steps: int) -> tuple[float, ...]:
    """`HasChain.times` of K equal steps."""
    return tuple(k / steps for k in range(steps + 1))


def normal_log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Elementwise log-density of a normal distribution."""
    return -0.5 * ((x - mean) / std) ** 2 - std.log() - _HALF_LOG_2PI


def _column(t: Tensor) -> Tensor:
    return t[:, None, None]


def _grid(policy: HasChain, like: Tensor) -> tuple[Tensor, Tensor]:
    """Times (K,) before each step, and lengths (K,) of the steps."""
    times = policy.times
    lengths = [after - before for before, after in itertools.pairwise(times)]

    def row(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device)

    return row(times[:-1]), row(lengths)
