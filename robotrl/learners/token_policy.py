"""How policies that say tokens act while they learn, and how likely what they said was."""

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
    """The policy that is fine-tuned.

    Raises:
        ConfigError: there is none.
        CapabilityError: it says no tokens.
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
    """What a policy said."""

    ctx: Any
    """What came before it."""
    decision: Decision
    """Its actions; remembered are their tokens (n, H, A)."""


def say(policy: Any, obs: dict[str, Tensor], generator: torch.Generator, at: Tensor | None = None) -> SampledTokens:
    """Chunks drawn at a policy's temperature, on observations (n, ...), or said from where `at` (n, H, A) has them."""
    ctx = policy.encode({key: obs[key] for key in policy.observation_spec})
    tokens = policy.sample_tokens(ctx, generator, "sample", at)
    return SampledTokens(ctx, Decision(policy.to_actions(policy.from_tokens(tokens)), {"tokens": tokens}))


class TokenActing:
    """See `Acting`; each token has a ratio of its own."""

    def start(self, setup: Setup, method: str) -> Any:
        """See `Acting.start`."""
        return start_from(setup, method)

    def series(self, policy: Any) -> tuple[int, int]:
        """See `Acting.series`."""
        return policy.horizon, policy.action_width

    def decide(
        self, policy: Any, obs: dict[str, Tensor], generator: torch.Generator, scores: Tensor | None
    ) -> Decision:
        """Chunks drawn at the policy's temperature; scores are the places in their distributions that tokens have."""
        return say(policy, obs, generator, None if scores is None else torch.special.ndtr(scores)).decision

    def record(self, found: Trajectories) -> dict[str, Tensor]:
        """See `Acting.record`."""
        return {"tokens": found.record["tokens"]}

    def likelihood(self, policy: Any, obs: dict[str, Tensor], rows: dict[str, Tensor]) -> Likelihood:
        """Of tokens (D, H, A); see `Acting.likelihood`."""
        said = rows["tokens"]
        logits = policy.token_logits(policy.encode(obs), said)
        with torch.no_grad():
            entropy = tokens.entropy(logits, policy.temperature).mean()
        return Likelihood(tokens.log_prob(logits, said, policy.temperature), entropy)

    def weights(self, policy: Any, valid: Tensor, episode: Tensor, episodes: int) -> Tensor:
        """(D, H, A), for the mean over episodes of the mean over their tokens; see `Acting.weights`."""
        width: int = policy.action_width
        return (step_weights(valid, episode, episodes) / width)[..., None].expand(-1, -1, width)
