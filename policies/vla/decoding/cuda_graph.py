"""A Llama on a GPU that goes on where nobody asks for gradients: each token is one launch.

A small model computes a token in less time than the host takes to launch its hundred kernels. So the prefix and the
step are captured as CUDA graphs when sentences of one shape come for the second time, and replayed from then on. Keys
and values lie where they lay at the capture, with room for the whole sentence; batches are filled up to powers of two,
so that rollouts in which fewer and fewer rows go on need few graphs.

The layers are called as they are, adapters and casts included. What a capture was made of is compared before each
sentence: a graph of weights that have moved, of adapters that were merged or of another cast is never replayed.
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
"""Of device that has graphs."""
LARGEST = 2**28
"""Bytes that keys and values of one batch may keep between sentences; larger ones cost more than their launches."""
ADAPTED = ("merged", "disable_adapters")
"""What `peft` may change about a layer without moving a weight."""

Function = Callable[..., Tensor]
Capture = Callable[[Function, tuple[Tensor, ...]], Function]


class PrefixTensors(NamedTuple):
    """What a sentence begins with, as tensors of fixed shapes."""

    embeddings: Tensor
    """(B, L, D)"""
    mask: Tensor
    """(B, 1, L, L) what is added to attention among them."""
    cos: Tensor
    """(B, 1, L, width) rotations to their positions."""
    sin: Tensor
    last: Tensor
    """(B,) where the last of them stands."""
    hidden_from: Tensor
    """(B, 1, 1, L) what is added to attention of all that comes after."""
    cos_behind: Tensor
    """(B, 1, T, width) rotations to the positions of T tokens after them."""
    sin_behind: Tensor


class CudaGraphDecoder:
    """Says sentences of one shape, by functions that are captured once.

    Args:
        model: a `LlamaModel`; only its layers are kept.
        example: the first sentence's beginning.
        capture: makes of a function and arguments what computes the same on other tensors of the same shapes.
    """

    def __init__(self, model: Any, example: PrefixTensors, capture: Capture) -> None:
        stack, norm = layers(model), model.norm
        rows, length, count = len(example.embeddings), example.embeddings.shape[1], example.cos_behind.shape[2]
        whole = length + count
        # of which type keys and values are is known once they are there: casts decide it
        _, first = _read(stack, example)
        memory = [
            Room(*(x.new_zeros((rows, x.shape[1], whole, x.shape[3])) for x in (of.keys, of.values))) for of in first
        ]
        hidden_from = example.hidden_from.new_zeros((rows, 1, 1, whole))
        turns = RotaryTables(torch.zeros_like(example.cos_behind), torch.zeros_like(example.sin_behind))
        places = torch.arange(whole, device=hidden_from.device)
        self._places = places[:count]
        self.sentences = 0
        """How many were begun: of two at a time the first one's keys are gone."""

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
            # what is yet to be said is hidden, as gaps are
            seen = hidden_from.masked_fill(places > at, torch.finfo(hidden_from.dtype).min)
            for layer, kept in zip(stack, memory, strict=True):
                x = after_attention(layer, x, _attend(layer, layer.norm(x), turn, seen, kept, at))
            return norm(x)

        self._begin = capture(begin, tuple(example))
        self._step = capture(step, (example.embeddings[:, :1].clone(), self._places[:1].clone()))

    def begin(self, prefix: PrefixTensors) -> Tensor:
        """The hidden state (B, 1, D) at the last token of each row's prefix."""
        self.sentences += 1
        return self._begin(*prefix)

    def step(self, new: Tensor, place: int) -> Tensor:
        """The hidden state (B, 1, D) of a token's embedding (B, 1, D), the `place`-th after the prefix."""
        return self._step(new, self._places[place : place + 1])


class GraphReader:
    """Goes on as this module describes; see `decode.reader`."""

    def __init__(self, model: Any, masks: Masks, at: Tensor, behind: Tensor, sayer: CudaGraphDecoder) -> None:
        self._model, self._masks, self._at, self._behind, self._sayer = model, masks, at, behind, sayer

    def read(self, embeddings: Tensor, last: Tensor) -> Tensor:
        """See `decode_parts.Reader`."""
        self._rows, self._said = len(embeddings), 0
        prefix = prefix_of(self._model, embeddings, last, self._masks, self._at, self._behind)
        hidden = self._sayer.begin(filled(prefix))
        self._sentence = self._sayer.sentences
        return hidden[: self._rows]

    def step(self, new: Tensor) -> Tensor:
        """See `decode_parts.Reader`.

        Raises:
            RuntimeError: another sentence of this shape was begun meanwhile.
        """
        if self._sayer.sentences != self._sentence:
            raise RuntimeError("a sentence goes on after another one of its shape was begun: expected one at a time")
        place, self._said = self._said, self._said + 1
        return self._sayer.step(_filled(new), place)[: self._rows]


