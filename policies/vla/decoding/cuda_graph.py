"""CUDA-graph decoding for Llama policies (inference only).

For a small model, launching a token's hundred kernels takes longer than running them. So the prefix pass and the token
step are captured as CUDA graphs when a shape of sequences occurs for the second time, and replayed from then on. The
key-value cache is static and allocated for the whole sequence; batches are padded to powers of two, so that rollouts
with fewer and fewer active rows need few graphs.

The layers are called as modules, with adapters and autocast. Before each sequence the state of the capture is compared:
a graph is never replayed after weights were moved, adapters were merged or the autocast dtype has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from robotrl.policies.vla.decoding.llama import LayerModules, after_attention, heads, layers, read
from robotrl.policies.vla.decoding.parts import Masks, RotaryTables, StaticKvCache, attend, has_hooks, rotary_tables
from robotrl.utils.cuda_graph import CudaGraph

KIND = "cuda"
"""Device type with CUDA graphs."""
LARGEST = 2**28
"""Largest key-value cache of a batch kept for graphs, in bytes; beyond it, graphs do not pay off."""
ADAPTED = ("merged", "disable_adapters")
"""Flags of `peft` layers that change the computation without moving a weight."""

Function = Callable[..., Tensor]
Capture = Callable[[Function, tuple[Tensor, ...]], Function]


class PrefixTensors(NamedTuple):
    """Inputs of the prefix pass, as tensors of fixed shapes."""

    embeddings: Tensor
    """(B, L, D)"""
    mask: Tensor
    """(B, 1, L, L) additive attention mask of the prefix."""
    cos: Tensor
    """(B, 1, L, width) rotary tables of the prefix."""
    sin: Tensor
    last: Tensor
    """(B,) index of the last prefix token."""
    mask_after: Tensor
    """(B, 1, 1, L) additive attention mask of the prefix for later tokens."""
    cos_after: Tensor
    """(B, 1, T, width) rotary tables of the T tokens after the prefix."""
    sin_after: Tensor


class DecoderGraphs:
    """Decoder of sequences of one shape by two captured functions, for the prefix and for a token.

    Args:
        model: a `LlamaModel`; it keeps references to the layers only.
        example: prefix of the first sequence.
        capture: captures a function with example arguments, to be called on other tensors of the same shapes.
    """

    def __init__(self, model: Any, example: PrefixTensors, capture: Capture) -> None:
        stack, norm = layers(model), model.norm
        rows, length, count = len(example.embeddings), example.embeddings.shape[1], example.cos_after.shape[2]
        whole = length + count
        # a first pass shows the dtype of keys and values, which depends on autocast
        _, first = _read(stack, example)
        memory = [
            StaticKvCache(*(x.new_zeros((rows, x.shape[1], whole, x.shape[3])) for x in (of.keys, of.values)))
            for of in first
        ]
        mask_after = example.mask_after.new_zeros((rows, 1, 1, whole))
        rotary_after = RotaryTables(torch.zeros_like(example.cos_after), torch.zeros_like(example.sin_after))
        places = torch.arange(whole, device=mask_after.device)
        self._places = places[:count]
        self.sequences = 0
        """Number of sequences begun; a new one overwrites the cache of the one before."""

        def begin(*prefix: Tensor) -> Tensor:
            given = PrefixTensors(*prefix)
            hidden, found = _read(stack, given)
            for kv, of in zip(memory, found, strict=True):
                kv.keys[:, :, :length], kv.values[:, :, :length] = of.keys, of.values
            mask_after[..., :length] = given.mask_after
            rotary_after.cos.copy_(given.cos_after)
            rotary_after.sin.copy_(given.sin_after)
            return norm(hidden)

        def step(x: Tensor, place: Tensor) -> Tensor:
            at = place + length
            rotary = RotaryTables(rotary_after.cos.index_select(2, place), rotary_after.sin.index_select(2, place))
            # tokens not decoded yet are masked, as gaps are
            mask = mask_after.masked_fill(places > at, torch.finfo(mask_after.dtype).min)
            for layer, kv in zip(stack, memory, strict=True):
                x = after_attention(layer, x, _attend(layer, layer.norm(x), rotary, mask, kv, at))
            return norm(x)

        self._begin = capture(begin, tuple(example))
        self._step = capture(step, (example.embeddings[:, :1].clone(), self._places[:1].clone()))

    def begin(self, prefix: PrefixTensors) -> Tensor:
        """Run the prefix: hidden state (B, 1, D) at the last token of each row."""
        self.sequences += 1
        return self._begin(*prefix)

    def step(self, new: Tensor, place: int) -> Tensor:
        """Run one token (B, 1, D), the `place`-th after the prefix: its hidden state (B, 1, D)."""
        return self._step(new, self._places[place : place + 1])


class CudaGraphDecoder:
    """Decoder that replays CUDA graphs; see the module's docstring and `decode.reader`."""

    def __init__(self, model: Any, masks: Masks, at: Tensor, positions_after: Tensor, graphs: DecoderGraphs) -> None:
        self._model, self._masks, self._positions, self._positions_after, self._graphs = (
            model,
            masks,
            at,
            positions_after,
            graphs,
        )

    def read(self, embeddings: Tensor, last: Tensor) -> Tensor:
        """See `Decoder.read`."""
        self._rows, self._step_index = len(embeddings), 0
        prefix = prefix_of(self._model, embeddings, last, self._masks, self._positions, self._positions_after)
        hidden = self._graphs.begin(filled(prefix))
        self._sentence = self._graphs.sequences
        return hidden[: self._rows]

    def step(self, new: Tensor) -> Tensor:
        """See `Decoder.step`.

        Raises:
            RuntimeError: another sequence of this shape was begun meanwhile.
        """
        if self._graphs.sequences != self._sentence:
            raise RuntimeError("a sentence goes on after another one of its shape was begun: expected one at a time")
        place, self._step_index = self._step_index, self._step_index + 1
        return self._graphs.step(_filled(new), place)[: self._rows]


