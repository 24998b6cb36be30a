"""Chains with learned noise and an exact joint density, one ratio for each: what ReinFlow and Flow-Noise share.

While the policy learns, each Euler step gets Gaussian noise from a small network whose deviations are bounded. The
network is gone at deployment, where the plain ODE runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robotrl.errors import out_of_range
from robotrl.fn import chain
from robotrl.fn.loss import PolicyLoss, ppo_clip
from robotrl.learners.denoising import ActorTerms, ChainCfg, ChainLearner, ChainLoss, MakeCritic
from robotrl.learners.denoising_sampling import chain_log_prob, draw_chain
from robotrl.learners.learner import Setup
from robotrl.policies.networks.noise import NoiseNet
from robotrl.rollout.collector import Decision
from robotrl.spec import HasChain

Reduce = Callable[[Tensor], Tensor]
"""Log-densities (B, K, H, A) of a chain's steps to one number (B,) for each chain."""


@dataclass(frozen=True)
class NoisyCfg(ChainCfg):
    """Settings of methods with learned noise."""

    noise_low: float = 0.08
    """Smallest standard deviation of a denoising step, in normalised action units."""
    noise_high: float = 0.20
    """Largest."""
    noise_hold: float = 0.35
    """Part of the budget for which the largest deviation stays as it is."""
    noise_end: float = 1.0
    """Where the largest deviation falls to by the end, along half a cosine: 0 is `noise_low`, 1 is `noise_high`, that
    is no fall. ReinFlow's published schedule has 0.7."""
    entropy_coef: float = 0.0
    """Weight of the chain's mean entropy rate as a bonus."""


# losses


def policy_loss(
    policy: HasChain,
    kernel: chain.Kernel,
    reduce: Callable[[Tensor], Tensor],
    ctx: Tensor,
    rows: dict[str, Tensor],
    clip_coef: float,
) -> PolicyLoss:
    """PPO's clipped surrogate on the joint density of whole chains, one ratio for each.

    Args:
        policy: the flow.
        kernel: law of its noisy steps.
        reduce: (M, K, H, A) log-densities to one number (M,) for each chain.
        ctx: (M, D).
        rows: "chain" (M, K+1, H, A), "log_prob" (M,) and "advantage" (M,).
        clip_coef: clip range.
    """
    log_prob = chain_log_prob(policy, ctx, kernel, rows["chain"])
    return ppo_clip(reduce(log_prob), rows["log_prob"], rows["advantage"], clip_coef)


def upper_bound(low: float, high: float, hold: float, end: float, progress: float) -> float:
    """Largest deviation at a part of the budget: held, then along half a cosine to low + end (high - low)."""
    past = 0.0 if hold >= 1 else max(0.0, (progress - hold) / (1 - hold))
    last = low + end * (high - low)
    return last + (high - last) * 0.5 * (1 + math.cos(math.pi * min(1.0, past)))


def entropy_rate(std_of: Callable[[Tensor, Tensor], Tensor], ctx: Tensor, times: tuple[float, ...]) -> Tensor:
    """Mean entropy of a chain element, that of its Gaussian steps.

    Args:
        std_of: (ctx, t) to standard deviations, see `chain.noise_net`.
        ctx: (B, D).
        times: K+1, the policy's.
    """
    t = torch.tensor(times[:-1], dtype=ctx.dtype, device=ctx.device)
    std = std_of(ctx.repeat_interleave(len(t), 0), t.repeat(len(ctx)))
    return (std.log() + 0.5 * math.log(2 * math.pi * math.e)).mean()


# update


class NoisyChainLoss(ChainLoss):
    """See `ChainLoss`; `actor["noise"]` is the noise network.

    Args:
        policy: what is fine-tuned.
        make_critic: see `ChainLoss`.
        cfg: settings.
        reduce: what the ratio is of.
    """

    def __init__(self, policy: Any, make_critic: MakeCritic, cfg: NoisyCfg, reduce: Reduce) -> None:
        super().__init__(policy, make_critic, cfg)
        horizon, action = policy.noise_shape
        self.actor["noise"] = NoiseNet(policy.context_width, horizon, action, cfg.noise_low, cfg.noise_high)
        self._cfg, self._reduce = cfg, reduce

    def std(self, ctx: Tensor, t: Tensor) -> Tensor:
        """(B, H, A) noise; it does not teach the encoder."""
        return self.actor["noise"](ctx.detach(), t)

    def decide(self, obs: dict[str, Tensor], generator: torch.Generator) -> Decision:
        """See `ChainLoss.decide`."""
        kernel, start_noise = chain.noise_net(self.std), self._cfg.start_noise
        drawn = draw_chain(self.policy, kernel, obs, generator, start_noise=start_noise).chain
        record = {"chain": drawn.x, "log_prob": self._reduce(drawn.log_prob)}
        return Decision(self.policy.to_actions(drawn.x[:, -1]), record)

    def terms(self, rows: dict[str, Tensor], obs: dict[str, Tensor], ctx: Tensor) -> ActorTerms:
        """See `ChainLoss.terms`."""
        cfg = self._cfg
        out = policy_loss(self.policy, chain.noise_net(self.std), self._reduce, ctx, rows, cfg.clip_coef)
        if not cfg.entropy_coef:
            return ActorTerms(out)
        entropy = entropy_rate(self.std, ctx, self.policy.times)
        return ActorTerms(out, -cfg.entropy_coef * entropy, {"entropy_rate": entropy})

    def schedule(self, progress: float) -> None:
        """See `ChainLoss.schedule`: the noise's upper bound."""
        cfg = self._cfg
        high = upper_bound(cfg.noise_low, cfg.noise_high, cfg.noise_hold, cfg.noise_end, progress)
        # the bounds must differ; at their closest the network has no say any more
        noise: Any = self.actor["noise"]
        noise.set_bounds(cfg.noise_low, max(high, cfg.noise_low * 1.001))


def noisy_learner(cfg: NoisyCfg, setup: Setup, method: str, reduce: Reduce) -> ChainLearner:
    """The learner of a method with learned noise.

    Args:
        cfg: settings.
        setup: see `Setup`.
        method: what to call it in errors.
        reduce: what the ratio is of.

    Raises:
        ConfigError: settings out of range, or what `ChainLearner` refuses.
    """
    if not 0 < cfg.noise_low < cfg.noise_high < math.inf:
        bounds = cfg.noise_low, cfg.noise_high
        raise out_of_range("algo.noise_low, algo.noise_high", bounds, "0 < noise_low < noise_high")
    for name, value in (("noise_hold", cfg.noise_hold), ("noise_end", cfg.noise_end)):
        if not 0 <= value <= 1:
            raise out_of_range(f"algo.{name}", value, "0 to 1")
    if not cfg.entropy_coef >= 0:
        raise out_of_range("algo.entropy_coef", cfg.entropy_coef, "0 or more")
    return ChainLearner(
        cfg, setup, method, lambda policy, make_critic: NoisyChainLoss(policy, make_critic, cfg, reduce)
    )
