"""A U-Net along the chunk, conditioned by FiLM, as in Diffusion Policy (Chi et al. 2023)."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from robotrl.errors import ConfigError
from robotrl.policies.networks.chunk_nets import ChunkSizes

GROUPS = 8
"""Groups of the group normalization, as published."""


class FilmBlock(nn.Module):
    """Residual block of two convolutions; context and time scale and shift the features (FiLM, Perez et al. 2018).

    Args:
        before: channels in.
        after: channels out.
        condition: width of the condition.
    """

    def __init__(self, before: int, after: int, condition: int) -> None:
        super().__init__()
        self.first = _convolution(before, after)
        self.film = nn.Sequential(nn.SiLU(), nn.Linear(condition, 2 * after))
        self.second = _convolution(after, after)
        self.bypass = nn.Conv1d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Features (B, after, H) from x (B, before, H) and the condition (B, C)."""
        scale, shift = self.film(condition).unsqueeze(-1).chunk(2, dim=1)
        return self.second(self.first(x) * (1 + scale) + shift) + self.bypass(x)


class ChunkUnet(nn.Module):
    """U-Net of 1D convolutions along the chunk.

    `hidden` holds the channels of the levels; each level has half the length of the one before. A chunk whose length is
    no multiple of 2^(levels - 1) is padded with its last action and cropped at the end. Each level has one block, where
    the published network has two, since our chunks are short (4 to 16 actions).

    Raises:
        ConfigError: channels that are no multiple of 8, the number of groups of the normalisation.
    """

    def __init__(self, sizes: ChunkSizes) -> None:
        super().__init__()
        for channels in sizes.hidden:
            if channels < 1 or channels % GROUPS:
                raise ConfigError(f"policy.hidden is {sizes.hidden}: expected multiples of {GROUPS} for network 'unet'")
        condition = sizes.context + sizes.time
        levels = list(sizes.hidden)
        self._multiple = 2 ** (len(levels) - 1)
        widths = list(itertools.pairwise([sizes.action, *levels]))
        self.down = nn.ModuleList(FilmBlock(a, b, condition) for a, b in widths)
        self.shrink = nn.ModuleList(nn.Conv1d(c, c, 3, stride=2, padding=1) for c in levels[:-1])
        self.middle = FilmBlock(levels[-1], levels[-1], condition)
        rising = list(itertools.pairwise(reversed(levels)))
        self.grow = nn.ModuleList(nn.ConvTranspose1d(a, a, 4, stride=2, padding=1) for a, _ in rising)
        self.up = nn.ModuleList(FilmBlock(a + b, b, condition) for a, b in rising)
        self.last = nn.Sequential(_convolution(levels[0], levels[0]), nn.Conv1d(levels[0], sizes.action, 1))

    def forward(self, ctx: Tensor, x: Tensor, time: Tensor) -> Tensor:
        """Output chunk (B, H, A) for contexts (B, D), noisy chunks x (B, H, A) and time features (B, F)."""
        condition = torch.cat([ctx, time], dim=1)
        length = x.shape[1]
        h = functional.pad(x.transpose(1, 2), (0, -length % self._multiple), mode="replicate")
        skips: list[Tensor] = []
        for index, block in enumerate(self.down):
            if index:
                skips.append(h)
                h = self.shrink[index - 1](h)
            h = block(h, condition)
        h = self.middle(h, condition)
        for grow, block in zip(self.grow, self.up, strict=True):
            h = block(torch.cat([grow(h), skips.pop()], dim=1), condition)
        return self.last(h)[:, :, :length].transpose(1, 2).to(x.dtype)


def _convolution(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(before, after, 3, padding=1), nn.GroupNorm(GROUPS, after), nn.SiLU())
