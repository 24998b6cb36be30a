"""Categorical policy: for actions that are choices, one probability for each choice of each element of a chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from robotrl.errors import ConfigError
from robotrl.fn.density import CategoricalDensity
from robotrl.policies.closed_form import ClosedFormPolicy
from robotrl.policies.networks.encoder import ImageNorm, Pool
from robotrl.policies.networks.mlp import Activation, Mlp
from robotrl.spec import Spec
from robotrl.transforms import TransformGroup


@dataclass(frozen=True)
class CategoricalCfg:
    """Size of a `CategoricalPolicy`."""

    horizon: int = 1
    """H, actions in a chunk; all are executed."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
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

    def build(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup
    ) -> CategoricalPolicy:
        """The policy with fresh weights."""
        return CategoricalPolicy(observation_spec, action_spec, transforms, self)


class CategoricalPolicy(ClosedFormPolicy):
    """Probabilities that are the softmax of scores; elements of an action are chosen each for itself.

    An action is the numbers of what was chosen, as the sim takes them: nothing is normalised and nothing clipped. The
    likeliest choices are deployed. A fresh policy gives nearly the same probability to every choice.

    Raises:
        CapabilityError: the action is no choice.
        ConfigError: `transforms` have outputs.
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
        """(A) how many choices each element of an action has."""
        self.net = Mlp(self.context_width, cfg.hidden, cfg.horizon * sum(self.choices), 0.1, cfg.activation)

    def scores(self, ctx: Tensor) -> Tensor:
        """(B, H, sum of choices) unnormalised log-probabilities, those of each element side by side."""
        return self.net(ctx).view(-1, self.horizon, sum(self.choices))

    def density(self, ctx: Tensor) -> CategoricalDensity:
        """See `ClosedFormPolicy.density`."""
        return CategoricalDensity.of_scores(self.scores(ctx), self.choices)

    def best(self, ctx: Tensor) -> Tensor:
        """See `ClosedFormPolicy.best`: the likeliest choices."""
        return self.density(ctx).mode

    @torch.no_grad()
    def lead(self, obs: dict[str, Tensor]) -> Tensor:
        """(B,) by how many nats the likeliest choice leads the second, least over a chunk's elements.

        Where it is within rounding, another library or machine may choose the other; infinite where there is no other.
        """
        top = self.density(self.encode(obs)).log_probs.topk(min(2, max(self.choices)), dim=-1).values
        gaps = top[..., 0] - top[..., -1] if top.shape[-1] == 2 else torch.full_like(top[..., 0], torch.inf)
        return gaps.flatten(1).amin(dim=1)
