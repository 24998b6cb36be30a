"""DPPO: PPO over the denoising steps of a diffusion policy (Ren et al. 2024, arXiv 2409.00588).

A frozen copy of the pretrained policy runs the first K - K' steps, a trainable one the last K'. Each of the last K'
steps is an action of a Gaussian policy, with a ratio of its own. Two lower bounds keep its standard deviation up: one
for exploration, one for the numerics of the likelihood. As in all kernels, the steps are functions of a velocity, so
that flow policies can be trained as well.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from robotrl.errors import ConfigError, check_positive, out_of_range
from robotrl.fn import chain
from robotrl.fn.loss import PolicyLoss, ppo_clip
from robotrl.learners.collection.older_policy import WEIGHT
from robotrl.learners.denoising import ActorTerms, ChainCfg, ChainLearner, ChainLoss, MakeCritic
from robotrl.learners.denoising_sampling import chain_log_prob, draw_chain, initial_noise, warn_of_step_noise
from robotrl.learners.learner import Setup
from robotrl.learners.on_policy import OnPolicyBatch
from robotrl.policies.staged import StagedPolicy
from robotrl.rollout.collector import Decision

LOG_PROB_RANGE = (-5.0, 2.0)
"""Clip range of log-densities, per element."""
CLIP_GROWTH = 3.0
"""Rate of the exponential growth of the clip range over the denoising steps."""


@dataclass(frozen=True)
class DppoCfg(ChainCfg):
    """Settings of DPPO."""

    default_policy: ClassVar[str] = "diffusion"
    corrects_staleness: ClassVar[bool] = True
    lr: float = 1e-4
    """Learning rate of the policy."""
    tuned_steps: int | None = None
    """K', the number of last denoising steps to fine-tune; a frozen copy runs the ones before. None: all K."""
    eta: float = 1.0
    """Noise of the steps: 1 is DDPM, 0 is DDIM with only the minimum noise."""
    sample_std: float = 0.1
    """Minimum standard deviation of a step when acting, in normalized action units, for exploration."""
    likelihood_std: float = 0.1
    """Minimum standard deviation of a step in the likelihood, for numerics."""
    noise_bound: float = 3.0
    """Clip range of a step's noise, in standard deviations."""
    denoising_gamma: float = 0.99
    """Discount of the advantage over denoising steps: gamma^n at n steps before the last one, so that early, noisy
    steps weigh less."""
    clip_coef: float = 0.01
    """PPO clip range of the ratio at the last denoising step."""
    clip_first: float = 0.001
    """PPO clip range at the noisiest fine-tuned step; it grows exponentially in between."""
    target_kl: float | None = 1.0
    """Stop the actor's updates of an iteration once the approximate KL of a minibatch exceeds this. None: no limit."""
    bc_coef: float = 0.0
    """Weight of a behavior-cloning loss: the negative log-density of chains sampled from the frozen copy."""
    normalize_reward: bool = True
    """Divide rewards by the running standard deviation of the discounted return."""

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        super().check()
        _check(self)

    def build(self, setup: Setup) -> ChainLearner:
        """Build the learner."""
        _check(self)
        warn_of_step_noise(setup.init_policy, self.eta)
        return ChainLearner(self, setup, "DPPO", lambda policy, make_critic: DppoLoss(policy, make_critic, self))


# losses


def bounded_log_prob(log_prob: Tensor) -> Tensor:
    """Clip log-densities (B, K', H, A) to `LOG_PROB_RANGE`, and average over chunk and action: (B, K')."""
    return log_prob.clamp(*LOG_PROB_RANGE).flatten(2).mean(2)


def step_weights(gamma: float, steps: int) -> list[float]:
    """Weights of the advantage at each step, noisiest first; 1 at the last."""
    return [gamma ** (steps - 1 - k) for k in range(steps)]


def clip_ranges(first: float, last: float, steps: int) -> list[float]:
    """Clip range of each step, noisiest first, growing exponentially; `last` if there is one step."""
    if steps == 1:
        return [last]
    grown = [math.expm1(CLIP_GROWTH * k / (steps - 1)) / math.expm1(CLIP_GROWTH) for k in range(steps)]
    return [first + (last - first) * part for part in grown]


def policy_loss(log_prob: Tensor, rows: dict[str, Tensor], cfg: DppoCfg, weight: Tensor | float = 1.0) -> PolicyLoss:
    """PPO's clipped surrogate, one ratio per decision and fine-tuned step.

    Args:
        log_prob: (M, K') from `bounded_log_prob`, under the policy in training.
        rows: "log_prob" (M, K') and "advantage" (M,).
        cfg: settings.
        weight: (M, K') of each ratio, for decisions of an older policy; see `robotrl.learners.collection.older_policy`.
    """
    steps = log_prob.shape[1]
    weights = _like(log_prob, step_weights(cfg.denoising_gamma, steps))
    clips = _like(log_prob, clip_ranges(cfg.clip_first, cfg.clip_coef, steps))
    return ppo_clip(log_prob, rows["log_prob"], rows["advantage"][:, None] * weights * weight, clips)


# update


