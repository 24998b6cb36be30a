"""ReinFlow: policy gradient through the chain of a flow policy, with learned bounded noise (arXiv 2505.22094).

While it learns, each Euler step of the flow gets Gaussian noise from a small network; the chain then has an exact
likelihood and PPO applies to it. The noise is off at deployment, where the plain ODE runs. As in the published code
the ratio is that of the joint chain density to the power 1 / ((K+1) H A), one for each decision. Two things differ: the
sampler and the likelihood share one time grid (theirs did not), and intermediate points are not clipped.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from robotrl.learners.denoising import ChainLearner
from robotrl.learners.learner import Setup
from robotrl.learners.noisy_chain import NoisyCfg, noisy_learner


@dataclass(frozen=True)
class ReinFlowCfg(NoisyCfg):
    """Settings of ReinFlow."""

    def build(self, setup: Setup) -> ChainLearner:
        """The learner."""
        return noisy_learner(self, setup, "ReinFlow", joint_log_prob)


# losses


def joint_log_prob(log_prob: Tensor) -> Tensor:
    """One number for each chain: (B, K, H, A) summed and divided by (K+1) H A.

    The K+1 counts the start of the chain, whose density is constant and cancels in the ratio.
    """
    steps, horizon, width = log_prob.shape[1:]
    return log_prob.flatten(1).sum(1) / ((steps + 1) * horizon * width)
