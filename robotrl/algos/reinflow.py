"""ReinFlow: policy gradient through the chain of a flow policy, with learned bounded noise (arXiv 2505.22094).

In training, each Euler step of the flow gets Gaussian noise from a small network, so that the chain has an exact
likelihood for PPO. At deployment, the noise is off and the plain ODE runs. As in the published code, the ratio is that
of the joint chain density to the power 1 / ((K+1) H A), one per decision. Two things differ from it: the sampler and
the likelihood share one time grid (theirs did not), and intermediate points are not clipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from robotrl.learners.denoising import ChainLearner
from robotrl.learners.learner import Setup
from robotrl.learners.noisy_chain import NoisyCfg, noisy_learner


@dataclass(frozen=True)
class ReinFlowCfg(NoisyCfg):
    """Settings of ReinFlow."""

    default_policy: ClassVar[str] = "flow"

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
