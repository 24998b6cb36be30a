"""Choice of the decoder for a language model.

Any model of `transformers` can decode with its own cache. For a Llama there are faster decoders: `decoding.llama` calls
its layers; `decoding.cpu` and `decoding.cuda_graph` are for inference without hooks on the layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaModel

from robotrl.policies.vla.decoding.cpu import PlainReader, is_plain
from robotrl.policies.vla.decoding.cuda_graph import graph_reader
from robotrl.policies.vla.decoding.llama import LlamaReader
from robotrl.policies.vla.decoding.parts import Decoder, Masks


def reader(model: Any, masks: Masks, at: Tensor, behind: Tensor) -> Decoder:
    """The fastest decoder that a language model allows.

    Args:
        model: a model of `transformers`, from embeddings to hidden states.
        masks: attention masks of the prefix.
        at: (B, L) or (n, B, L) positions of the prefix.
        behind: (B, T) or (n, B, T) positions of the T tokens after it.
    """
    # a subclass may compute otherwise, and our decoders support the published activation only
    if type(model) is not LlamaModel or model.config.hidden_act != "silu":
        return CachedReader(model, masks, at, behind)
    if replayed := graph_reader(model, masks, at, behind):
        return replayed
    return (PlainReader if is_plain(model) else LlamaReader)(model, masks, at, behind)


class CachedReader:
    """Decoder with the key-value cache of `transformers`; see `reader`."""

    def __init__(self, model: Any, masks: Masks, at: Tensor, behind: Tensor) -> None:
        self._model, self._masks, self._at, self._behind = model, masks, at, behind
        self._cache: Any = DynamicCache()
        self._steps = 0

    def read(self, embeddings: Tensor, last: Tensor) -> Tensor:
        """See `Decoder.read`."""
        hidden = self._go(embeddings, self._masks.prefix, self._at)
        return hidden[torch.arange(len(hidden), device=hidden.device), last][:, None]

    def step(self, new: Tensor) -> Tensor:
        """See `Decoder.step`."""
        at = self._behind[..., self._steps : self._steps + 1]
        self._steps += 1
        since = self._masks.after.new_zeros((len(new), 1, 1, self._steps))
        return self._go(new, torch.cat([self._masks.after, since], dim=3), at)

    def _go(self, inputs: Tensor, mask: Tensor, at: Tensor) -> Tensor:
        out = self._model(
            inputs_embeds=inputs, attention_mask=mask, position_ids=at, past_key_values=self._cache, use_cache=True
        )
        return out.last_hidden_state
