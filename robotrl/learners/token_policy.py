"""Token sampling and log-probabilities of autoregressive policies in training."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.text import tokens
from robotrl.learners.episodes import Likelihood, step_weights
from robotrl.learners.learner import Setup
from robotrl.rollout.collector import Decision
from robotrl.rollout.groups import Trajectories
from robotrl.spec import HasTokens


def start_from(setup: Setup, method: str) -> Any:
    """Return the policy to fine-tune.

    Raises:
        ConfigError: no policy is given.
        CapabilityError: it is not autoregressive over tokens.
    """
    if setup.init_policy is None:
        raise ConfigError(
            f"init_from is not given: {method} starts from a policy that says tokens; expected a run, e.g. of"
            " tabletop-bc-token"
        )
    if not isinstance(setup.init_policy, HasTokens):
        raise CapabilityError(
            f"policy {type(setup.init_policy).__name__} lacks HasTokens: {method} needs the probability of each token"
        )
    return setup.init_policy


class SampledTokens(NamedTuple):
    """Sampled action tokens of a policy, with their context."""

    ctx: Any
    """Context that the tokens were sampled from."""
    decision: Decision
    """Decision with the actions; its record holds their tokens (n, H, A)."""


def say(policy: Any, obs: dict[str, Tensor], generator: torch.Generator, at: Tensor | None = None) -> SampledTokens:
    """Sample chunks at the policy's temperature on observations (n, ...), or at given quantiles `at` (n, H, A)."""
    ctx = policy.encode({key: obs[key] for key in policy.observation_spec})
    tokens = policy.sample_tokens(ctx, generator, "sample", at)
    return SampledTokens(ctx, Decision(policy.to_actions(policy.from_tokens(tokens)), {"tokens": tokens}))


class TokenActing:
    """`EpisodeActing` of autoregressive policies; each token has a ratio of its own."""

    def start(self, setup: Setup, method: str) -> Any:
        """See `EpisodeActing.start`."""
        return start_from(setup, method)

    def series(self, policy: Any) -> tuple[int, int]:
        """See `EpisodeActing.series`."""
        return policy.horizon, policy.action_width

    def decide(
        self, policy: Any, obs: dict[str, Tensor], generator: torch.Generator, scores: Tensor | None
    ) -> Decision:
        """Sample chunks at the policy's temperature; `scores` (normal) give the quantiles of the sampled tokens."""
        return say(policy, obs, generator, None if scores is None else torch.special.ndtr(scores)).decision

    def record(self, found: Trajectories) -> dict[str, Tensor]:
        """See `EpisodeActing.record`."""
        return {"tokens": found.record["tokens"]}

    def likelihood(self, policy: Any, obs: dict[str, Tensor], rows: dict[str, Tensor]) -> Likelihood:
        """Log-probabilities of tokens (D, H, A); see `EpisodeActing.likelihood`."""
        action_tokens = rows["tokens"]
        logits = policy.token_logits(policy.encode(obs), action_tokens)
        with torch.no_grad():
            entropy = tokens.entropy(logits, policy.temperature).mean()
        return Likelihood(tokens.log_prob(logits, action_tokens, policy.temperature), entropy)

    def weights(self, policy: Any, valid: Tensor, episode: Tensor, episodes: int) -> Tensor:
        """Weights (D, H, A) of a mean over episodes of the mean over their tokens; see `EpisodeActing.weights`."""
        width: int = policy.action_width
        return (step_weights(valid, episode, episodes) / width)[..., None].expand(-1, -1, width)
