"""Context of a flow VLA: an encoded observation, computed once and used at each denoising step.

A context is one tensor (B, D), so that rollouts, replay buffers and losses treat it like that of any policy. It holds
the features for critics and noise networks (`HasChain.context_width`), the measured state, the keys and values of the
observation's tokens, layer by layer, and the mask of these tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class SplitContext(NamedTuple):
    """A context, split into its parts."""

    features: Tensor
    """(B, F) summary of images and prompt."""
    state: Tensor
    """(B, S) measured state, for networks in which it is no token of the context."""
    keys: Tensor
    """(B, layers, L, D) with rotary positions."""
    values: Tensor
    """(B, layers, L, D)"""
    token_mask: Tensor
    """(B, L) bool: False for padding of a prompt and for missing cameras."""


class ContextSizes(NamedTuple):
    """Sizes of a `SplitContext` that do not depend on the observation."""

    features: int
    """F, width of the features."""
    state: int
    """S, width of the measured state, or 0."""
    layers: int
    width: int
    """D, all heads of the keys together."""


def pack(memory: SplitContext) -> Tensor:
    """Concatenate the parts to one row (D,) for each observation."""
    parts = (x.flatten(1).to(memory.features.dtype) for x in memory)
    return torch.cat(list(parts), dim=1)


def unpack(ctx: Tensor, sizes: ContextSizes) -> SplitContext:
    """Inverse of `pack`, by views."""
    each = sizes.layers * sizes.width
    length = (ctx.shape[1] - sizes.features - sizes.state) // (2 * each + 1)
    features, state, keys, values, token_mask = ctx.split(
        [sizes.features, sizes.state, length * each, length * each, length], dim=1
    )
    shape = (sizes.layers, length, sizes.width)
    return SplitContext(features, state, keys.unflatten(1, shape), values.unflatten(1, shape), token_mask > 0.5)


def mean_over(hidden: Tensor, token_mask: Tensor) -> Tensor:
    """Mean (B, D) of hidden states (B, L, D) over the tokens that are not padding (`token_mask`, (B, L))."""
    weight = token_mask.to(hidden.dtype)[..., None]
    return (hidden * weight).sum(dim=1) / weight.sum(dim=1)