class DppoLoss(ChainLoss):
    """`ChainLoss` of DPPO; `frozen` is the frozen copy of the policy.

    A `StagedPolicy` of an earlier run or its checkpoint is split into its two parts again.

    Raises:
        ConfigError: more steps to tune than the policy has, or others than an earlier run tuned.
    """

    def __init__(self, policy: Any, make_critic: MakeCritic, cfg: DppoCfg) -> None:
        count = policy.denoising_steps
        tuned = count if cfg.tuned_steps is None else cfg.tuned_steps
        if not 1 <= tuned <= count:
            raise out_of_range("algo.tuned_steps", tuned, f"1 to {count}, the policy's denoising_steps")
        first = policy
        if isinstance(policy, StagedPolicy):
            if count - tuned != policy.switch:
                raise ConfigError(
                    f"algo.tuned_steps is {tuned}: expected {count - policy.switch},"
                    " as in the run that the policy comes from"
                )
            first, policy = policy.early, policy.late
        super().__init__(policy, make_critic, cfg)
        self.frozen = copy.deepcopy(first).requires_grad_(False)
        self._cfg = cfg
        self._steps = range(count - tuned, count)
        self._acting = chain.ddim(cfg.eta, cfg.sample_std)
        self._judging = chain.ddim(cfg.eta, cfg.likelihood_std)

    @property
    def learned_steps(self) -> int:
        """K', the number of fine-tuned steps."""
        return len(self._steps)

    def deployed(self, policy: Any) -> Any:
        """See `ChainLoss.deployed`."""
        return StagedPolicy(self.frozen, policy, self._steps.start) if self._steps.start else policy

    def decide(self, obs: dict[str, Tensor], generator: torch.Generator) -> Decision:
        """See `ChainLoss.decide`."""
        bound = self._cfg.noise_bound
        sampled = draw_chain(
            self.policy,
            self._acting,
            obs,
            generator,
            steps=self._steps,
            start_noise=self._cfg.start_noise,
            before=lambda noise: self._first_steps(obs, noise, generator),
            noise_bound=bound,
        )
        points, log_prob = sampled.chain
        if self._cfg.likelihood_std != self._cfg.sample_std:
            log_prob = chain_log_prob(self.policy, sampled.ctx, self._judging, points, self._steps)
        record = {"chain": points, "log_prob": bounded_log_prob(log_prob)}
        return Decision(self.policy.to_actions(points[:, -1]), record)

    def log_prob(self, rows: dict[str, Tensor], ctx: Tensor) -> Tensor:
        """See `ChainLoss.log_prob`: one for each fine-tuned step, (M, K')."""
        return bounded_log_prob(chain_log_prob(self.policy, ctx, self._judging, rows["chain"], self._steps))

    def terms(self, rows: dict[str, Tensor], obs: dict[str, Tensor], ctx: Tensor) -> ActorTerms:
        """See `ChainLoss.terms`."""
        out = policy_loss(self.log_prob(rows, ctx), rows, self._cfg, rows[WEIGHT])
        if not self._cfg.bc_coef:
            return ActorTerms(out)
        shown = chain_log_prob(self.policy, ctx, self._judging, rows["frozen_chain"], self._steps)
        bc_loss = -bounded_log_prob(shown).mean()
        return ActorTerms(out, self._cfg.bc_coef * bc_loss, {"bc_loss": bc_loss})

    @torch.no_grad()
    def draw(self, batch: OnPolicyBatch, generator: torch.Generator) -> dict[str, Tensor]:
        """See `ChainLoss.draw`: chains sampled from the frozen copy, for the cloning loss."""
        if not self._cfg.bc_coef:
            return {}
        ctx = self.frozen.encode(batch.obs)
        noise = initial_noise(self.frozen, ctx, generator, self._cfg.start_noise)
        start = self._first_steps(batch.obs, noise, generator)
        kernel, bound = self._acting, self._cfg.noise_bound
        return {"frozen_chain": chain.sample(self.frozen, ctx, kernel, start, generator, self._steps, bound).x}

    def _first_steps(self, obs: dict[str, Tensor], noise: Tensor, generator: torch.Generator) -> Tensor:
        """Run the frozen copy's denoising steps from the initial noise; returns the point that they end at."""
        if not self._steps.start:
            return noise
        ctx, steps = self.frozen.encode(obs), range(self._steps.start)
        return chain.sample(self.frozen, ctx, self._acting, noise, generator, steps, self._cfg.noise_bound).x[:, -1]


def _like(x: Tensor, numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=x.dtype, device=x.device)


def _check(cfg: DppoCfg) -> None:
    if not 0 <= cfg.eta <= 1:
        raise out_of_range("algo.eta", cfg.eta, "0 (DDIM) to 1 (DDPM)")
    positive = ("sample_std", "likelihood_std", "noise_bound", "clip_first")
    for name, value in ((name, getattr(cfg, name)) for name in positive):
        check_positive(f"algo.{name}", value)
    if cfg.clip_first > cfg.clip_coef:
        raise out_of_range("algo.clip_first", cfg.clip_first, f"at most algo.clip_coef, {cfg.clip_coef}")
    if not 0 < cfg.denoising_gamma <= 1:
        raise out_of_range("algo.denoising_gamma", cfg.denoising_gamma, "above 0, at most 1")
    if not cfg.bc_coef >= 0:
        raise out_of_range("algo.bc_coef", cfg.bc_coef, "0 or more")
