"""State value networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from robotrl.fn.returns.two_hot import expected_value
from robotrl.policies.networks.mlp import Activation, Mlp, Transforms, flat_width
from robotrl.spec import Spec
from robotrl.transforms import Transform


class ValueNet(nn.Module):
    """An MLP from a context to a state value.

    Args:
        context_width: D of the context, a normalised observation.
        hidden: widths of the hidden layers.
        activation: between the layers.
    """

    def __init__(self, context_width: int, hidden: Sequence[int] = (256, 256), activation: Activation = "silu") -> None:
        super().__init__()
        self.net = Mlp(context_width, hidden, 1, 0.1, activation)

    def forward(self, ctx: Tensor) -> Tensor:
        """Values (B,) of contexts (B, D)."""
        return self.net(ctx).squeeze(-1)


class CategoricalValueNet(nn.Module):
    """An MLP from a context to the probabilities of a state value's bins; see `robotrl.fn.returns.two_hot`.

    Args:
        context_width: D of the context.
        bins: K.
        low: center of the first bin.
        high: center of the last bin.
        hidden: widths of the hidden layers.
        activation: between the layers.
    """

    def __init__(
        self,
        context_width: int,
        bins: int,
        low: float,
        high: float,
        hidden: Sequence[int] = (256, 256),
        activation: Activation = "silu",
    ) -> None:
        super().__init__()
        self.low, self.high = low, high
        self.net = Mlp(context_width, hidden, bins, 0.1, activation)

    def forward(self, ctx: Tensor) -> Tensor:
        """Logits (B, K) of contexts (B, D)."""
        return self.net(ctx)

    def mean(self, ctx: Tensor) -> Tensor:
        """Values (B,) of contexts (B, D)."""
        return expected_value(self(ctx), self.low, self.high)


class Critic(nn.Module):
    """A value network with optional privileged observations, which only a simulator can measure.

    Args:
        context_width: D, the leading part of the policy's context that it reads; see `HasChain.context_width`.
        privileged: specs of the privileged observations by key.
        transforms: their normalisation.
        hidden: widths of the hidden layers.
        activation: between the layers.
    """

    def __init__(
        self,
        context_width: int,
        privileged: Mapping[str, Spec],
        transforms: Sequence[Transform],
        hidden: Sequence[int] = (256, 256),
        activation: Activation = "silu",
    ) -> None:
        super().__init__()
        self.context_width = context_width
        self._keys = tuple(privileged)
        self._transforms = Transforms(transforms)
        self.net = ValueNet(context_width + flat_width(dict(privileged)), hidden, activation)

    def encode(self, obs: dict[str, Tensor], ctx: Tensor) -> Tensor:
        """Input (B, D'): the leading part of the policy's context and the normalised privileged observations."""
        ctx = ctx[:, : self.context_width]
        if not self._keys:
            return ctx
        more = self._transforms({key: obs[key] for key in self._keys})
        return torch.cat([ctx, *(more[key].flatten(1) for key in self._keys)], dim=-1)

    def set_transforms(self, transforms: Sequence[Transform]) -> None:
        """Update the constants of the same transforms."""
        self._transforms.replace(transforms)

    def forward(self, ctx: Tensor) -> Tensor:
        """Values (B,) of inputs (B, D') from `encode`."""
        return self.net(ctx)
