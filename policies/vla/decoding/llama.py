"""A Llama that goes on with its own layers, whoever listens to them: for gradients, traces, casts and adapters.

`transformers` computes the whole last layer of the prefix, of which one row is needed, and puts each new key behind a
copy of all those before it. Here the last layer is computed for the token that speaks alone, the prefix's keys stay
where they are, and rotations and masks are made once for all tokens.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu

from robotrl.policies.vla.decoding.parts import Map, Masks, RotaryTables, attend, products, turn_to


class LlamaReader:
    """Goes on as this module describes; see `decode.reader`."""

    def __init__(self, model: Any, masks: Masks, at: Tensor, behind: Tensor) -> None:
        self._model, self._masks, self._at, self._behind = model, masks, at, behind
        self._stack = layers(model)
        self._kept: list[LayerCache] = []

    def read(self, embeddings: Tensor, last: Tensor) -> Tensor:
        """See `decode_parts.Reader`."""
        turn = turn_to(self._model, self._at, embeddings)
        hidden, self._kept = read(self._stack, embeddings, turn, self._masks.prefix, last)
        self._turns = iter(each_of(turn_to(self._model, self._behind, hidden)))
        return self._model.norm(hidden)

    def step(self, new: Tensor) -> Tensor:
        """See `decode_parts.Reader`."""
        hidden, self._kept = step(self._stack, new, next(self._turns), self._masks.after, self._kept)
        return self._model.norm(hidden)


class LayerModules(NamedTuple):
    """The parts of a layer that it is made of, ready to be called."""

    norm: Map
    query: Map
    key: Map
    value: Map
    out: Map
    mlp_norm: Map
    gate: Map
    up: Map
    down: Map
    head_width: int


class LayerCache(NamedTuple):
    """What one layer remembers; what was said stands apart, lest the prefix be copied or spread."""

    keys: Tensor
    """(B, heads, L, width) of the prefix, with positions in them."""
    values: Tensor
    """(B, heads, L, width)"""
    new_keys: Tensor
    """(B, heads, t, width) of the tokens said so far."""
    new_values: Tensor


def layers(model: Any) -> list[LayerModules]:
    """Those of a `LlamaModel`."""
    found: list[LayerModules] = []
    for layer in model.layers:
        query, key, value, out, gate, up, down = products(layer)
        norms = layer.input_layernorm, layer.post_attention_layernorm
        found.append(LayerModules(norms[0], query, key, value, out, norms[1], gate, up, down, layer.self_attn.head_dim))
    return found


def each_of(turn: RotaryTables) -> list[RotaryTables]:
    """The rotations to each of T positions."""
    return [RotaryTables(turn.cos[:, :, t : t + 1], turn.sin[:, :, t : t + 1]) for t in range(turn.cos.shape[2])]


def read(
    stack: list[LayerModules], x: Tensor, turn: RotaryTables, mask: Tensor, last: Tensor
) -> tuple[Tensor, list[LayerCache]]:
    """The hidden state (B, 1, D), not normed yet, of the prefix's last token, and what is kept of all of it.

    Args:
        stack: layers.
        x: (B, L, D) embeddings.
        turn: to their positions.
        mask: (B, 1, L, L) what is added to scores.
        last: (B,) where the last token stands.
    """
    rows = torch.arange(len(x), device=x.device)
    asking, asked_at, seen = x, turn, mask
    kept: list[LayerCache] = []
    for layer in stack:
        normed = layer.norm(x)
        k, v = turn(heads(layer, layer.key(normed))), heads(layer, layer.value(normed))
        k, v = k.contiguous(), v.contiguous()
        kept.append(LayerCache(k, v, k[:, :, :0], v[:, :, :0]))
        if layer is stack[-1]:
            # what the others would say is not asked
            asking, normed, seen = x[rows, last][:, None], normed[rows, last][:, None], mask[rows, :, last][:, :, None]
            asked_at = RotaryTables(turn.cos[rows, :, last][:, :, None], turn.sin[rows, :, last][:, :, None])
        q = asked_at(heads(layer, layer.query(normed)))
        asking = x = after_attention(layer, asking, attend(q, k, v, seen))
    return asking, kept


def step(
    stack: list[LayerModules], x: Tensor, turn: RotaryTables, hidden_from: Tensor, kept: list[LayerCache]
) -> tuple[Tensor, list[LayerCache]]:
    """The hidden state (B, 1, D), not normed yet, of one token, and what is kept after it.

    Args:
        stack: layers.
        x: (B, 1, D) its embedding.
        turn: to its position.
        hidden_from: (B, 1, 1, L) what is added to scores of the prefix: the lowest number where there is a gap.
        kept: by layer.
    """
    after: list[LayerCache] = []
    for layer, memory in zip(stack, kept, strict=True):
        normed = layer.norm(x)
        q, k, v = (heads(layer, project(normed)) for project in (layer.query, layer.key, layer.value))
        memory = memory._replace(
            new_keys=torch.cat([memory.new_keys, turn(k)], dim=2), new_values=torch.cat([memory.new_values, v], dim=2)
        )
        after.append(memory)
        x = after_attention(layer, x, _attend(turn(q), memory, hidden_from))
    return x, after


def heads(layer: LayerModules, x: Tensor) -> Tensor:
    """(B, T, heads * width) to (B, heads, T, width)."""
    return x.unflatten(2, (-1, layer.head_width)).transpose(1, 2)


def after_attention(layer: LayerModules, x: Tensor, mixed: Tensor) -> Tensor:
    """The rest of a layer: what attention gave is added, then what the MLP makes of it."""
    x = x + layer.out(mixed)
    normed = layer.mlp_norm(x)
    return x + layer.down(silu(layer.gate(normed)) * layer.up(normed))


def _attend(q: Tensor, memory: LayerCache, hidden_from: Tensor) -> Tensor:
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