class SequenceShape(NamedTuple):
    """Shape of sequences that share a graph."""

    rows: int
    """A power of two."""
    prefix: int
    after: int
    """Tokens after the prefix."""
    dtype: torch.dtype


class CaptureState(NamedTuple):
    """Everything about a model that a captured graph depends on."""

    parts: tuple[int, ...]
    """`id` of each module; a capture keeps its modules alive, so that no other gets the same id."""
    addresses: tuple[int, ...]
    """Memory addresses of the weights."""
    adapters: tuple[bool, ...]
    cast: torch.dtype | None


class _Known(NamedTuple):
    """Graphs of a model and the shapes seen so far."""

    state: CaptureState
    length: tuple[int, int]
    """L and T: graphs of other lengths are dropped."""
    seen: set[SequenceShape]
    graphs: dict[SequenceShape, DecoderGraphs]


_KNOWN: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()


def graph_decoder(model: Any, masks: Masks, at: Tensor, positions_after: Tensor) -> CudaGraphDecoder | None:
    """Graph decoder for a shape seen before; None for a new shape and where graphs are not possible.

    Args:
        model: a `LlamaModel`.
        masks: attention masks of the prefix.
        at: (B, L) positions of the prefix.
        positions_after: (B, T) positions of the T tokens after it.
    """
    if model.device.type != KIND or torch.is_grad_enabled() or torch.compiler.is_compiling() or has_hooks(model):
        return None
    shape = SequenceShape(_power(len(at)), at.shape[1], positions_after.shape[1], masks.after.dtype)
    if not shape.after or cache_bytes(model.config, shape) > LARGEST:
        return None
    state, length = state_of(model), (shape.prefix, shape.after)
    known = _KNOWN.get(model)
    if known is None or known.state != state or known.length != length:
        known = _KNOWN[model] = _Known(state, length, set(), {})
    if shape not in known.seen:
        known.seen.add(shape)
        return None
    if shape not in known.graphs:
        known.graphs[shape] = _captured(model, masks, at, positions_after)
    return CudaGraphDecoder(model, masks, at, positions_after, known.graphs[shape])


