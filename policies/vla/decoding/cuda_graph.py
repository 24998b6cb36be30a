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
from robotrl.policies.vla.decoding.parts import Masks, Room, RotaryTables, attend, is_heard, turn_to
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
    hidden_from: Tensor
    """(B, 1, 1, L) additive attention mask of the prefix for later tokens."""
    cos_behind: Tensor
    """(B, 1, T, width) rotary tables of the T tokens after the prefix."""
    sin_behind: Tensor


class CudaGraphDecoder:
    """Decoder of sequences of one shape by two captured functions, for the prefix and for a token.

    Args:
        model: a `LlamaModel`; it keeps references to the layers only.
        example: prefix of the first sequence.
        capture: captures a function with example arguments, to be called on other tensors of the same shapes.
    """

    def __init__(self, model: Any, example: PrefixTensors, capture: Capture) -> None:
        stack, norm = layers(model), model.norm
        rows, length, count = len(example.embeddings), example.embeddings.shape[1], example.cos_behind.shape[2]
        whole = length + count
        # a first pass shows the dtype of keys and values, which depends on autocast
        _, first = _read(stack, example)
        memory = [
            Room(*(x.new_zeros((rows, x.shape[1], whole, x.shape[3])) for x in (of.keys, of.values))) for of in first
        ]
        hidden_from = example.hidden_from.new_zeros((rows, 1, 1, whole))
        turns = RotaryTables(torch.zeros_like(example.cos_behind), torch.zeros_like(example.sin_behind))
        places = torch.arange(whole, device=hidden_from.device)
        self._places = places[:count]
        self.sentences = 0
        """Number of sequences begun; a new one overwrites the cache of the one before."""

        def begin(*prefix: Tensor) -> Tensor:
            given = PrefixTensors(*prefix)
            hidden, found = _read(stack, given)
            for kept, of in zip(memory, found, strict=True):
                kept.keys[:, :, :length], kept.values[:, :, :length] = of.keys, of.values
            hidden_from[..., :length] = given.hidden_from
            turns.cos.copy_(given.cos_behind)
            turns.sin.copy_(given.sin_behind)
            return norm(hidden)

        def step(x: Tensor, place: Tensor) -> Tensor:
            at = place + length
            turn = RotaryTables(turns.cos.index_select(2, place), turns.sin.index_select(2, place))
            # tokens not decoded yet are masked, as gaps are
            seen = hidden_from.masked_fill(places > at, torch.finfo(hidden_from.dtype).min)
            for layer, kept in zip(stack, memory, strict=True):
                x = after_attention(layer, x, _attend(layer, layer.norm(x), turn, seen, kept, at))
            return norm(x)

        self._begin = capture(begin, tuple(example))
        self._step = capture(step, (example.embeddings[:, :1].clone(), self._places[:1].clone()))

    def begin(self, prefix: PrefixTensors) -> Tensor:
        """Run the prefix: hidden state (B, 1, D) at the last token of each row."""
        self.sentences += 1
        return self._begin(*prefix)

    def step(self, new: Tensor, place: int) -> Tensor:
        """Run one token (B, 1, D), the `place`-th after the prefix: its hidden state (B, 1, D)."""
        return self._step(new, self._places[place : place + 1])


class GraphReader:
    """Decoder that replays CUDA graphs; see the module's docstring and `decode.reader`."""

    def __init__(self, model: Any, masks: Masks, at: Tensor, behind: Tensor, sayer: CudaGraphDecoder) -> None:
        self._model, self._masks, self._at, self._behind, self._sayer = model, masks, at, behind, sayer

    def read(self, embeddings: Tensor, last: Tensor) -> Tensor:
        """See `Decoder.read`."""
        self._rows, self._said = len(embeddings), 0
        prefix = prefix_of(self._model, embeddings, last, self._masks, self._at, self._behind)
        hidden = self._sayer.begin(filled(prefix))
        self._sentence = self._sayer.sentences
        return hidden[: self._rows]

    def step(self, new: Tensor) -> Tensor:
        """See `Decoder.step`.

        Raises:
            RuntimeError: another sequence of this shape was begun meanwhile.
        """
        if self._sayer.sentences != self._sentence:
            raise RuntimeError("a sentence goes on after another one of its shape was begun: expected one at a time")
        place, self._said = self._said, self._said + 1
        return self._sayer.step(_filled(new), place)[: self._rows]


