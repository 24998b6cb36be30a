"""A small transformer over the chunk: one token for the context, one for the time, one for each action."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from robotrl.errors import ConfigError
from robotrl.policies.networks.chunk_nets import ChunkSizes, equal_widths

HEADS = 4


class TransformerBlock(nn.Module):
    """Pre-norm transformer block: attention among all tokens, then an MLP (Vaswani et al. 2017).

    Args:
        width: width of a token, a multiple of `HEADS`.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, tokens, width) to the same shape."""
        batch, tokens, width = x.shape
        heads = self.qkv(self.attention_norm(x)).view(batch, tokens, 3, HEADS, width // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        # written out: some ten tokens gain nothing from a fused kernel, and any back end compiles this
        weights = (query @ key.transpose(-2, -1) / math.sqrt(width // HEADS)).softmax(-1)
        x = x + self.join((weights @ value).transpose(1, 2).reshape(batch, tokens, width))
        return x + self.layers(x)


class ChunkTransformer(nn.Module):
    """Transformer in which a chunk's actions attend to each other, to the context and to the time.

    `hidden` repeats the width, once for each block.

    Raises:
        ConfigError: the widths differ or are no multiple of 4, the number of heads.
    """

    def __init__(self, sizes: ChunkSizes) -> None:
        super().__init__()
        width = equal_widths("transformer", sizes.hidden)
        if width < HEADS or width % HEADS:
            raise ConfigError(
                f"policy.hidden is {sizes.hidden}: expected multiples of {HEADS} for network 'transformer'"
            )
        self.context = nn.Linear(sizes.context, width)
        self.time = nn.Linear(sizes.time, width)
        self.action = nn.Linear(sizes.action, width)
        self.place = nn.Parameter(0.02 * torch.randn(2 + sizes.horizon, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width) for _ in sizes.hidden))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, sizes.action))

    def forward(self, ctx: Tensor, x: Tensor, time: Tensor) -> Tensor:
        """Output chunk (B, H, A) for contexts (B, D), noisy chunks x (B, H, A) and time features (B, F)."""
        tokens = torch.cat([self.context(ctx)[:, None], self.time(time)[:, None], self.action(x)], dim=1)
        return self.last(self.blocks(tokens + self.place)[:, 2:]).to(x.dtype)