def cache_bytes(cfg: Any, shape: SequenceShape) -> int:
    """Upper bound on the size of the key-value cache, in bytes."""
    width = cfg.num_key_value_heads * (cfg.head_dim or cfg.hidden_size // cfg.num_attention_heads)
    # rotated keys are float32 whatever the network computes in
    return 2 * 4 * shape.rows * (shape.prefix + shape.after) * cfg.num_hidden_layers * width


def state_of(model: Any) -> CaptureState:
    """Current `CaptureState` of a model."""
    parts = tuple(model.modules())
    addresses = tuple(weight.data_ptr() for weight in model.parameters())
    adapters = tuple(bool(getattr(part, flag)) for part in parts for flag in ADAPTED if hasattr(part, flag))
    kind = model.device.type
    cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return CaptureState(tuple(map(id, parts)), addresses, adapters, cast)


def prefix_of(
    model: Any, embeddings: Tensor, last: Tensor, masks: Masks, at: Tensor, positions_after: Tensor
) -> PrefixTensors:
    """Inputs of the prefix pass; for the arguments see `decode.reader` and `Decoder.read`."""
    rotary, rotary_after = rotary_tables(model, at, embeddings), rotary_tables(model, positions_after, embeddings)
    return PrefixTensors(
        embeddings, masks.prefix, rotary.cos, rotary.sin, last, masks.after, rotary_after.cos, rotary_after.sin
    )


def filled(prefix: PrefixTensors) -> PrefixTensors:
    """Pad the batch with rows of zeros to a power of two."""
    return PrefixTensors(*(_filled(x) for x in prefix))


def _captured(model: Any, masks: Masks, at: Tensor, positions_after: Tensor) -> DecoderGraphs:
    """Capture the graphs of a shape, on embeddings of zeros."""
    # static tensors must be no inference tensors, which cannot be written to outside inference mode
    with torch.inference_mode(False), torch.no_grad():
        embeddings = torch.zeros((*at.shape, model.config.hidden_size), dtype=masks.after.dtype, device=at.device)
        ours = (
            embeddings,
            torch.zeros_like(at[:, 0]),
            Masks(*(x.clone() for x in masks)),
            at.clone(),
            positions_after.clone(),
        )
        return DecoderGraphs(model, filled(prefix_of(model, *ours)), _graph)


def _graph(function: Function, arguments: tuple[Tensor, ...]) -> Function:
    return CudaGraph(function, arguments, inputs=tuple(range(len(arguments))))


def _read(stack: list[LayerModules], prefix: PrefixTensors) -> Any:
    return read(stack, prefix.embeddings, RotaryTables(prefix.cos, prefix.sin), prefix.mask, prefix.last)


def _attend(
    layer: LayerModules, normed: Tensor, rotary: RotaryTables, mask: Tensor, kv: StaticKvCache, at: Tensor
) -> Tensor:
    """Attention (B, 1, heads * width) of one token, which is written to the cache at index `at` (1,) first."""
    query, key, value = (heads(layer, project(normed)) for project in (layer.query, layer.key, layer.value))
    kv.keys.index_copy_(2, at, rotary(key))
    kv.values.index_copy_(2, at, value)
    return attend(rotary(query), kv.keys, kv.values, mask)


def _filled(x: Tensor) -> Tensor:
    more = _power(len(x)) - len(x)
    return torch.cat([x, x.new_zeros((more, *x.shape[1:]))]) if more else x


def _power(rows: int) -> int:
    """The next power of two."""
    return 1 << (rows - 1).bit_length()
