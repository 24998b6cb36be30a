"""MLP networks over an action chunk: from a context, a noisy chunk and time features to a chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from robotrl.errors import ConfigError
from robotrl.policies.networks.mlp import Mlp


class ChunkSizes(NamedTuple):
    """Sizes of a network over action chunks."""

    context: int
    """D, width of the context."""
    time: int
    """Width of the time features."""
    horizon: int
    """H, actions in a chunk."""
    action: int
    """A, size of an action."""
    hidden: tuple[int, ...]
    """Widths; their meaning is described by each network."""


class ChunkMlp(nn.Module):
    """An MLP on the concatenated inputs; `hidden` holds the widths of its layers."""

    def __init__(self, sizes: ChunkSizes) -> None:
        super().__init__()
        chunk = sizes.horizon * sizes.action
        self.layers = Mlp(sizes.context + chunk + sizes.time, sizes.hidden, chunk).layers

    def forward(self, ctx: Tensor, x: Tensor, time: Tensor) -> Tensor:
        """Output chunk (B, H, A) for contexts (B, D), noisy chunks x (B, H, A) and time features (B, F)."""
        return self.layers(torch.cat([ctx, x.flatten(1), time], dim=1)).view_as(x).to(x.dtype)


class ChunkResidualMlp(nn.Module):
    """DPPO's residual MLP (2409.00588): an input layer, residual blocks of two layers, an output layer.

    `hidden` repeats the width, once for the input layer and twice for each block: (512, 512, 512) is one block.

    Raises:
        ConfigError: the widths differ, or their number is even.
    """

    def __init__(self, sizes: ChunkSizes) -> None:
        super().__init__()
        width = equal_widths("residual", sizes.hidden)
        if len(sizes.hidden) % 2 == 0:
            raise ConfigError(
                f"policy.hidden is {sizes.hidden}: expected an odd number of widths for network 'residual',"
                " one and two for each block"
            )
        chunk = sizes.horizon * sizes.action
        self.first = nn.Linear(sizes.context + chunk + sizes.time, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(len(sizes.hidden) // 2)
        )
        self.last = nn.Linear(width, chunk)

    def forward(self, ctx: Tensor, x: Tensor, time: Tensor) -> Tensor:
        """Output chunk (B, H, A) for contexts (B, D), noisy chunks x (B, H, A) and time features (B, F)."""
        h = self.first(torch.cat([ctx, x.flatten(1), time], dim=1))
        for block in self.blocks:
            h = h + block(h)
        return self.last(h).view_as(x).to(x.dtype)


def equal_widths(network: str, hidden: Sequence[int]) -> int:
    """The common width of all layers.

    Raises:
        ConfigError: the widths differ.
    """
    if len(set(hidden)) != 1:
        raise ConfigError(f"policy.hidden is {tuple(hidden)}: expected equal widths for network {network!r}")
    return hidden[0]
