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

from robotrl.policies.vla.decoding.parts import Map, Masks, RotaryTables, attend, products, rotary_tables


class LlamaDecoder:
    """Decoder through the model's layers; see the module's docstring and `decode.reader`."""

    def __init__(self, model: Any, masks: Masks, at: Tensor, positions_after: Tensor) -> None:
        self._model, self._masks, self._positions, self._positions_after = model, masks, at, positions_after
        self._stack = layers(model)
        self._cache: list[LayerCache] = []

    def read(self, embeddings: Tensor, last: Tensor) -> Tensor:
        """See `Decoder.read`."""
        rotary = rotary_tables(self._model, self._positions, embeddings)
        hidden, self._cache = read(self._stack, embeddings, rotary, self._masks.prefix, last)
        self._rotary = iter(each_of(rotary_tables(self._model, self._positions_after, hidden)))
        return self._model.norm(hidden)

    def step(self, new: Tensor) -> Tensor:
        """See `Decoder.step`."""
        hidden, self._cache = step(self._stack, new, next(self._rotary), self._masks.after, self._cache)
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


def each_of(rotary: RotaryTables) -> list[RotaryTables]:
    """Split rotary tables into one for each of T positions."""
    return [RotaryTables(rotary.cos[:, :, t : t + 1], rotary.sin[:, :, t : t + 1]) for t in range(rotary.cos.shape[2])]


def read(
    stack: list[LayerModules], x: Tensor, rotary: RotaryTables, mask: Tensor, last: Tensor
) -> tuple[Tensor, list[LayerCache]]:
    """Run the prefix: hidden state (B, 1, D) of its last token, before the final norm, and the cache by layer.

    Args:
        stack: layers.
        x: (B, L, D) embeddings.
        rotary: rotary tables of the prefix.
        mask: (B, 1, L, L) additive attention mask.
        last: (B,) index of the last token.
    """
    rows = torch.arange(len(x), device=x.device)
    query_input, query_rotary, query_mask = x, rotary, mask
    kv: list[LayerCache] = []
    for layer in stack:
        normed = layer.norm(x)
        k, v = rotary(heads(layer, layer.key(normed))), heads(layer, layer.value(normed))
        k, v = k.contiguous(), v.contiguous()
        kv.append(LayerCache(k, v, k[:, :, :0], v[:, :, :0]))
        if layer is stack[-1]:
            # the last layer needs the query of the last token only
            query_input, normed, query_mask = (
                x[rows, last][:, None],
                normed[rows, last][:, None],
                mask[rows, :, last][:, :, None],
            )
            query_rotary = RotaryTables(rotary.cos[rows, :, last][:, :, None], rotary.sin[rows, :, last][:, :, None])
        q = query_rotary(heads(layer, layer.query(normed)))
        query_input = x = after_attention(layer, query_input, attend(q, k, v, query_mask))
    return query_input, kv


def step(
    stack: list[LayerModules], x: Tensor, rotary: RotaryTables, mask_after: Tensor, kv: list[LayerCache]
) -> tuple[Tensor, list[LayerCache]]:
    """Run one token: its hidden state (B, 1, D), before the final norm, and the extended cache by layer.

    Args:
        stack: layers.
        x: (B, 1, D) embedding of the token.
        rotary: rotary tables of its position.
        mask_after: (B, 1, 1, L) additive attention mask of the prefix: the lowest number at a gap.
        kv: cache by layer.
    """
    after: list[LayerCache] = []
    for layer, memory in zip(stack, kv, strict=True):
        normed = layer.norm(x)
        q, k, v = (heads(layer, project(normed)) for project in (layer.query, layer.key, layer.value))
        memory = memory._replace(
            new_keys=torch.cat([memory.new_keys, rotary(k)], dim=2), new_values=torch.cat([memory.new_values, v], dim=2)
        )
        after.append(memory)
        x = after_attention(layer, x, _attend(rotary(q), memory, mask_after))
    return x, after


def heads(layer: LayerModules, x: Tensor) -> Tensor:
    """Split heads: (B, T, heads * width) to (B, heads, T, width)."""
    return x.unflatten(2, (-1, layer.head_width)).transpose(1, 2)


def after_attention(layer: LayerModules, x: Tensor, mixed: Tensor) -> Tensor:
    """Rest of a layer after attention: output projection and MLP, each with its residual."""
    x = x + layer.out(mixed)
    normed = layer.mlp_norm(x)
    return x + layer.down(silu(layer.gate(normed)) * layer.up(normed))


def _attend(q: Tensor, memory: LayerCache, mask_after: Tensor) -> Tensor:
    """Attention (B, 1, heads * width) of one token's queries (B, heads, 1, width), with grouped key heads."""
    batch, heads, _, width = q.shape
    shared = memory.keys.shape[1]
    # queries that share keys are the rows of one product
    q = q.reshape(batch, shared, heads // shared, width) / math.sqrt(width)
    before = q @ memory.keys.transpose(2, 3) + mask_after
    since = q @ memory.new_keys.transpose(2, 3)
    share = torch.cat([before, since], dim=3).softmax(dim=3)
    length = memory.keys.shape[2]
    out = share[..., :length] @ memory.values + share[..., length:] @ memory.new_values
    return out.reshape(batch, 1, heads * width)
