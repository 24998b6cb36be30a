"""What a flow VLA keeps of an observation: computed once, read at each denoising step.

A context is one tensor (B, D), so that rollouts, replays and losses treat it like that of any policy: first what
critics and noise networks read (`HasChain.context_width`), then the measured state, then keys and values of the tokens
that were seen, layer by layer, then which tokens are there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class SplitContext(NamedTuple):
    """A context, taken apart."""

    features: Tensor
    """(B, F) what was seen and read, in short."""
    state: Tensor
    """(B, S) the measured state where it is no token among those seen."""
    keys: Tensor
    """(B, layers, L, D) with positions in them."""
    values: Tensor
    """(B, layers, L, D)"""
    there: Tensor
    """(B, L) bool: False in the gaps of a prompt and where a camera is missing."""


class ContextSizes(NamedTuple):
    """Those of a `SplitContext` that do not depend on what was seen."""

    features: int
    """F"""
    state: int
    """S"""
    layers: int
    width: int
    """D, all heads of the keys together."""


def pack(memory: SplitContext) -> Tensor:
    """One row for each observation."""
    parts = (x.flatten(1).to(memory.features.dtype) for x in memory)
    return torch.cat(list(parts), dim=1)


def unpack(ctx: Tensor, sizes: ContextSizes) -> SplitContext:
    """Inverse of `pack`, by views."""
    each = sizes.layers * sizes.width
    length = (ctx.shape[1] - sizes.features - sizes.state) // (2 * each + 1)
    features, state, keys, values, there = ctx.split(
        [sizes.features, sizes.state, length * each, length * each, length], dim=1
    )
    shape = (sizes.layers, length, sizes.width)
    return SplitContext(features, state, keys.unflatten(1, shape), values.unflatten(1, shape), there > 0.5)


def mean_over(hidden: Tensor, there: Tensor) -> Tensor:
    """(B, D) mean of hidden states (B, L, D) over the tokens that are there (B, L)."""
    weight = there.to(hidden.dtype)[..., None]
    return (hidden * weight).sum(dim=1) / weight.sum(dim=1)
