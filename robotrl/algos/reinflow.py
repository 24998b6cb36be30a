"""ReinFlow: policy gradient through the chain of a flow policy, with learned bounded noise (arXiv 2505.22094).

In training, each Euler step of the flow gets Gaussian noise from a small network, so that the chain has an exact
likelihood for PPO. At deployment, the noise is off and the plain ODE runs. As in the published code, the ratio is that
of the joint chain density to the power 1 / ((K+1) H A), one per decision. Two things differ from it: the sampler and
the likelihood share one time grid (theirs did not), and intermediate points are not clipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from robotrl.engine.engine import EngineMode
from robotrl.errors import out_of_range
from robotrl.fn import chain
from robotrl.fn.loss import PolicyLoss, ppo_clip
from robotrl.learners.collection.older_policy import WEIGHT
from robotrl.learners.denoising import ActorTerms, ChainCfg, ChainLearner, ChainLoss, MakeCritic
from robotrl.learners.denoising_sampling import chain_log_prob, draw_chain
from robotrl.learners.learner import Setup
from robotrl.policies.networks.noise import NoiseNet
from robotrl.rollout.collector import Decision

Reduce = Callable[[Tensor], Tensor]
"""Function from log-densities (B, K, H, A) of a chain's steps to one number (B,) per chain."""


@dataclass(frozen=True)
class ReinFlowCfg(ChainCfg):
    """Settings of ReinFlow, all of them."""

    default_policy: ClassVar[str] = "flow"
    corrects_staleness: ClassVar[bool] = True
    env_steps: int = 800_000
    """Budget of env steps, summed over all envs; rounded up to whole iterations."""
    num_steps: int = 80
    """Env steps per env in a rollout."""
    epochs: int = 5
    """Passes over a rollout's decisions."""
    minibatch: int = 480
    """Decisions per gradient step; each includes all its denoising steps."""
    microbatch: int | None = None
    """Decisions per forward and backward pass, to save memory; must divide the minibatch. None: the whole minibatch."""
    lr: float = 3e-4
    """Learning rate of the policy, and of its exploration noise network if it has one."""
    critic_lr: float = 1e-3
    """Learning rate of the critic."""
    lr_end: float = 1.0
    """Final learning rates as a fraction of the initial ones, 0 to 1; they decay linearly. 1: constant."""
    muon: float = 0.0
    """Train the actor's hidden weight matrices with Muon, at this multiple of the learning rate; see docs/engine.md. 0:
    Adam for all parameters."""
    start_noise: float = 1.0
    """Standard deviation of the initial noise of chains in training: 1 as published; a smaller value is closer to a
    policy deployed with less noise (`policy.deploy_noise`). The initial noise does not enter the ratio."""
    gamma: float = 0.99
    """Discount per env step."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation (GAE), per decision."""
    clip_coef: float = 0.01
    """PPO clip range of the ratio."""
    target_kl: float | None = None
    """Stop the actor's updates of an iteration once the approximate KL of a minibatch exceeds this. None: no limit."""
    critic_warmup_env_steps: int = 10_240
    """Env steps at the start of the budget, summed over all envs, whose iterations train the critic only."""
    max_grad_norm: float = 1.0
    """Maximum gradient norm, for actor and critic separately."""
    ema: float = 0.0
    """Decay per gradient step of the averaged (EMA) weights that are evaluated. 0: no averaging."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Widths of the critic's hidden layers."""
    bf16: bool = False
    """Networks compute in bfloat16; densities, losses and parameters stay in float32; see docs/engine.md."""
    engine: EngineMode = "auto"
    """"compiled" needs a C++ compiler and compiles once for 10 to 60 s; "eager" runs the same function uncompiled;
    "auto" times the first updates and compiles if that saves time in this run."""
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

    def build(self, setup: Setup) -> ChainLearner:
        """Build the learner."""
        return noisy_learner(self, setup, "ReinFlow", joint_log_prob)


# losses


def joint_log_prob(log_prob: Tensor) -> Tensor:
    """Log-density of each chain for the ratio: (B, K, H, A) summed and divided by (K+1) H A, (B,).

    The K+1 counts the initial noise, whose density is constant and cancels in the ratio.
    """
    steps, horizon, width = log_prob.shape[1:]
    return log_prob.flatten(1).sum(1) / ((steps + 1) * horizon * width)


def policy_loss(
    log_prob: Tensor, rows: dict[str, Tensor], clip_coef: float, weight: Tensor | float = 1.0
) -> PolicyLoss:
    """PPO's clipped surrogate on the joint density of whole chains, one ratio per chain.

    Args:
        log_prob: (M,) of whole chains, see `joint_log_prob`, under the policy in training.
        rows: "log_prob" (M,) and "advantage" (M,).
        clip_coef: clip range.
        weight: (M,) of each ratio, for decisions of an older policy; see `robotrl.learners.collection.older_policy`.
    """
    return ppo_clip(log_prob, rows["log_prob"], rows["advantage"] * weight, clip_coef)


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


class ReinFlowLoss(ChainLoss):
    """Loss of a flow whose steps have learned noise, from the network `actor["noise"]`.

    Args:
        policy: the policy to fine-tune.
        make_critic: see `ChainLoss`.
        cfg: settings.
        reduce: function from the steps' log-densities to the one of the ratio.
    """

    def __init__(self, policy: Any, make_critic: MakeCritic, cfg: ReinFlowCfg, reduce: Reduce) -> None:
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

    def log_prob(self, rows: dict[str, Tensor], ctx: Tensor) -> Tensor:
        """See `ChainLoss.log_prob`: one for each chain, (M,)."""
        return self._reduce(chain_log_prob(self.policy, ctx, chain.noise_net(self.std), rows["chain"]))

    def terms(self, rows: dict[str, Tensor], obs: dict[str, Tensor], ctx: Tensor) -> ActorTerms:
        """See `ChainLoss.terms`."""
        cfg = self._cfg
        out = policy_loss(self.log_prob(rows, ctx), rows, cfg.clip_coef, rows[WEIGHT])
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


def noisy_learner(cfg: ReinFlowCfg, setup: Setup, method: str, reduce: Reduce) -> ChainLearner:
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
    return ChainLearner(cfg, setup, method, lambda policy, make_critic: ReinFlowLoss(policy, make_critic, cfg, reduce))
