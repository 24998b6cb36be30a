"""Fast decoding for Llama policies on the CPU: float32, inference only.

The key-value cache is allocated once for the whole sequence and written in place. For two rows or more, the query, key
and value projections are one product, and so are the gate and up projections of the MLP; their matrices are reordered
for oneDNN first, once for all tokens. This copies the layers' weights for each sequence, which does not pay off for a
single row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, silu
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from robotrl.policies.vla.decoding.parts import (
    Map,
    Masks,
    RotaryTables,
    StaticKvCache,
    attend,
    has_hooks,
    products,
    rotary_tables,
)


def decodes_on_cpu(model: Any) -> bool:
    """Tell whether a `LlamaModel` can be decoded from its weights alone, without calling its layers.

    The layers must be called under gradients, tracing or autocast, and if a layer has an adapter or a hook.
    """
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return False
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    if has_hooks(model):
        return False
    leaves = [(part, nn.Linear) for layer in model.layers for part in products(layer)]
    norms = [norm for layer in model.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
    leaves += [(norm, LlamaRMSNorm) for norm in (*norms, model.norm)]
    return all(type(part) is kind for part, kind in leaves)


class CpuDecoder:
    """Decoder from the weights alone; see the module's docstring and `decode.reader`."""

    def __init__(self, model: Any, masks: Masks, at: Tensor, positions_after: Tensor) -> None:
        self._model, self._masks, self._positions, self._positions_after = model, masks, at, positions_after
        self._norm = _norm(model.norm)

    def read(self, embeddings: Tensor, last: Tensor) -> Tensor:
        """See `Decoder.read`."""
        x, model, length = embeddings, self._model, embeddings.shape[1]
        rows, whole = torch.arange(len(x), device=x.device), length + self._positions_after.shape[-1]
        self._layers = [_layer(layer, len(x)) for layer in model.layers]
        self._cache: list[StaticKvCache] = []
        rotary, mask = rotary_tables(model, self._positions, x), self._masks.prefix
        for layer in self._layers:
            queries, keys, values = _heads(layer, _normed(layer.norm, x), rotary)
            shape = (len(x), layer.shared, whole, layer.width)
            kv = StaticKvCache(keys.new_empty(shape), values.new_empty(shape))
            kv.keys[:, :, :length], kv.values[:, :, :length] = keys, values
            self._cache.append(kv)
            if layer is self._layers[-1]:
                # the last layer needs the query of the last token only
                queries, x = queries[rows, :, last][:, :, None], x[rows, last][:, None]
                mask = mask[rows, :, last][:, :, None]
            x = _after(layer, x, _attend(queries, kv, length, mask))
        self._rotary = rotary_tables(model, self._positions_after, x)
        # tokens after the prefix are never masked
        self._mask_after = x.new_zeros((len(x), 1, 1, whole))
        self._mask_after[..., :length] = self._masks.after
        self._length = self._prefix = length
        return _normed(self._norm, x)

    def step(self, new: Tensor) -> Tensor:
        """See `Decoder.step`."""
        x, place = new, self._length - self._prefix
        rotary = RotaryTables(*(part[:, :, place : place + 1] for part in self._rotary))
        at, self._length = self._length, self._length + 1
        mask = self._mask_after[..., : self._length]
        for layer, kv in zip(self._layers, self._cache, strict=True):
            queries, keys, values = _heads(layer, _normed(layer.norm, x), rotary)
            kv.keys[:, :, at : self._length], kv.values[:, :, at : self._length] = keys, values
            x = _after(layer, x, _attend(queries, kv, self._length, mask))
        return _normed(self._norm, x)


class Norm(NamedTuple):
    """Weights of an RMS norm."""

    weight: Tensor
    eps: float


class LayerWeights(NamedTuple):
    """Weights of a layer, as functions where they are matrices."""

    norm: Norm
    heads: Map
    """Projection to queries, keys and values, side by side."""
    out: Map
    mlp_norm: Norm
    gate_up: Map
    down: Map
    queries: int
    """Number of query heads."""
    shared: int
    """Number of key-value heads, each shared by a group of query heads."""
    width: int
    """Width of a head."""


def _layer(layer: Any, rows: int) -> LayerWeights:
    query, key, value, out, gate, up, down = products(layer)
    width = layer.self_attn.head_dim
    return LayerWeights(
        _norm(layer.input_layernorm),
        _map(rows, query, key, value),
        _map(rows, out),
        _norm(layer.post_attention_layernorm),
        _map(rows, gate, up),
        _map(rows, down),
        query.weight.shape[0] // width,
        key.weight.shape[0] // width,
        width,
    )


def _norm(norm: Any) -> Norm:
    return Norm(norm.weight, norm.variance_epsilon)


def _map(rows: int, first: Any, *others: Any) -> Map:
    """Linear layers of one input as one function, with their outputs side by side; reordered for `rows` above 1."""
    if rows == 1 or not torch.backends.mkldnn.is_available():
        if not others:
            return lambda x: linear(x, first.weight, first.bias)
        return lambda x: torch.cat([linear(x, each.weight, each.bias) for each in (first, *others)], dim=-1)
    weight, bias = first.weight, first.bias
    if others:
        weight = torch.cat([weight, *(each.weight for each in others)])
        bias = None if bias is None else torch.cat([bias, *(each.bias for each in others)])
    ops: Any = torch.ops.mkldnn
    ordered = ops._reorder_linear_weight(weight.detach(), None)
    return lambda x: ops._linear_pointwise(x, ordered, bias, "none", [], "")


def _normed(norm: Norm, x: Tensor) -> Tensor:
    return rms_norm(x, x.shape[-1:], norm.weight, norm.eps)


def _heads(layer: LayerWeights, normed: Tensor, rotary: RotaryTables) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B, heads, T, width), the former two with rotary positions."""
    found = layer.heads(normed).unflatten(2, (-1, layer.width)).transpose(1, 2)
    heads, values = found.split([layer.queries + layer.shared, layer.shared], dim=1)
    queries, keys = rotary(heads).split([layer.queries, layer.shared], dim=1)
    return queries, keys, values


def _attend(queries: Tensor, kv: StaticKvCache, length: int, mask_after: Tensor) -> Tensor:
    """Attention (B, Q, heads * width) of queries (B, heads, Q, width) to the first `length` cached tokens."""
    return attend(queries, kv.keys[:, :, :length], kv.values[:, :, :length], mask_after)


def _after(layer: LayerWeights, x: Tensor, mixed: Tensor) -> Tensor:
    """Rest of a layer after attention: output projection and MLP, each with its residual."""
    x = x + layer.out(mixed)
    gate, up = layer.gate_up(_normed(layer.mlp_norm, x)).chunk(2, dim=-1)
    return x + layer.down(silu(gate) * up)
