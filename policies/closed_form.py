"""Base of policies with a density in closed form: the learner draws from it, the robot gets the best of it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from robotrl.fn.random.noise import Noise
from robotrl.policies.base import Deployed, NetworkPolicy
from robotrl.spec import ActOut, Density, Mode


class SampledAction(NamedTuple):
    """A chunk and how probable it was."""

    raw: Tensor
    """(B, H, A) normalised actions."""
    log_prob: Tensor
    """(B, H, A) their log-density."""


class ClosedFormPolicy(NetworkPolicy):
    """Satisfies `Policy`, `HasLogProb` and `HasDensity`, given a `density` and what of it is deployed."""

    deploy_mode: ClassVar[Literal["sample", "mean"]] = "mean"
    keyed_noise: ClassVar[Literal[True]] = True

    @abstractmethod
    def density(self, ctx: Tensor) -> Density:
        """What chunks are drawn from in contexts (B, D)."""
        ...

    @abstractmethod
    def best(self, ctx: Tensor) -> Tensor:
        """The one normalised chunk (B, H, A) that is deployed: a mean, or the likeliest choices."""
        ...

    def log_prob(self, obs: dict[str, Tensor], chunk: Tensor) -> Tensor:
        """(B, H, A) log-density of normalised actions, taken before any clipping."""
        return self.density(self.encode(obs)).log_prob(chunk)

    def draw(self, obs: dict[str, Tensor], generator: Noise | None) -> SampledAction:
        """A normalised chunk with noise, before any clipping, and its density."""
        density = self.density(self.encode(obs))
        raw = density.sample(generator)
        return SampledAction(raw, density.log_prob(raw))

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """The best action; takes no noise."""
        del noise
        raw = self.best(self.encode(obs))
        return Deployed(self.to_actions(raw), raw)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A chunk for each row: drawn, or the best."""
        ctx = self.encode(obs)
        raw = self.density(ctx).sample(generator) if mode == "sample" else self.best(ctx)
        return ActOut(self.to_actions(raw), state)
