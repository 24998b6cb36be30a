"""Categorical policy for discrete actions: independent probabilities for each element of a chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from robotrl.errors import ConfigError
from robotrl.fn.density import CategoricalDensity
from robotrl.policies.closed_form import ClosedFormPolicy
from robotrl.policies.networks.encoder import ImageNorm, Pool
from robotrl.policies.networks.mlp import Activation
from robotrl.policies.networks.own import network
from robotrl.spec import Spec, reads
from robotrl.transforms import TransformGroup


@dataclass(frozen=True)
class CategoricalCfg:
    """Config of a `CategoricalPolicy`."""

    horizon: int = 1
    """H, actions in a chunk; all are executed."""
    hidden: tuple[int, ...] = (64, 64)
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

    def build(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup
    ) -> CategoricalPolicy:
        """The policy with fresh weights."""
        return CategoricalPolicy(observation_spec, action_spec, transforms, self)


class CategoricalPolicy(ClosedFormPolicy):
    """Softmax probabilities for each element of an action; the elements are independent.

    An action holds the indices of the choices, as the sim expects them: it is neither normalised nor clipped. The most
    likely choices are deployed. With fresh weights all choices are nearly equally likely.

    Raises:
        CapabilityError: the action is continuous.
        ConfigError: `transforms` has outputs.
    """

    kind: ClassVar[str] = "categorical"
    Cfg: ClassVar[type] = CategoricalCfg
    acts: ClassVar[Literal["numbers", "choices"]] = "choices"

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: CategoricalCfg
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        if transforms.outputs:
            raise ConfigError(
                f"transforms.outputs holds {len(transforms.outputs)} of them: expected none, a choice is the action"
            )
        self.choices: tuple[int, ...] = action_spec.choices or ()
        """Number of choices of each of the A elements of an action."""
        outputs = cfg.horizon * sum(self.choices)
        self.net = network(cfg.net, self.context_width, cfg.hidden, outputs, 0.1, cfg.activation)

    def scores(self, ctx: Tensor) -> Tensor:
        """Logits (B, H, sum of choices), those of each element side by side."""
        return self.net(ctx).view(-1, self.horizon, sum(self.choices))

    def density(self, ctx: Tensor) -> CategoricalDensity:
        """See `ClosedFormPolicy.density`."""
        return CategoricalDensity.of_scores(self.scores(ctx), self.choices)

    def best(self, ctx: Tensor) -> Tensor:
        """See `ClosedFormPolicy.best`: the most likely choices."""
        return self.density(ctx).mode

    def lead(self, obs: dict[str, Tensor]) -> Tensor:
        """(B,) margins of observations (B, ...); see `lead_of`."""
        return self.lead_of(self.encode(obs))

    @torch.no_grad()
    def lead_of(self, ctx: Tensor) -> Tensor:
        """(B,) smallest margin, in nats, between the first and the second choice over a chunk's elements.

        If it is within rounding error, another library or machine may choose otherwise. Infinite for a single choice.
        """
        top = self.density(ctx).log_probs.topk(min(2, max(self.choices)), dim=-1).values
        gaps = top[..., 0] - top[..., -1] if top.shape[-1] == 2 else torch.full_like(top[..., 0], torch.inf)
        return gaps.flatten(1).amin(dim=1)
