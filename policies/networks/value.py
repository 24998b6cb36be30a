"""State value network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from robotrl.policies.networks.mlp import Activation, Mlp, Transforms, flat_width
from robotrl.spec import Spec
from robotrl.transforms import Transform


class ValueNet(nn.Module):
    """An MLP from a context to a value.

    Args:
        context_width: D of the context, a normalised observation.
        hidden: widths of the hidden layers.
        activation: between the layers.
    """

    def __init__(self, context_width: int, hidden: Sequence[int] = (256, 256), activation: Activation = "silu") -> None:
        super().__init__()
        self.net = Mlp(context_width, hidden, 1, 0.1, activation)

    def forward(self, ctx: Tensor) -> Tensor:
        """(B, D) to (B,)."""
        return self.net(ctx).squeeze(-1)


class Critic(nn.Module):
    """A value network that may see more than the policy: arrays that only a simulator can measure.

    Args:
        context_width: D, how many numbers of the policy's context it reads; see `HasChain.context_width`.
        privileged: those arrays, by key.
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
        """(B, D') what it reads of the policy's context, and the privileged arrays, normalised, if there are any."""
        ctx = ctx[:, : self.context_width]
        if not self._keys:
            return ctx
        more = self._transforms({key: obs[key] for key in self._keys})
        return torch.cat([ctx, *(more[key].flatten(1) for key in self._keys)], dim=-1)

    def set_transforms(self, transforms: Sequence[Transform]) -> None:
        """Take new constants for the same transforms."""
        self._transforms.replace(transforms)

    def forward(self, ctx: Tensor) -> Tensor:
        """(B, D') to (B,)."""
        return self.net(ctx)
