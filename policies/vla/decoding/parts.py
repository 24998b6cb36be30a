"""Shared parts of the decoders: protocol, masks, rotary tables, caches; see `robotrl.policies.vla.decoding.decode`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

Map = Callable[[Tensor], Tensor]
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
"""Attributes in which torch stores the hooks of a module."""


class Masks(NamedTuple):
    """Additive attention masks: 0 where a token is visible, the lowest number elsewhere."""

    prefix: Tensor
    """(B, 1, L, L) within the prefix."""
    after: Tensor
    """(B, 1, 1, L) from later tokens to the prefix: the lowest number at a gap."""


class Decoder(Protocol):
    """Incremental forward pass of a language model: the prefix first, then one token at a time."""

    def read(self, embeddings: Tensor, last: Tensor) -> Tensor:
        """The hidden state (B, 1, D) of a prefix (B, L, D) at its last token (B,)."""
        ...

    def step(self, new: Tensor) -> Tensor:
        """The hidden state (B, 1, D) of the next token's embedding (B, 1, D)."""
        ...


class RotaryTables(NamedTuple):
    """Cosines and sines of rotary positions."""

    cos: Tensor
    """(B, 1, T, width)"""
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Apply rotary positions to queries or keys (B, heads, T, width)."""
        a, b = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat([-b, a], dim=-1) * self.sin


class Products(NamedTuple):
    """Linear layers of a Llama layer."""

    query: Any
    key: Any
    value: Any
    out: Any
    gate: Any
    up: Any
    down: Any


def products(layer: Any) -> Products:
    """Linear layers of a layer of a `LlamaModel`."""
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    return Products(*projections, mlp.gate_proj, mlp.up_proj, mlp.down_proj)


def rotary_tables(model: Any, at: Tensor, like: Tensor) -> RotaryTables:
    """Rotary tables of positions (B, T); `like` gives dtype and device."""
    cos, sin = model.rotary_emb(like, at)
    return RotaryTables(cos[:, None], sin[:, None])


class StaticKvCache(NamedTuple):
    """Static key-value cache of a layer, allocated for the whole sequence."""

    keys: Tensor
    """(B, heads, L + T, width) with rotary positions."""
    values: Tensor


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention (B, Q, heads * width) of queries (B, heads, Q, width), with grouped key-value heads.

    Args:
        query: queries.
        keys: (B, heads, T, width).
        values: (B, heads, T, width).
        mask: (B, 1, Q, T) additive attention mask.
    """
    grouped = query.shape[1] != keys.shape[1]
    mixed = scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=grouped)
    return mixed.transpose(1, 2).flatten(2)


def has_hooks(model: Any) -> bool:
    """Tell whether any module in a `LlamaModel`'s layers has a forward hook."""
    modules = [part for layer in model.layers for part in layer.modules()] + [model.norm]
    return any(vars(part)[hooks] for part in modules for hooks in HOOKS)
