"""What policies with a density in closed form share: the learner draws from it, the robot gets its mean."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from robotrl.policies.base import Deployed, NetworkPolicy
from robotrl.spec import ActOut, Density, Mode


class Drawn(NamedTuple):
    """A chunk and how probable it was."""

    raw: Tensor
    """(B, H, A) normalised actions."""
    log_prob: Tensor
    """(B, H, A) their log-density."""


class ClosedFormPolicy(NetworkPolicy):
    """Satisfies `Policy`, `HasLogProb` and `HasDensity`, given a `density` and its `mean`."""

    deploy_mode: ClassVar[Literal["sample", "mean"]] = "mean"

    @abstractmethod
    def density(self, ctx: Tensor) -> Density:
        """What chunks are drawn from in contexts (B, D)."""
        ...

    @abstractmethod
    def mean(self, ctx: Tensor) -> Tensor:
        """Normalised mean chunk (B, H, A), which is what is deployed."""
        ...

    def log_prob(self, obs: dict[str, Tensor], chunk: Tensor) -> Tensor:
        """(B, H, A) log-density of normalised actions, taken before any clipping."""
        return self.density(self.encode(obs)).log_prob(chunk)

    def draw(self, obs: dict[str, Tensor], generator: torch.Generator | None) -> Drawn:
        """A normalised chunk with noise, before any clipping, and its density."""
        density = self.density(self.encode(obs))
        raw = density.sample(generator)
        return Drawn(raw, density.log_prob(raw))

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """The mean action; takes no noise."""
        del noise
        raw = self.mean(self.encode(obs))
        return Deployed(self.to_actions(raw), raw)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: torch.Generator | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A chunk for each row: drawn, or the mean."""
        ctx = self.encode(obs)
        raw = self.density(ctx).sample(generator) if mode == "sample" else self.mean(ctx)
        return ActOut(self.to_actions(raw), state)
