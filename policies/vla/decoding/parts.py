"""What all that goes on from a prefix have in common; see `robotrl.policies.vla.decoding.decode`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

Map = Callable[[Tensor], Tensor]
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
"""Where torch keeps who listens to a layer."""


class Masks(NamedTuple):
    """What is added to attention, 0 or the lowest number."""

    prefix: Tensor
    """(B, 1, L, L) among the prefix."""
    after: Tensor
    """(B, 1, 1, L) of the prefix, for all that comes after it: the lowest number where there is a gap."""


class Decoder(Protocol):
    """Reads a prefix, then one token after the other."""

    def read(self, embeddings: Tensor, last: Tensor) -> Tensor:
        """The hidden state (B, 1, D) of a prefix (B, L, D) at its last token (B,)."""
        ...

    def step(self, new: Tensor) -> Tensor:
        """The hidden state (B, 1, D) of the next token's embedding (B, 1, D)."""
        ...


class RotaryTables(NamedTuple):
    """Rotation to positions."""

    cos: Tensor
    """(B, 1, T, width)"""
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Queries or keys (B, heads, T, width) at their places."""
        a, b = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat([-b, a], dim=-1) * self.sin


class Products(NamedTuple):
    """The linear layers of a Llama's layer."""

    query: Any
    key: Any
    value: Any
    out: Any
    gate: Any
    up: Any
    down: Any


def products(layer: Any) -> Products:
    """Those of a layer of a `LlamaModel`."""
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    return Products(*projections, mlp.gate_proj, mlp.up_proj, mlp.down_proj)


def turn_to(model: Any, at: Tensor, like: Tensor) -> RotaryTables:
    """Rotation to the positions (B, T)."""
    cos, sin = model.rotary_emb(like, at)
    return RotaryTables(cos[:, None], sin[:, None])


class Room(NamedTuple):
    """What one layer remembers, with room for the whole sentence."""

    keys: Tensor
    """(B, heads, L + T, width) with positions in them."""
    values: Tensor


def attend(asking: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """(B, Q, heads * width) of queries (B, heads, Q, width); heads of keys may be shared by groups.

    Args:
        asking: queries.
        keys: (B, heads, T, width)
        values: likewise.
        seen: (B, 1, Q, T) what is added to scores.
    """
    grouped = asking.shape[1] != keys.shape[1]
    mixed = scaled_dot_product_attention(asking, keys, values, attn_mask=seen, enable_gqa=grouped)
    return mixed.transpose(1, 2).flatten(2)


def is_heard(model: Any) -> bool:
    """Whether somebody wants to know when a part of a `LlamaModel`'s layers is called."""
    parts = [part for layer in model.layers for part in layer.modules()] + [model.norm]
    return any(vars(part)[hooks] for part in parts for hooks in HOOKS)
