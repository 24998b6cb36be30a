"""Gaussian policy: an MLP mean over an action chunk and one learned deviation for each of its elements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from robotrl.fn.density import NormalDensity
from robotrl.policies.closed_form import ClosedFormPolicy
from robotrl.policies.networks.encoder import ImageNorm, Pool
from robotrl.policies.networks.mlp import Activation, Mlp
from robotrl.spec import Spec
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
    set_features: int = 0
    """Numbers that a list with a mask becomes besides its rows, e.g. road users; 0 leaves it at the rows."""
    image_channels: tuple[int, ...] = (32, 64, 64)
    """For pictures: channels of the convolutions, each of which halves height and width."""
    image_features: int = 64
    """Numbers that a picture becomes."""
    image_pool: Pool = "flatten"
    """Between convolutions and features: all they give, or where each channel is largest."""
    image_norm: ImageNorm = "none"
    """After each convolution: nothing, or the picture's mean and deviation taken out."""

    def build(self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup) -> GaussianPolicy:
        """The policy with fresh weights."""
        return GaussianPolicy(observation_spec, action_spec, transforms, self)


class GaussianPolicy(ClosedFormPolicy):
    """Normal distributions; samples may lie beyond the action's bounds, where they are clipped after the density."""

    kind: ClassVar[str] = "gaussian"
    Cfg: ClassVar[type] = GaussianCfg

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: GaussianCfg
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        self.net = Mlp(self.context_width, cfg.hidden, cfg.horizon * self.action_width, 0.1, cfg.activation)
        self.log_std = nn.Parameter(torch.full((cfg.horizon, self.action_width), math.log(cfg.initial_std)))

    def density(self, ctx: Tensor) -> NormalDensity:
        """See `ClosedFormPolicy.density`."""
        return NormalDensity(self.mean(ctx), self.log_std)

    def mean(self, ctx: Tensor) -> Tensor:
        """Normalised mean chunk (B, H, A)."""
        return self.net(ctx).view(-1, self.horizon, self.action_width)

    def best(self, ctx: Tensor) -> Tensor:
        """See `ClosedFormPolicy.best`: the mean."""
        return self.mean(ctx)
