"""The network of pi0 (Black et al. 2024, 2410.24164), with the classes of `transformers`.

PaliGemma encodes the images and the instruction with bidirectional attention; the action expert is a narrower Gemma of
the same depth. The expert's first token is the measured state, which attends to PaliGemma's tokens; the chunk's actions
follow and attend to everything. The keys and values of PaliGemma's tokens are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PI0Config, PI0ForConditionalGeneration

from robotrl.errors import ConfigError
from robotrl.policies.vla.networks.context import ContextSizes, SplitContext, mean_over


@dataclass(frozen=True)
class Pi0Cfg:
    """Size of a `Pi0`; the defaults are the published model's."""

    width: int = 2048
    """Width of the language model."""
    layers: int = 18
    """Layers of the language model and of the expert."""
    heads: int = 8
    kv_heads: int = 1
    head_width: int = 256
    mlp: int = 16384
    vocabulary: int = 257152
    vision_width: int = 1152
    vision_layers: int = 27
    vision_heads: int = 16
    vision_mlp: int = 4304
    patch: int = 14
    """Side of a patch, in pixels."""
    image: int = 224
    """Side of an image, in pixels."""
    expert_width: int = 1024
    expert_mlp: int = 4096
    chunk: int = 50
    """Actions in a chunk."""
    state: int = 32
    """Width of the measured state, padding included."""
    action: int = 32
    """Width of an action, padding included."""
    min_period: float = 4e-3
    """Shortest period of the time encoding."""
    max_period: float = 4.0


class Pi0(nn.Module):
    """pi0's network; implements `FlowNet`.

    Raises:
        ConfigError: inconsistent sizes.
    """

    def __init__(self, cfg: Pi0Cfg) -> None:
        super().__init__()
        if cfg.image % cfg.patch or cfg.heads % cfg.kv_heads or cfg.expert_width % 2:
            raise ConfigError(
                f"image {cfg.image} by patch {cfg.patch}, heads {cfg.heads} by kv_heads {cfg.kv_heads}, expert_width"
                f" {cfg.expert_width}: expected whole patches, whole groups of heads, an even width"
            )
        self.cfg = cfg
        self.net: Any = PI0ForConditionalGeneration(pi0_config(cfg))
        # the expert reads no words: its unused embedding is a quarter of its published size
        self.net.model.dit.embed_tokens = None
        self.sizes = ContextSizes(cfg.width, cfg.state, cfg.layers, cfg.kv_heads * cfg.head_width)

    @property
    def tokens(self) -> int:
        """P, tokens per camera image."""
        return (self.cfg.image // self.cfg.patch) ** 2

    @property
    def trunk(self) -> nn.Module:
        """The vision-language model."""
        return self.net.model.vlm

    @property
    def image(self) -> int:
        """Side of an image, in pixels."""
        return self.cfg.image

    def encode_images(self, pictures: Tensor) -> Tensor:
        """Image features: tokens (B, P, D) of a camera's images (B, S, S, 3), uint8."""
        vlm = self.net.model.vlm
        pixels = pictures.permute(0, 3, 1, 2).to(vlm.get_input_embeddings().weight.dtype) / 127.5 - 1
        return vlm.get_image_features(pixels).pooler_output

    def encode_context(
        self, shown: Sequence[Tensor | None], ids: Tensor, token_mask: Tensor, state: Tensor
    ) -> SplitContext:
        """See `FlowNet.see`."""
        vlm = self.net.model.vlm
        words = vlm.get_input_embeddings()(ids)
        tokens, seen = zip(*(self._or_missing(x, words) for x in shown), strict=True)
        hidden = torch.cat([*tokens, words], dim=1)
        token_mask = torch.cat([*seen, token_mask], dim=1)
        out = vlm(
            inputs_embeds=hidden,
            attention_mask=token_mask.long(),
            position_ids=token_mask.long().cumsum(dim=1) - 1,
            token_type_ids=torch.zeros_like(token_mask, dtype=torch.long),
            use_cache=True,
        )
        layers = out.past_key_values.layers
        keys, values = (torch.stack([_flat(x) for x in row], dim=1) for row in zip(*map(_kept, layers), strict=True))
        return SplitContext(mean_over(out.last_hidden_state, token_mask), state, keys, values, token_mask)

    def velocity(self, memory: SplitContext, x: Tensor, t: Tensor) -> Tensor:
        """See `FlowNet.velocity`."""
        # the published velocity points from action to noise
        return -self.net.action_out_proj(self.expert_states(memory, x, t))

    def expert_states(self, memory: SplitContext, x: Tensor, t: Tensor) -> Tensor:
        """See `FlowNet.moving`."""
        cache = DynamicCache()
        shape = (self.cfg.kv_heads, self.cfg.head_width)
        # unbind once: the gradient of a separate slice for each layer would have the size of all layers
        for index, kept in enumerate(zip(memory.keys.unbind(1), memory.values.unbind(1), strict=True)):
            k, v = (part.unflatten(2, shape).transpose(1, 2) for part in kept)
            cache.update(k, v, index)
        asked = self.net.embed_action_time(memory.state, x, 1 - t)
        out = self.net.model(action_embeds=asked, attention_mask=memory.token_mask.long(), past_key_values=cache)
        # skip the state's token
        return out.last_hidden_state[:, -x.shape[1] :]

    def _or_missing(self, shown: Tensor | None, words: Tensor) -> tuple[Tensor, Tensor]:
        """Image tokens (B, P, D) of a camera and their mask (B, P); zeros and False for a missing camera."""
        if shown is None:
            shown = words.new_zeros((len(words), self.tokens, words.shape[2]))
            return shown, torch.zeros(shown.shape[:2], dtype=torch.bool, device=words.device)
        return shown, torch.ones(shown.shape[:2], dtype=torch.bool, device=words.device)


def _kept(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.keys, layer.values


def _flat(x: Tensor) -> Tensor:
    """(B, heads, L, width) to (B, L, heads * width)."""
    return x.transpose(1, 2).flatten(2)


def pi0_config(cfg: Pi0Cfg) -> PI0Config:
    """Config of the class in `transformers`."""
    text = {
        "model_type": "gemma",
        "hidden_size": cfg.width,
        "num_hidden_layers": cfg.layers,
        "intermediate_size": cfg.mlp,
        "num_attention_heads": cfg.heads,
        "num_key_value_heads": cfg.kv_heads,
        "head_dim": cfg.head_width,
        "vocab_size": cfg.vocabulary,
    }
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": cfg.vision_width,
        "intermediate_size": cfg.vision_mlp,
        "num_hidden_layers": cfg.vision_layers,
        "num_attention_heads": cfg.vision_heads,
        "patch_size": cfg.patch,
        "image_size": cfg.image,
        "vision_use_head": False,
    }
    expert = text | {"hidden_size": cfg.expert_width, "intermediate_size": cfg.expert_mlp}
    return PI0Config(
        vlm_config={
            "model_type": "paligemma",
            "text_config": text,
            "vision_config": vision,
            "projection_dim": cfg.width,
            "image_token_id": cfg.vocabulary - 1,
        },
        dit_config=expert,
        chunk_size=cfg.chunk,
        max_state_dim=cfg.state,
        max_action_dim=cfg.action,
        min_period=cfg.min_period,
        max_period=cfg.max_period,
    )
