"""One token more of a Llama whose keys and values of what came before are kept: the loop of autoregressive policies.

`transformers` puts each new key behind a copy of all those before it. Here the prefix's keys stay where they are, and
only the few of the tokens said so far are put together; rotations and masks are made once for all tokens.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu


class Kept(NamedTuple):
    """What one layer remembers."""

    keys: Tensor
    """(B, heads, L, width) of the prefix, with positions in them."""
    values: Tensor
    """(B, heads, L, width)"""
    new_keys: Tensor
    """(B, heads, t, width) of the tokens said so far."""
    new_values: Tensor


class Turn(NamedTuple):
    """Rotation to one position."""

    cos: Tensor
    """(B, 1, 1, width)"""
    sin: Tensor


def start(keys: Tensor, values: Tensor) -> Kept:
    """Nothing has been said yet."""
    return Kept(keys, values, keys[:, :, :0], values[:, :, :0])


def turns(model: Any, at: Tensor, like: Tensor) -> list[Turn]:
    """Rotations to the positions (B, T) of T tokens."""
    cos, sin = model.rotary_emb(like, at)
    return [Turn(cos[:, None, t : t + 1], sin[:, None, t : t + 1]) for t in range(at.shape[1])]


def step(model: Any, x: Tensor, turn: Turn, hidden_from: Tensor, kept: list[Kept]) -> tuple[Tensor, list[Kept]]:
    """The normed hidden state (B, 1, D) of one token, and what is kept after it.

    Args:
        model: a `LlamaModel`.
        x: (B, 1, D) its embedding.
        turn: to its position.
        hidden_from: (B, 1, 1, L) what is added to scores of the prefix: the lowest number where there is a gap.
        kept: by layer.
    """
    after: list[Kept] = []
    for layer, memory in zip(model.layers, kept, strict=True):
        attention = layer.self_attn
        normed = layer.input_layernorm(x)
        q, k, v = (
            project(normed).unflatten(2, (-1, attention.head_dim)).transpose(1, 2)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        q, k = _turned(q, turn), _turned(k, turn)
        memory = Kept(
            memory.keys,
            memory.values,
            torch.cat([memory.new_keys, k], dim=2),
            torch.cat([memory.new_values, v], dim=2),
        )
        after.append(memory)
        x = x + attention.o_proj(_attend(q, memory, hidden_from))
        normed = layer.post_attention_layernorm(x)
        x = x + layer.mlp.down_proj(silu(layer.mlp.gate_proj(normed)) * layer.mlp.up_proj(normed))
    return model.norm(x), after


def _attend(q: Tensor, memory: Kept, hidden_from: Tensor) -> Tensor:
    """(B, 1, heads * width) of one token's queries (B, heads, 1, width); heads of keys may be shared by groups."""
    batch, heads, _, width = q.shape
    shared = memory.keys.shape[1]
    # queries that share keys stand in the rows of one product
    q = q.reshape(batch, shared, heads // shared, width) / math.sqrt(width)
    before = q @ memory.keys.transpose(2, 3) + hidden_from
    since = q @ memory.new_keys.transpose(2, 3)
    share = torch.cat([before, since], dim=3).softmax(dim=3)
    length = memory.keys.shape[2]
    out = share[..., :length] @ memory.values + share[..., length:] @ memory.new_values
    return out.reshape(batch, 1, heads * width)


def _turned(x: Tensor, turn: Turn) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * turn.cos + torch.cat([-b, a], dim=-1) * turn.sin
