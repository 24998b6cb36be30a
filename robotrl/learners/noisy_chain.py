"""Denoising chains with learned noise and one ratio per chain: shared base of ReinFlow and Flow-Noise.

In training, each Euler step gets Gaussian noise from a small network with bounded standard deviations, so that the
chain has an exact joint density. At deployment, the network is removed and the plain ODE runs.
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
"""Function from log-densities (B, K, H, A) of a chain's steps to one number (B,) per chain."""


@dataclass(frozen=True)
class NoisyCfg(ChainCfg):
    """Settings shared by methods with learned noise."""

    noise_low: float = 0.08
    """Smallest standard deviation of a denoising step, in normalized action units."""
    noise_high: float = 0.20
    """Largest standard deviation of a denoising step, in normalized action units."""
    noise_hold: float = 0.35
    """Fraction of the budget for which the largest standard deviation stays constant."""
    noise_end: float = 1.0
    """Largest standard deviation at the end of the budget, after a half-cosine decay: 0 is `noise_low`, 1 is
    `noise_high` (no decay). ReinFlow's published schedule has 0.7."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus: the chain's mean entropy rate."""


# losses


def policy_loss(
    policy: HasChain,
    kernel: chain.Kernel,
    reduce: Callable[[Tensor], Tensor],
    ctx: Tensor,
    rows: dict[str, Tensor],
    clip_coef: float,
) -> PolicyLoss:
    """PPO's clipped surrogate on the joint density of whole chains, one ratio per chain.

    Args:
        policy: the flow policy.
        kernel: transition kernel of its noisy steps.
        reduce: function from log-densities (M, K, H, A) to one number (M,) per chain.
        ctx: (M, D) the policy's contexts.
        rows: "chain" (M, K+1, H, A), "log_prob" (M,) and "advantage" (M,).
        clip_coef: clip range.
    """
    log_prob = chain_log_prob(policy, ctx, kernel, rows["chain"])
    return ppo_clip(reduce(log_prob), rows["log_prob"], rows["advantage"], clip_coef)


def upper_bound(low: float, high: float, hold: float, end: float, progress: float) -> float:
    """Largest std at a fraction of the budget: constant at first, then a half cosine to low + end (high - low)."""
    past = 0.0 if hold >= 1 else max(0.0, (progress - hold) / (1 - hold))
    last = low + end * (high - low)
    return last + (high - last) * 0.5 * (1 + math.cos(math.pi * min(1.0, past)))


def entropy_rate(std_of: Callable[[Tensor, Tensor], Tensor], ctx: Tensor, times: tuple[float, ...]) -> Tensor:
    """Mean entropy per element of the chain's Gaussian steps.

    Args:
        std_of: function from (ctx, t) to standard deviations, see `chain.noise_net`.
        ctx: (B, D) the policy's contexts.
        times: K+1 times of the policy's chain.
    """
    t = torch.tensor(times[:-1], dtype=ctx.dtype, device=ctx.device)
    std = std_of(ctx.repeat_interleave(len(t), 0), t.repeat(len(ctx)))
    return (std.log() + 0.5 * math.log(2 * math.pi * math.e)).mean()


# update


class NoisyChainLoss(ChainLoss):
    """`ChainLoss` with a noise network, `actor["noise"]`.

    Args:
        policy: the policy to fine-tune.
        make_critic: see `ChainLoss`.
        cfg: settings.
        reduce: function from the steps' log-densities to the one of the ratio.
    """

    def __init__(self, policy: Any, make_critic: MakeCritic, cfg: NoisyCfg, reduce: Reduce) -> None:
        super().__init__(policy, make_critic, cfg)
        horizon, action = policy.noise_shape
        self.actor["noise"] = NoiseNet(policy.context_width, horizon, action, cfg.noise_low, cfg.noise_high)
        self._cfg, self._reduce = cfg, reduce

    def std(self, ctx: Tensor, t: Tensor) -> Tensor:
        """Return (B, H, A) standard deviations of the noise; no gradients flow to the encoder."""
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
        """See `ChainLoss.schedule`: sets the upper bound of the noise."""
        cfg = self._cfg
        high = upper_bound(cfg.noise_low, cfg.noise_high, cfg.noise_hold, cfg.noise_end, progress)
        # the bounds must differ; when they are this close, the network's output hardly matters
        noise: Any = self.actor["noise"]
        noise.set_bounds(cfg.noise_low, max(high, cfg.noise_low * 1.001))


def noisy_learner(cfg: NoisyCfg, setup: Setup, method: str, reduce: Reduce) -> ChainLearner:
    """Build the learner of a method with learned noise.

    Args:
        cfg: settings.
        setup: see `Setup`.
        method: name of the method in errors.
        reduce: function from the steps' log-densities to the one of the ratio.

    Raises:
        ConfigError: settings out of range; see also `ChainLearner`.
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
