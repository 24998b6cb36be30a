"""Flow-Noise: the joint density of a chain with learned noise, in the ratio of a whole chunk (pi_RL, arXiv 2510.25889).

The chain is ReinFlow's, and so is all of the code but the power of the density: 1 / (K+1), the mean over the denoising
steps of the sum over chunk and action. So the ratio is that of PPO on chunks, with PPO's clip range, where ReinFlow
divides by chunk and action as well and clips to a hundredth; and entropy has a bonus.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from robotrl.learners.denoising import ChainLearner
from robotrl.learners.learner import Setup
from robotrl.learners.noisy_chain import NoisyCfg, noisy_learner


@dataclass(frozen=True)
class FlowNoiseCfg(NoisyCfg):
    """Settings of Flow-Noise."""

    clip_coef: float = 0.2
    """Clip range of the ratio."""
    noise_high: float = 0.16
    """Largest."""
    entropy_coef: float = 0.005
    """Weight of the chain's mean entropy rate as a bonus."""

    def build(self, setup: Setup) -> ChainLearner:
        """The learner."""
        return noisy_learner(self, setup, "Flow-Noise", chunk_log_prob)


# losses


def chunk_log_prob(log_prob: Tensor) -> Tensor:
    """One number for each chain: (B, K, H, A) summed and divided by K+1.

    The K+1 counts the start of the chain, whose density is constant and cancels in the ratio.
    """
    return log_prob.flatten(1).sum(1) / (log_prob.shape[1] + 1)
