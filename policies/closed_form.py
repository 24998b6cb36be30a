"""Base class of policies with a closed-form density: sampled in training, the mean or mode when deployed."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from robotrl.fn.random.noise import Noise
from robotrl.policies.base import Deployed, NetworkPolicy
from robotrl.spec import ActOut, Density, Mode


class SampledAction(NamedTuple):
    """A sampled chunk and its log-density."""

    normalized_action: Tensor
    """(B, H, A) normalised actions."""
    log_prob: Tensor
    """(B, H, A) their log-density."""


class ClosedFormPolicy(NetworkPolicy):
    """Implements `Policy`, `HasLogProb` and `HasDensity`; subclasses define `density` and `best`."""

    deploy_mode: ClassVar[Literal["sample", "mean"]] = "mean"
    keyed_noise: ClassVar[Literal[True]] = True

    @abstractmethod
    def density(self, ctx: Tensor) -> Density:
        """Distribution of the chunks for contexts (B, D)."""
        ...

    @abstractmethod
    def best(self, ctx: Tensor) -> Tensor:
        """Normalised chunk (B, H, A) that is deployed: the mean, or the most likely choices."""
        ...

    def log_prob(self, obs: dict[str, Tensor], chunk: Tensor) -> Tensor:
        """(B, H, A) log-density of normalised actions, taken before any clipping."""
        return self.density(self.encode(obs)).log_prob(chunk)

    def draw(self, obs: dict[str, Tensor], generator: Noise | None) -> SampledAction:
        """Sample a normalised chunk, before any clipping, with its log-density."""
        density = self.density(self.encode(obs))
        normalized_action = density.sample(generator)
        return SampledAction(normalized_action, density.log_prob(normalized_action))

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """The `best` action; noise is ignored."""
        del noise
        normalized_action = self.best(self.encode(obs))
        return Deployed(self.to_actions(normalized_action), normalized_action)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A chunk for each row: sampled, or `best`."""
        ctx = self.encode(obs)
        normalized_action = self.density(ctx).sample(generator) if mode == "sample" else self.best(ctx)
        return ActOut(self.to_actions(normalized_action), state)
