"""Gaussian policy: an MLP mean over an action chunk and a learned, state-independent std for each element."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from robotrl.fn.density import NormalDensity
from robotrl.policies.closed_form import ClosedFormPolicy, SampledAction
from robotrl.policies.networks.encoder import ImageNorm, Pool
from robotrl.policies.networks.mlp import Activation
from robotrl.policies.networks.own import network
from robotrl.spec import Spec, reads
from robotrl.transforms import TransformGroup


@dataclass(frozen=True)
class GaussianCfg:
    """Config of a `GaussianPolicy`."""

    horizon: int = 4
    """H, actions in a chunk; all are executed."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the hidden layers."""
    initial_std: float = 0.2
    """Standard deviation at the start, in normalised action units."""
    activation: Activation = "silu"
    """Activation function between the layers."""
    set_features: int = 0
    """Width of the set encoder for each list with a mask (e.g. road users), next to its raw rows; 0 for rows alone."""
    set_attention: int = 0
    """Rounds of attention over all lists together (`SceneEncoder`), with `set_features`; 0 pools each list alone."""
    image_channels: tuple[int, ...] = (32, 64, 64)
    """Image encoder: channels of the convolutions, each of which halves height and width."""
    image_features: int = 64
    """Image encoder: features per image."""
    image_pool: Pool = "flatten"
    """Image encoder, after the convolutions: "flatten" keeps all values, "softmax" each channel's expected position."""
    image_norm: ImageNorm = "none"
    """Image encoder, after each convolution: no normalization, or "layer" (LayerNorm)."""
    net: str | None = field(default=None, metadata=reads("module"))
    """One's own network "MODULE:CLASS" instead of the hidden layers: a torch.nn.Module, called with the widths of input
    and output."""

    def build(self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup) -> GaussianPolicy:
        """The policy with fresh weights."""
        return GaussianPolicy(observation_spec, action_spec, transforms, self)


class GaussianPolicy(ClosedFormPolicy):
    """Normal distributions; samples beyond the action bounds are clipped after their density is computed."""

    kind: ClassVar[str] = "gaussian"
    Cfg: ClassVar[type] = GaussianCfg

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: GaussianCfg
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        outputs = cfg.horizon * self.action_width
        self.net = network(cfg.net, self.context_width, cfg.hidden, outputs, 0.1, cfg.activation)
        self.log_std = nn.Parameter(torch.full((cfg.horizon, self.action_width), math.log(cfg.initial_std)))

    def density(self, ctx: Tensor) -> NormalDensity:
        """See `ClosedFormPolicy.density`."""
        return NormalDensity(self.mean(ctx), self.log_std)

    def mean(self, ctx: Tensor) -> Tensor:
        """Normalised mean chunk (B, H, A)."""
        return self.net(ctx).view(-1, self.horizon, self.action_width)

    def draw_with(self, ctx: Tensor, noise: Tensor) -> SampledAction:
        """Sample with its log-density from given noise, differentiable.

        Args:
            ctx: (B, D).
            noise: (B, H, A) standard normal.
        """
        density = self.density(ctx)
        normalized_action = density.mean + density.std * noise
        return SampledAction(normalized_action, density.log_prob(normalized_action))

    def best(self, ctx: Tensor) -> Tensor:
        """See `ClosedFormPolicy.best`: the mean."""
        return self.mean(ctx)
