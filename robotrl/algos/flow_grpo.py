"""Flow-GRPO: group-relative policy optimization of flow policies (Liu et al. 2025, 2505.05470).

The flow is sampled as a stochastic differential equation with the same marginals (`chain.flow_sde`). Each denoising
step of a decision is an action with a ratio of its own and the advantage of its episode within the group. Groups,
rewards and updates are those of `robotrl.algos.grpo`; there is no critic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from robotrl.algos.grpo import GrpoCfg, GrpoLearner
from robotrl.errors import check_number, check_positive
from robotrl.fn import chain
from robotrl.fn.random.noise import randn
from robotrl.learners.denoising import start_from
from robotrl.learners.denoising_sampling import chain_log_prob, warn_of_start_noise
from robotrl.learners.episodes import Likelihood, step_weights
from robotrl.learners.learner import Setup
from robotrl.rollout.collector import Decision
from robotrl.rollout.groups import Trajectories


@dataclass(frozen=True)
class FlowGrpoCfg(GrpoCfg):
    """Settings of Flow-GRPO, in addition to GRPO's. Clip ranges are for the mean log-density of a denoising step."""

    default_policy: ClassVar[str] = "flow-vla"
    clip_low: float = 0.01
    """Lower clip range: the ratio of a denoising step is clipped to at least 1 minus this."""
    clip_high: float = 0.01
    """Upper clip range: the ratio of a denoising step is clipped to at most 1 plus this."""
    scale: float = 0.5
    """Scale of the noise, sigma(t) = scale * sqrt((1 - t) / t). Flow-GRPO uses 0.7 for images, pi_RL 0.5 for robots."""
    start_noise: float = 1.0
    """Standard deviation of the initial noise of chains in training: 1 as published; a smaller value is closer to a
    policy deployed with less noise (`policy.deploy_noise`). The initial noise does not enter the ratio."""

    def build(self, setup: Setup) -> GrpoLearner:
        """Build the learner."""
        check_positive("algo.scale", self.scale)
        check_number("algo.start_noise", self.start_noise, 0.0, 1.0)
        warn_of_start_noise(setup.init_policy, self.start_noise)
        return GrpoLearner(self, setup, "Flow-GRPO", ChainActing(chain.flow_sde(self.scale), self.start_noise))


# acting


class ChainActing:
    """`EpisodeActing` of flow policies; each denoising step of a decision has a ratio of its own.

    Args:
        kernel: stochastic transition kernel of the steps.
        start_noise: standard deviation of the initial noise.
    """

    def __init__(self, kernel: chain.Kernel, start_noise: float) -> None:
        self._kernel, self._start_noise = kernel, start_noise

    def start(self, setup: Setup, method: str) -> Any:
        """See `EpisodeActing.start`."""
        return start_from(setup, method)

    def series(self, policy: Any) -> tuple[int, int]:
        """Random numbers of the initial noise and of each of the K steps; see `EpisodeActing.series`."""
        length, width = policy.noise_shape
        return length, (policy.denoising_steps + 1) * width

    def decide(
        self, policy: Any, obs: dict[str, Tensor], generator: torch.Generator, scores: Tensor | None
    ) -> Decision:
        """See `EpisodeActing.decide`; the record holds the chain's points (n, K+1, H, A)."""
        ctx = policy.encode({key: obs[key] for key in policy.observation_spec})
        count, (length, width) = policy.denoising_steps + 1, policy.noise_shape
        if scores is None:
            draws = randn((len(ctx), count, length, width), generator, ctx.device, ctx.dtype)
        else:
            draws = scores.to(ctx.dtype).unflatten(2, (count, width)).transpose(1, 2)
        points = chain.sample(policy, ctx, self._kernel, self._start_noise * draws[:, 0], draws=draws[:, 1:]).x
        # sims take float32, whatever the dtype of the networks
        return Decision(policy.to_actions(points[:, -1]).float(), {"chain": points})

    def record(self, found: Trajectories) -> dict[str, Tensor]:
        """See `EpisodeActing.record`."""
        return {"chain": found.record["chain"], "valid": found.valid}

    def likelihood(self, policy: Any, obs: dict[str, Tensor], rows: dict[str, Tensor]) -> Likelihood:
        """Mean log-densities of executed actions, per denoising step (D, K); see `EpisodeActing.likelihood`."""
        found = chain_log_prob(policy, policy.encode(obs), self._kernel, rows["chain"])
        done = rows["valid"][:, None, :, None].to(found.dtype)
        count = (done.sum(dim=(2, 3)) * found.shape[3]).clamp(min=1)
        return Likelihood((found * done).sum(dim=(2, 3)) / count)

    def weights(self, policy: Any, valid: Tensor, episode: Tensor, episodes: int) -> Tensor:
        """Weights (D, K) of a mean over episodes of the mean over their control steps; see `EpisodeActing.weights`."""
        count: int = policy.denoising_steps
        each = step_weights(valid, episode, episodes).sum(dim=1) / count
        return each[:, None].expand(-1, count)
