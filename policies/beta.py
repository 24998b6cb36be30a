"""Beta policy: Beta distributions within the action bounds (Chou et al. 2017), so samples are never clipped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import softplus

from robotrl.fn.density import BetaDensity
from robotrl.policies.closed_form import ClosedFormPolicy
from robotrl.policies.networks.encoder import ImageNorm, Pool
from robotrl.policies.networks.mlp import Activation
from robotrl.policies.networks.own import network
from robotrl.spec import Spec, reads
from robotrl.transforms import TransformGroup


@dataclass(frozen=True)
class BetaCfg:
    """Config of a `BetaPolicy`."""

    horizon: int = 1
    """H, actions in a chunk; all are executed."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
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

    def build(self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup) -> BetaPolicy:
        """The policy with fresh weights."""
        return BetaPolicy(observation_spec, action_spec, transforms, self)


class BetaPolicy(ClosedFormPolicy):
    """Beta distributions with both parameters above 1: one peak, no density at the bounds themselves.

    With fresh weights both are near 1.7: the mean is in the middle of the bounds, the std is 0.48 of half their
    distance.
    """

    kind: ClassVar[str] = "beta"
    Cfg: ClassVar[type] = BetaCfg

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: BetaCfg
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        outputs = 2 * cfg.horizon * self.action_width
        self.net = network(cfg.net, self.context_width, cfg.hidden, outputs, 0.1, cfg.activation)

    def density(self, ctx: Tensor) -> BetaDensity:
        """See `ClosedFormPolicy.density`."""
        alpha, beta = (1 + softplus(self.net(ctx))).view(-1, 2, self.horizon, self.action_width).unbind(1)
        return BetaDensity(alpha, beta)

    def mean(self, ctx: Tensor) -> Tensor:
        """Normalised mean chunk (B, H, A) within -1 and 1."""
        return self.density(ctx).mean

    def best(self, ctx: Tensor) -> Tensor:
        """See `ClosedFormPolicy.best`: the mean."""
        return self.mean(ctx)