class SentenceShape(NamedTuple):
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
    seen: set[SentenceShape]
    sayers: dict[SentenceShape, CudaGraphDecoder]


_KNOWN: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()


def graph_reader(model: Any, masks: Masks, at: Tensor, behind: Tensor) -> GraphReader | None:
    """Graph decoder for a shape seen before; None for a new shape and where graphs are not possible.

    Args:
        model: a `LlamaModel`.
        masks: attention masks of the prefix.
        at: (B, L) positions of the prefix.
        behind: (B, T) positions of the T tokens after it.
    """
    if model.device.type != KIND or torch.is_grad_enabled() or torch.compiler.is_compiling() or is_heard(model):
        return None
    shape = SentenceShape(_power(len(at)), at.shape[1], behind.shape[1], masks.after.dtype)
    if not shape.after or kept_bytes(model.config, shape) > LARGEST:
        return None
    state, length = state_of(model), (shape.prefix, shape.after)
    known = _KNOWN.get(model)
    if known is None or known.state != state or known.length != length:
        known = _KNOWN[model] = _Known(state, length, set(), {})
    if shape not in known.seen:
        known.seen.add(shape)
        return None
    if shape not in known.sayers:
        known.sayers[shape] = _captured(model, masks, at, behind)
    return GraphReader(model, masks, at, behind, known.sayers[shape])


def kept_bytes(cfg: Any, shape: SentenceShape) -> int:
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


def prefix_of(model: Any, embeddings: Tensor, last: Tensor, masks: Masks, at: Tensor, behind: Tensor) -> PrefixTensors:
    """Inputs of the prefix pass; for the arguments see `decode.reader` and `Decoder.read`."""
    turn, turns = turn_to(model, at, embeddings), turn_to(model, behind, embeddings)
    return PrefixTensors(embeddings, masks.prefix, turn.cos, turn.sin, last, masks.after, turns.cos, turns.sin)


def filled(prefix: PrefixTensors) -> PrefixTensors:
    """Pad the batch with rows of zeros to a power of two."""
    return PrefixTensors(*(_filled(x) for x in prefix))


def _captured(model: Any, masks: Masks, at: Tensor, behind: Tensor) -> CudaGraphDecoder:
    """Capture the graphs of a shape, on embeddings of zeros."""
    # static tensors must be no inference tensors, which cannot be written to outside inference mode
    with torch.inference_mode(False), torch.no_grad():
        embeddings = torch.zeros((*at.shape, model.config.hidden_size), dtype=masks.after.dtype, device=at.device)
        ours = (embeddings, torch.zeros_like(at[:, 0]), Masks(*(x.clone() for x in masks)), at.clone(), behind.clone())
        return CudaGraphDecoder(model, filled(prefix_of(model, *ours)), _graph)


def _graph(function: Function, arguments: tuple[Tensor, ...]) -> Function:
    return CudaGraph(function, arguments, inputs=tuple(range(len(arguments))))


def _read(stack: list[LayerModules], prefix: PrefixTensors) -> Any:
    return read(stack, prefix.embeddings, RotaryTables(prefix.cos, prefix.sin), prefix.mask, prefix.last)


def _attend(layer: LayerModules, normed: Tensor, turn: RotaryTables, seen: Tensor, kept: Room, at: Tensor) -> Tensor:
    """Attention (B, 1, heads * width) of one token, which is written to the cache at index `at` (1,) first."""
    asking, key, value = (heads(layer, project(normed)) for project in (layer.query, layer.key, layer.value))
    kept.keys.index_copy_(2, at, turn(key))
    kept.values.index_copy_(2, at, value)
    return attend(turn(asking), kept.keys, kept.values, seen)


def _filled(x: Tensor) -> Tensor:
    more = _power(len(x)) - len(x)
    return torch.cat([x, x.new_zeros((more, *x.shape[1:]))]) if more else x


def _power(rows: int) -> int:
    """The next power of two."""
    return 1 << (rows - 1).bit_length()
