"""RL-100's online stage: PPO through the denoising chain, from the policy and the state value of its offline stage.

The surrogate and the steps of the chain (CPS, arXiv 2509.05952) are those of `robotrl.algos.rl100`; the advantage is
that of GAE with gamma^n for a chunk of n env steps, in place of the critics' (arXiv 2510.14830).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from robotrl.algos.flow_sde import policy_loss
from robotrl.errors import ConfigError, check_positive, out_of_range, unknown
from robotrl.fn import chain
from robotrl.learners.collection.older_policy import WEIGHT
from robotrl.learners.critics.stored import start_value_from
from robotrl.learners.denoising import ActorTerms, ChainCfg, ChainLearner, ChainLoss, MakeCritic
from robotrl.learners.denoising_sampling import chain_log_prob, draw_chain, step_log_prob
from robotrl.learners.learner import Setup
from robotrl.policies.networks.mlp import ACTIVATIONS, Activation
from robotrl.policies.networks.value import Critic
from robotrl.rollout.collector import Decision
from robotrl.spec import reads

# update


class Rl100OnlineLoss(ChainLoss):
    """`ChainLoss` of RL-100's online stage.

    Args:
        policy: the policy to fine-tune.
        make_critic: see `ChainLoss`.
        cfg: settings.
        resumed: True if the critic's weights follow.
    """

    def __init__(self, policy: Any, make_critic: MakeCritic, cfg: Rl100OnlineCfg, resumed: bool) -> None:
        def of_offline_stage(policy: Any, activation: Activation = cfg.critic_activation) -> Critic:
            return make_critic(policy, activation)

        super().__init__(policy, of_offline_stage, cfg)
        self._cfg = cfg
        self._kernel = chain.cps(cfg.noise, cfg.std_floor)
        if cfg.init_critic is not None and not resumed:
            start_value_from(cfg.init_critic, self.critic, policy, cfg)

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


# config


@dataclass(frozen=True)
class Rl100OnlineCfg(ChainCfg):
    """Settings of RL-100's online stage."""

    default_policy: ClassVar[str] = "flow"
    corrects_staleness: ClassVar[bool] = True
    env_steps: int = 40_000
    """Budget of env steps, summed over all envs; rounded up to whole iterations."""
    noise: float = 0.7
    """Share of fresh noise in a step of a chain, above 0, at most 1; see `chain.cps`."""
    std_floor: float = 0.05
    """Minimum standard deviation of a step, normalized units: the only noise of the last one."""
    init_critic: str | None = field(default=None, metadata=reads("critic", kept=True))
    """Run of `rl100` whose state value the critic begins as; it then needs little or no `critic_warmup_env_steps`.
    None: a new one."""
    critic_hidden: tuple[int, ...] = (128, 128, 128)
    """Widths of the critic's hidden layers."""
    critic_activation: Activation = "relu"
    """Activation of the critic."""

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        super().check()
        check_positive("algo.std_floor", self.std_floor)
        if not 0 < self.noise <= 1:
            raise out_of_range("algo.noise", self.noise, "above 0, at most 1")
        if self.critic_activation not in ACTIVATIONS:
            raise unknown("algo.critic_activation", str(self.critic_activation), ACTIVATIONS)
        if self.init_critic is not None and self.normalize_reward:
            raise ConfigError(
                "algo.normalize_reward is True with algo.init_critic: expected False, the state value of that run is of"
                " rewards as they are"
            )

    def build(self, setup: Setup) -> ChainLearner:
        """Build the learner."""
        self.check()
        return ChainLearner(
            self,
            setup,
            "RL-100",
            lambda policy, make_critic: Rl100OnlineLoss(policy, make_critic, self, setup.resumed),
        )
