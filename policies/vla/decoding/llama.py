"""Decoding for Llama policies through the model's own layers: works with gradients, tracing, autocast and adapters.

`transformers` computes the last layer for the whole prefix, of which one token is needed, and copies the cache for each
new key. Here the last layer is computed for the prefix's last token alone, the prefix's cache is not copied, and rotary
tables and masks are computed once for all tokens.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu

from robotrl.policies.vla.decoding.parts import Map, Masks, RotaryTables, attend, products, turn_to


class LlamaReader:
    """Decoder through the model's layers; see the module's docstring and `decode.reader`."""

    def __init__(self, model: Any, masks: Masks, at: Tensor, behind: Tensor) -> None:
        self._model, self._masks, self._at, self._behind = model, masks, at, behind
        self._stack = layers(model)
        self._kept: list[LayerCache] = []

    def read(self, embeddings: Tensor, last: Tensor) -> Tensor:
        """See `Decoder.read`."""
        turn = turn_to(self._model, self._at, embeddings)
        hidden, self._kept = read(self._stack, embeddings, turn, self._masks.prefix, last)
        self._turns = iter(each_of(turn_to(self._model, self._behind, hidden)))
        return self._model.norm(hidden)

    def step(self, new: Tensor) -> Tensor:
        """See `Decoder.step`."""
        hidden, self._kept = step(self._stack, new, next(self._turns), self._masks.after, self._kept)
        return self._model.norm(hidden)


class LayerModules(NamedTuple):
    """Modules of a Llama layer."""

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
    """Key-value cache of a layer; new tokens are apart, so that the prefix is not copied for each token."""

    keys: Tensor
    """(B, heads, L, width) keys of the prefix, with rotary positions."""
    values: Tensor
    """(B, heads, L, width)"""
    new_keys: Tensor
    """(B, heads, t, width) keys of the tokens decoded so far."""
    new_values: Tensor


def layers(model: Any) -> list[LayerModules]:
    """Layers of a `LlamaModel`."""
    found: list[LayerModules] = []
    for layer in model.layers:
        query, key, value, out, gate, up, down = products(layer)
        norms = layer.input_layernorm, layer.post_attention_layernorm
        found.append(LayerModules(norms[0], query, key, value, out, norms[1], gate, up, down, layer.self_attn.head_dim))
    return found


def each_of(turn: RotaryTables) -> list[RotaryTables]:
    """Split rotary tables into one for each of T positions."""
    return [RotaryTables(turn.cos[:, :, t : t + 1], turn.sin[:, :, t : t + 1]) for t in range(turn.cos.shape[2])]


def read(
    stack: list[LayerModules], x: Tensor, turn: RotaryTables, mask: Tensor, last: Tensor
) -> tuple[Tensor, list[LayerCache]]:
    """Run the prefix: hidden state (B, 1, D) of its last token, before the final norm, and the cache by layer.

    Args:
        stack: layers.
        x: (B, L, D) embeddings.
        turn: rotary tables of the prefix.
        mask: (B, 1, L, L) additive attention mask.
        last: (B,) index of the last token.
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
            # the last layer needs the query of the last token only
            asking, normed, seen = x[rows, last][:, None], normed[rows, last][:, None], mask[rows, :, last][:, :, None]
            asked_at = RotaryTables(turn.cos[rows, :, last][:, :, None], turn.sin[rows, :, last][:, :, None])
        q = asked_at(heads(layer, layer.query(normed)))
        asking = x = after_attention(layer, asking, attend(q, k, v, seen))
    return asking, kept


def step(
    stack: list[LayerModules], x: Tensor, turn: RotaryTables, hidden_from: Tensor, kept: list[LayerCache]
) -> tuple[Tensor, list[LayerCache]]:
    """Run one token: its hidden state (B, 1, D), before the final norm, and the extended cache by layer.

    Args:
        stack: layers.
        x: (B, 1, D) embedding of the token.
        turn: rotary tables of its position.
        hidden_from: (B, 1, 1, L) additive attention mask of the prefix: the lowest number at a gap.
        kept: cache by layer.
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
    """Split heads: (B, T, heads * width) to (B, heads, T, width)."""
    return x.unflatten(2, (-1, layer.head_width)).transpose(1, 2)


def after_attention(layer: LayerModules, x: Tensor, mixed: Tensor) -> Tensor:
    """Rest of a layer after attention: output projection and MLP, each with its residual."""
    x = x + layer.out(mixed)
    normed = layer.mlp_norm(x)
    return x + layer.down(silu(layer.gate(normed)) * layer.up(normed))


def _attend(q: Tensor, memory: LayerCache, hidden_from: Tensor) -> Tensor:
    """Attention (B, 1, heads * width) of one token's queries (B, heads, 1, width), with grouped key heads."""
    batch, heads, _, width = q.shape
    shared = memory.keys.shape[1]
    # queries that share keys are the rows of one product
    q = q.reshape(batch, shared, heads // shared, width) / math.sqrt(width)
    before = q @ memory.keys.transpose(2, 3) + hidden_from
    since = q @ memory.new_keys.transpose(2, 3)
    share = torch.cat([before, since], dim=3).softmax(dim=3)
    length = memory.keys.shape[2]
    out = share[..., :length] @ memory.values + share[..., length:] @ memory.new_values
    return out.reshape(batch, 1, heads * width)
