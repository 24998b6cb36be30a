"""Flow-SDE: the flow sampled as a stochastic differential equation, with one ratio per denoising step.

The steps are those of Flow-GRPO (arXiv 2505.05470), `chain.flow_sde`, with the same marginals as the flow. Each step is
an action with its decision's advantage: the two-layer decision process of pi_RL (arXiv 2510.25889). Nothing is learned
besides the flow: the noise depends on the time and one constant. At deployment, the plain ODE runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from robotrl.errors import check_positive
from robotrl.fn import chain
from robotrl.fn.loss import PolicyLoss, ppo_clip
from robotrl.learners.collection.older_policy import WEIGHT
from robotrl.learners.denoising import ActorTerms, ChainCfg, ChainLearner, ChainLoss, MakeCritic
from robotrl.learners.denoising_sampling import chain_log_prob, draw_chain, step_log_prob
from robotrl.learners.learner import Setup
from robotrl.rollout.collector import Decision


@dataclass(frozen=True)
class FlowSdeCfg(ChainCfg):
    """Settings of Flow-SDE."""

    default_policy: ClassVar[str] = "flow"
    corrects_staleness: ClassVar[bool] = True
    scale: float = 0.5
    """Scale of the noise, sigma(t) = scale * sqrt((1 - t) / t). Flow-GRPO uses 0.7 for images, pi_RL 0.5 for robots."""

    def build(self, setup: Setup) -> ChainLearner:
        """Build the learner."""
        check_positive("algo.scale", self.scale)
        kernel = chain.flow_sde(self.scale)
        return ChainLearner(
            self, setup, "Flow-SDE", lambda policy, make_critic: StepRatioLoss(policy, make_critic, self, kernel)
        )


# losses


def policy_loss(
    log_prob: Tensor, rows: dict[str, Tensor], clip_coef: float, weight: Tensor | float = 1.0
) -> PolicyLoss:
    """PPO's clipped surrogate, one ratio per decision and denoising step.

    Args:
        log_prob: (M, K) from `step_log_prob`, under the policy in training.
        rows: "log_prob" (M, K) and "advantage" (M,).
        clip_coef: clip range.
        weight: (M, K) of each ratio, for decisions of an older policy; see `robotrl.learners.collection.older_policy`.
    """
    return ppo_clip(log_prob, rows["log_prob"], rows["advantage"][:, None] * weight, clip_coef)


# update


class StepRatioLoss(ChainLoss):
    """`ChainLoss` with a ratio for each denoising step, of Flow-SDE and of RL-100's online stage.

    Args:
        policy: the policy to fine-tune.
        make_critic: see `ChainLoss`.
        cfg: settings.
        kernel: transition kernel of the noisy steps.
    """

    def __init__(self, policy: Any, make_critic: MakeCritic, cfg: ChainCfg, kernel: chain.Kernel) -> None:
        super().__init__(policy, make_critic, cfg)
        self._cfg, self._kernel = cfg, kernel

    def decide(self, obs: dict[str, Tensor], generator: torch.Generator) -> Decision:
        """See `ChainLoss.decide`."""
        drawn = draw_chain(self.policy, self._kernel, obs, generator, start_noise=self._cfg.start_noise).chain
        record = {"chain": drawn.x, "log_prob": step_log_prob(drawn.log_prob)}
        return Decision(self.policy.to_actions(drawn.x[:, -1]), record)

    def log_prob(self, rows: dict[str, Tensor], ctx: Tensor) -> Tensor:
        """See `ChainLoss.log_prob`: one for each denoising step, (M, K)."""
        return step_log_prob(chain_log_prob(self.policy, ctx, self._kernel, rows["chain"]))

    def terms(self, rows: dict[str, Tensor], obs: dict[str, Tensor], ctx: Tensor) -> ActorTerms:
        """See `ChainLoss.terms`."""
        return ActorTerms(policy_loss(self.log_prob(rows, ctx), rows, self._cfg.clip_coef, rows[WEIGHT]))
