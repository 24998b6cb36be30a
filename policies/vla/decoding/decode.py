"""Choice of the decoder for a language model.

Any model of `transformers` can decode with its own cache. For a Llama there are faster decoders: `decoding.llama` calls
its layers; `decoding.cpu` and `decoding.cuda_graph` are for inference without hooks on the layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaModel

from robotrl.policies.vla.decoding.cpu import CpuDecoder, decodes_on_cpu
from robotrl.policies.vla.decoding.cuda_graph import graph_decoder
from robotrl.policies.vla.decoding.llama import LlamaDecoder
from robotrl.policies.vla.decoding.parts import Decoder, Masks


def decoder(model: Any, masks: Masks, at: Tensor, positions_after: Tensor) -> Decoder:
    """The fastest decoder that a language model allows.

    Args:
        model: a model of `transformers`, from embeddings to hidden states.
        masks: attention masks of the prefix.
        at: (B, L) or (n, B, L) positions of the prefix.
        positions_after: (B, T) or (n, B, T) positions of the T tokens after it.
    """
    # a subclass may compute otherwise, and our decoders support the published activation only
    if type(model) is not LlamaModel or model.config.hidden_act != "silu":
        return CachedDecoder(model, masks, at, positions_after)
    if replayed := graph_decoder(model, masks, at, positions_after):
        return replayed
    return (CpuDecoder if decodes_on_cpu(model) else LlamaDecoder)(model, masks, at, positions_after)


class CachedDecoder:
    """Decoder with the key-value cache of `transformers`; see `decoder`."""

    def __init__(self, model: Any, masks: Masks, at: Tensor, positions_after: Tensor) -> None:
        self._model, self._masks, self._positions, self._positions_after = model, masks, at, positions_after
        self._cache: Any = DynamicCache()
        self._steps = 0

    def read(self, embeddings: Tensor, last: Tensor) -> Tensor:
        """See `Decoder.read`."""
        hidden = self._go(embeddings, self._masks.prefix, self._positions)
        return hidden[torch.arange(len(hidden), device=hidden.device), last][:, None]

    def step(self, new: Tensor) -> Tensor:
        """See `Decoder.step`."""
        at = self._positions_after[..., self._steps : self._steps + 1]
        self._steps += 1
        since = self._masks.after.new_zeros((len(new), 1, 1, self._steps))
        return self._go(new, torch.cat([self._masks.after, since], dim=3), at)

    def _go(self, inputs: Tensor, mask: Tensor, at: Tensor) -> Tensor:
        out = self._model(
            inputs_embeds=inputs, attention_mask=mask, position_ids=at, past_key_values=self._cache, use_cache=True
        )
        return out.last_hidden_state
