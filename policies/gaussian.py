"""Gaussian policy: an MLP mean over an action chunk and one learned deviation for each of its elements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from robotrl.fn.chain import normal_log_prob
from robotrl.policies.base import Deployed, NetworkPolicy
from robotrl.policies.encoder import Pool
from robotrl.policies.nets import Activation, Mlp
from robotrl.spec import ActOut, Mode, Spec
from robotrl.transforms import TransformGroup


@dataclass(frozen=True)
class GaussianCfg:
    """Size of a `GaussianPolicy`."""

    horizon: int = 4
    """H, actions in a chunk; all are executed."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the hidden layers."""
    initial_std: float = 0.2
    """Standard deviation at the start, in normalised action units."""
    activation: Activation = "silu"
    """Between the layers."""
    image_channels: tuple[int, ...] = (32, 64, 64)
    """For pictures: channels of the convolutions, each of which halves height and width."""
    image_features: int = 64
    """Numbers that a picture becomes."""
    image_pool: Pool = "flatten"
    """Between convolutions and features: all they give, or where each channel is largest."""

    def build(self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup) -> GaussianPolicy:
        """The policy with fresh weights."""
        return GaussianPolicy(observation_spec, action_spec, transforms, self)


class Drawn(NamedTuple):
    """What `GaussianPolicy.draw` returns."""

    raw: Tensor
    """(B, H, A) normalised actions."""
    log_prob: Tensor
    """(B, H, A) their log-density."""


class GaussianPolicy(NetworkPolicy):
    """Satisfies `Policy` and `HasLogProb`."""

    kind: ClassVar[str] = "gaussian"
    Cfg: ClassVar[type] = GaussianCfg
    deploy_mode: ClassVar[Literal["sample", "mean"]] = "mean"

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: GaussianCfg
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        self.net = Mlp(self.context_width, cfg.hidden, cfg.horizon * self.action_width, 0.1, cfg.activation)
        self.log_std = nn.Parameter(torch.full((cfg.horizon, self.action_width), math.log(cfg.initial_std)))

    def mean(self, ctx: Tensor) -> Tensor:
        """Normalised mean chunk (B, H, A)."""
        return self.net(ctx).view(-1, self.horizon, self.action_width)

    def log_prob(self, obs: dict[str, Tensor], chunk: Tensor) -> Tensor:
        """(B, H, A) log-density of normalised actions, taken before any clipping."""
        mean = self.mean(self.encode(obs))
        return normal_log_prob(chunk, mean, self.log_std.exp().expand_as(mean))

    def draw(self, obs: dict[str, Tensor], generator: torch.Generator | None) -> Drawn:
        """A normalised chunk with noise, before any clipping, and its density."""
        mean = self.mean(self.encode(obs))
        std = self.log_std.exp().expand_as(mean)
        raw = mean + std * torch.randn(mean.shape, generator=generator, device=mean.device)
        return Drawn(raw, normal_log_prob(raw, mean, std))

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """The mean action; takes no noise."""
        del noise
        raw = self.mean(self.encode(obs))
        return Deployed(self.to_actions(raw), raw)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: torch.Generator | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A chunk for each row: drawn, or the mean."""
        raw = self.draw(obs, generator).raw if mode == "sample" else self.mean(self.encode(obs))
        return ActOut(self.to_actions(raw), state)