class SentenceShape(NamedTuple):
    """Of sentences."""

    rows: int
    """A power of two."""
    prefix: int
    after: int
    """Tokens behind the prefix."""
    dtype: torch.dtype


class CaptureState(NamedTuple):
    """What a capture is true of."""

    parts: tuple[int, ...]
    """Which modules; those of a capture live on, so that no other takes their number."""
    addresses: tuple[int, ...]
    """Where the weights lie."""
    adapters: tuple[bool, ...]
    cast: torch.dtype | None


class _Known(NamedTuple):
    """A model's sentences."""

    state: CaptureState
    length: tuple[int, int]
    """L and T: graphs of other lengths are let go."""
    seen: set[SentenceShape]
    sayers: dict[SentenceShape, CudaGraphDecoder]


_KNOWN: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()


def graph_reader(model: Any, masks: Masks, at: Tensor, behind: Tensor) -> GraphReader | None:
    """What replays sentences of a shape that has been before; None for a first one, and where layers must be called.

    Args:
        model: a `LlamaModel`.
        masks: of the prefix.
        at: (B, L) positions of the prefix.
        behind: (B, T) those of T tokens after it.
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
    """Bytes, at most, that keys and values of sentences take."""
    width = cfg.num_key_value_heads * (cfg.head_dim or cfg.hidden_size // cfg.num_attention_heads)
    # float32, as rotated keys are whatever the network computes in
    return 2 * 4 * shape.rows * (shape.prefix + shape.after) * cfg.num_hidden_layers * width


def state_of(model: Any) -> CaptureState:
    """What a capture of a model is made of now."""
    parts = tuple(model.modules())
    addresses = tuple(weight.data_ptr() for weight in model.parameters())
    adapters = tuple(bool(getattr(part, flag)) for part in parts for flag in ADAPTED if hasattr(part, flag))
    kind = model.device.type
    cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return CaptureState(tuple(map(id, parts)), addresses, adapters, cast)


def prefix_of(model: Any, embeddings: Tensor, last: Tensor, masks: Masks, at: Tensor, behind: Tensor) -> PrefixTensors:
    """A sentence's beginning; see `decode.reader` and `decode_parts.Reader`."""
    turn, turns = turn_to(model, at, embeddings), turn_to(model, behind, embeddings)
    return PrefixTensors(embeddings, masks.prefix, turn.cos, turn.sin, last, masks.after, turns.cos, turns.sin)


def filled(prefix: PrefixTensors) -> PrefixTensors:
    """With rows of zeros up to a power of two."""
    return PrefixTensors(*(_filled(x) for x in prefix))


def _captured(model: Any, masks: Masks, at: Tensor, behind: Tensor) -> CudaGraphDecoder:
    """Graphs of the shape of a sentence whose words are not known yet."""
    # what lives on must be no tensor of inference, which nothing else may write to
    with torch.inference_mode(False), torch.no_grad():
        embeddings = torch.zeros((*at.shape, model.config.hidden_size), dtype=masks.after.dtype, device=at.device)
        ours = (embeddings, torch.zeros_like(at[:, 0]), Masks(*(x.clone() for x in masks)), at.clone(), behind.clone())
        return CudaGraphDecoder(model, filled(prefix_of(model, *ours)), _graph)


def _graph(function: Function, arguments: tuple[Tensor, ...]) -> Function:
    return CudaGraph(function, arguments, inputs=tuple(range(len(arguments))))


def _read(stack: list[LayerModules], prefix: PrefixTensors) -> Any:
    return read(stack, prefix.embeddings, RotaryTables(prefix.cos, prefix.sin), prefix.mask, prefix.last)


def _attend(layer: LayerModules, normed: Tensor, turn: RotaryTables, seen: Tensor, kept: Room, at: Tensor) -> Tensor:
    """(B, 1, heads * width) of one token that is put where it belongs, (1,) `at`, among what is kept."""
    asking, key, value = (heads(layer, project(normed)) for project in (layer.query, layer.key, layer.value))
    kept.keys.index_copy_(2, at, turn(key))
    kept.values.index_copy_(2, at, value)
    return attend(turn(asking), kept.keys, kept.values, seen)


def _filled(x: Tensor) -> Tensor:
    more = _power(len(x)) - len(x)
    return torch.cat([x, x.new_zeros((more, *x.shape[1:]))]) if more else x


def _power(rows: int) -> int:
    """The power of two that so many rows are filled up to."""
    return 1 << (rows - 1).bit_length()
