"""RL-100's online stage: PPO through the denoising chain, from the policy and the state value of its offline stage.

The surrogate and the steps of the chain (CPS, arXiv 2509.05952) are those of `robotrl.algos.rl100`; the advantage is
that of GAE with gamma^n for a chunk of n env steps, in place of the critics' (arXiv 2510.14830).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from robotrl.algos.flow_sde import StepRatioLoss
from robotrl.errors import ConfigError, check_positive, out_of_range, unknown
from robotrl.fn import chain
from robotrl.learners.critics.stored import start_value_from
from robotrl.learners.denoising import ChainCfg, ChainLearner, MakeCritic
from robotrl.learners.learner import Setup
from robotrl.policies.networks.mlp import ACTIVATIONS, Activation
from robotrl.policies.networks.value import Critic
from robotrl.spec import reads

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
        return ChainLearner(self, setup, "RL-100", partial(self._loss, setup.resumed))

    def _loss(self, resumed: bool, policy: Any, make_critic: MakeCritic) -> StepRatioLoss:
        """The loss; its critic begins as the offline stage's state value, unless a resumed run's weights follow."""

        def of_offline_stage(policy: Any, activation: Activation = self.critic_activation) -> Critic:
            return make_critic(policy, activation)

        loss = StepRatioLoss(policy, of_offline_stage, self, chain.cps(self.noise, self.std_floor))
        if self.init_critic is not None and not resumed:
            start_value_from(self.init_critic, loss.critic, policy, self)
        return loss
