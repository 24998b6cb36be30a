"""Straightforward eager torch implementations of the updates of ReinFlow and DPPO, as baselines.

They use the same networks, losses, minibatches and optimizer settings, so that an iteration ends at the same weights
(checked by a test). They follow the published code: ReinFlow evaluates one denoising step after another and adds up
log-probabilities; DPPO's rows are pairs of a decision and a denoising step, so its critic evaluates a decision once for
each of its steps; both use `torch.distributions`, `torch.optim.Adam` and torch's own gradient clipping.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from robotrl.algos.dppo import CLIP_GROWTH, LOG_PROB_RANGE, DppoCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.learners.on_policy import OnPolicyBatch


class Baseline:
    """Shared parts of both updates.

    Args:
        actor: networks with the "policy" and its exploration.
        critic: critic on the policy's contexts.
        lr: learning rate of the actor.
        critic_lr: learning rate of the critic.
        max_grad_norm: gradient norm limit of each.
    """

    def __init__(self, actor: nn.ModuleDict, critic: Any, lr: float, critic_lr: float, max_grad_norm: float) -> None:
        self.actor, self.critic = actor, critic
        self.policy: Any = actor["policy"]
        self._grad_norm = max_grad_norm
        self._actor_optimizer = torch.optim.Adam(actor.parameters(), lr=lr)
        self._critic_optimizer = torch.optim.Adam(critic.parameters(), lr=critic_lr)

    def step(self, policy_loss: Tensor, value_loss: Tensor) -> None:
        """One gradient step of actor and critic."""
        for optimizer, loss, module in (
            (self._actor_optimizer, policy_loss, self.actor),
            (self._critic_optimizer, value_loss, self.critic),
        ):
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), self._grad_norm)
            optimizer.step()


class ReinFlowBaseline(Baseline):
    """ReinFlow's iteration; see the module docstring."""

    def __init__(self, actor: nn.ModuleDict, critic: Any, cfg: ReinFlowCfg) -> None:
        super().__init__(actor, critic, cfg.lr, cfg.critic_lr, cfg.max_grad_norm)
        self._cfg = cfg

    def update(self, batch: OnPolicyBatch, order: Tensor) -> float:
        """One gradient step for each minibatch of the order; returns the mean approximate KL."""
        cfg, policy = self._cfg, self.policy
        kls: list[float] = []
        for rows in order.view(-1, cfg.minibatch):
            ctx = policy.encode({key: x[rows] for key, x in batch.obs.items()})
            points, steps = batch.record["chain"][rows], policy.denoising_steps
            log_prob = torch.zeros(len(rows))
            for k in range(steps):
                t = torch.full((len(rows),), policy.times[k])
                dt = torch.full((len(rows),), policy.times[k + 1] - policy.times[k])
                mean = points[:, k] + policy.velocity(ctx, points[:, k], t, dt) * dt[:, None, None]
                law = Normal(mean, self.actor["noise"](ctx, t))
                log_prob = log_prob + law.log_prob(points[:, k + 1]).sum(dim=(1, 2))
            log_prob = log_prob / ((steps + 1) * math.prod(points.shape[2:]))
            log_ratio = log_prob - batch.record["log_prob"][rows]
            ratio, advantage = log_ratio.exp(), batch.advantage[rows]
            clipped = ratio.clamp(1 - cfg.clip_coef, 1 + cfg.clip_coef)
            policy_loss = torch.max(-advantage * ratio, -advantage * clipped).mean()
            value_loss = 0.5 * ((self.critic(ctx.detach()) - batch.value_target[rows]) ** 2).mean()
            self.step(policy_loss, value_loss)
            kls.append(((ratio - 1) - log_ratio).mean().item())
        return sum(kls) / len(kls)


class DppoBaseline(Baseline):
    """DPPO's iteration with DDPM steps; see the module docstring."""

    def __init__(self, actor: nn.ModuleDict, critic: Any, cfg: DppoCfg) -> None:
        super().__init__(actor, critic, cfg.lr, cfg.critic_lr, cfg.max_grad_norm)
        self._cfg = cfg
        steps = self.policy.denoising_steps if cfg.tuned_steps is None else cfg.tuned_steps
        self._steps, self._skipped = steps, self.policy.denoising_steps - steps

    def update(self, batch: OnPolicyBatch, order: Tensor) -> float:
        """One gradient step for each minibatch of the order; returns the mean approximate KL."""
        cfg, policy = self._cfg, self.policy
        times = torch.tensor(policy.times)
        kls: list[float] = []
        for rows in order.view(-1, cfg.minibatch):
            # one row for each fine-tuned denoising step of each decision
            decision = rows.repeat_interleave(self._steps)
            k = torch.arange(self._steps).repeat(len(rows))
            obs = {key: x[decision] for key, x in batch.obs.items()}
            x, following = batch.record["chain"][decision, k], batch.record["chain"][decision, k + 1]
            ctx = policy.encode(obs)
            law = self._law(ctx, x, times[k + self._skipped], times[k + self._skipped + 1])
            log_prob = law.log_prob(following).clamp(*LOG_PROB_RANGE).mean(dim=(1, 2))
            log_ratio = log_prob - batch.record["log_prob"][decision, k]
            ratio = log_ratio.exp()
            advantage = batch.advantage[decision] * cfg.denoising_gamma ** (self._steps - 1 - k)
            part = k / max(1, self._steps - 1)
            clip = cfg.clip_first + (cfg.clip_coef - cfg.clip_first) * torch.expm1(CLIP_GROWTH * part) / math.expm1(
                CLIP_GROWTH
            )
            clipped = torch.clamp(ratio, 1 - clip, 1 + clip)
            policy_loss = torch.max(-advantage * ratio, -advantage * clipped).mean()
            value_loss = 0.5 * ((self.critic(ctx.detach()) - batch.value_target[decision]) ** 2).mean()
            self.step(policy_loss, value_loss)
            kls.append(((ratio - 1) - log_ratio).mean().item())
        return sum(kls) / len(kls)

    def _law(self, ctx: Tensor, x: Tensor, t: Tensor, after: Tensor) -> Normal:
        """Distribution of the DDPM step from t to `after`, for the straight paths of `robotrl.fn.chain`."""
        velocity = self.policy.velocity(ctx, x, t, after - t)
        t, after = t[:, None, None], after[:, None, None]
        action, noise = x + (1 - t) * velocity, x - t * velocity
        std = self._cfg.eta * (1 - after) * torch.sqrt(1 - (t * (1 - after) / (after * (1 - t))) ** 2)
        mean = after * action + torch.sqrt((1 - after) ** 2 - std**2) * noise
        return Normal(mean, std.clamp(min=self._cfg.likelihood_std))
