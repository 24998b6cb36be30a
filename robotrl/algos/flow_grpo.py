"""Flow-GRPO: group-relative policy optimisation of policies that flow (Liu et al. 2025, 2505.05470).

The flow is run as a stochastic equation of the same marginals (`chain.flow_sde`). Each denoising step of a decision is
an action of its own, whose ratio shares what its episode is worth relative to its group. Groups, rewards and updates
are those of `robotrl.algos.grpo`; there is no critic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robotrl.algos.grpo import GrpoCfg, GrpoLearner
from robotrl.errors import check_number, check_positive
from robotrl.fn import chain
from robotrl.fn.random.noise import randn
from robotrl.learners.denoising import start_from
from robotrl.learners.denoising_sampling import chain_log_prob
from robotrl.learners.episodes import Likelihood, step_weights
from robotrl.learners.learner import Setup
from robotrl.rollout.collector import Decision
from robotrl.rollout.groups import Trajectories


@dataclass(frozen=True)
class FlowGrpoCfg(GrpoCfg):
    """Settings of Flow-GRPO, beside those of GRPO. Clip ranges are for the mean log-density of a denoising step."""

    clip_low: float = 0.01
    """The ratio of a denoising step is clipped to 1 less this ..."""
    clip_high: float = 0.01
    """... and to 1 and this."""
    scale: float = 0.5
    """How much noise: sigma(t) = scale * sqrt((1 - t) / t). Flow-GRPO has 0.7 for pictures, pi_RL 0.5 for robots."""
    start_noise: float = 1.0
    """Deviation of the noise that chains begin with: 1 as published; less is nearer to a policy that is deployed with
    less (`policy.deploy_noise`). What chains begin with has no part in a ratio."""

    def build(self, setup: Setup) -> GrpoLearner:
        """The learner."""
        check_positive("algo.scale", self.scale)
        check_number("algo.start_noise", self.start_noise, 0.0, 1.0)
        return GrpoLearner(self, setup, "Flow-GRPO", ChainActing(chain.flow_sde(self.scale), self.start_noise))


# acting


class ChainActing:
    """See `Acting`; each denoising step of a decision has a ratio of its own.

    Args:
        kernel: law of the steps; stochastic.
        start_noise: deviation of the noise that chains begin with.
    """

    def __init__(self, kernel: chain.Kernel, start_noise: float) -> None:
        self._kernel, self._start_noise = kernel, start_noise

    def start(self, setup: Setup, method: str) -> Any:
        """See `Acting.start`."""
        return start_from(setup, method)

    def series(self, policy: Any) -> tuple[int, int]:
        """Draws of where a chain begins, and of each of its K steps; see `Acting.series`."""
        length, width = policy.noise_shape
        return length, (policy.denoising_steps + 1) * width

    def decide(
        self, policy: Any, obs: dict[str, Tensor], generator: torch.Generator, scores: Tensor | None
    ) -> Decision:
        """See `Acting.decide`; remembered are the chain's points (n, K+1, H, A)."""
        ctx = policy.encode({key: obs[key] for key in policy.observation_spec})
        count, (length, width) = policy.denoising_steps + 1, policy.noise_shape
        if scores is None:
            draws = randn((len(ctx), count, length, width), generator, ctx.device, ctx.dtype)
        else:
            draws = scores.to(ctx.dtype).unflatten(2, (count, width)).transpose(1, 2)
        points = chain.sample(policy, ctx, self._kernel, self._start_noise * draws[:, 0], draws=draws[:, 1:]).x
        # sims take float32, whatever the networks are of
        return Decision(policy.to_actions(points[:, -1]).float(), {"chain": points})

    def record(self, found: Trajectories) -> dict[str, Tensor]:
        """See `Acting.record`."""
        return {"chain": found.record["chain"], "valid": found.valid}

    def likelihood(self, policy: Any, obs: dict[str, Tensor], rows: dict[str, Tensor]) -> Likelihood:
        """Of denoising steps (D, K): the mean log-density of what was carried out; see `Acting.likelihood`."""
        found = chain_log_prob(policy, policy.encode(obs), self._kernel, rows["chain"])
        done = rows["valid"][:, None, :, None].to(found.dtype)
        count = (done.sum(dim=(2, 3)) * found.shape[3]).clamp(min=1)
        return Likelihood((found * done).sum(dim=(2, 3)) / count)

    def weights(self, policy: Any, valid: Tensor, episode: Tensor, episodes: int) -> Tensor:
        """(D, K), for the mean over episodes of the mean over their control steps; see `Acting.weights`."""
        count: int = policy.denoising_steps
        each = step_weights(valid, episode, episodes).sum(dim=1) / count
        return each[:, None].expand(-1, count)
