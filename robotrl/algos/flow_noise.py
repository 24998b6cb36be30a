"""Flow-Noise: PPO on the joint density of a flow's chain with learned noise (pi_RL, arXiv 2510.25889).

The chain and the code are ReinFlow's, except for the power of the density in the ratio: 1 / (K+1), the mean over the
denoising steps of the sum over chunk and action. So the ratio is that of PPO on chunks, with PPO's clip range, while
ReinFlow also divides by chunk and action and clips to a hundredth. There is an entropy bonus, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from robotrl.algos.reinflow import ReinFlowCfg, noisy_learner
from robotrl.learners.denoising import ChainLearner
from robotrl.learners.learner import Setup


@dataclass(frozen=True)
class FlowNoiseCfg(ReinFlowCfg):
    """Settings of Flow-Noise: those of ReinFlow, with other values."""

    default_policy: ClassVar[str] = "flow"
    clip_coef: float = 0.2
    """PPO clip range of the ratio."""
    noise_high: float = 0.16
    """Largest standard deviation of a denoising step, in normalized action units."""
    entropy_coef: float = 0.005
    """Weight of the entropy bonus: the chain's mean entropy rate."""

    def build(self, setup: Setup) -> ChainLearner:
        """Build the learner."""
        return noisy_learner(self, setup, "Flow-Noise", chunk_log_prob)


# losses


def chunk_log_prob(log_prob: Tensor) -> Tensor:
    """Log-density of each chain for the ratio: (B, K, H, A) summed and divided by K+1, (B,).

    The K+1 counts the initial noise, whose density is constant and cancels in the ratio.
    """
    return log_prob.flatten(1).sum(1) / (log_prob.shape[1] + 1)
