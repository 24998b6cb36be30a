"""The network of SmolVLA (Shukor et al. 2025, 2506.01844), with the parameter names of lerobot's checkpoints.

A small vision-language model encodes the images, the instruction and the measured state as tokens. Each of its layers
has a narrower counterpart in the action expert. In every n-th layer the expert's tokens attend to themselves (causally)
and to the model's tokens; in the other layers only to the model's tokens, by cross-attention with projections of the
model's keys and values. Everything that depends only on the observation is computed once.

Rotary positions have the base 10,000, whatever the language model was trained with, as published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers import LlamaConfig, LlamaModel, SmolVLMConfig, SmolVLMForConditionalGeneration

from robotrl.errors import ConfigError
from robotrl.policies.networks.activation_checkpointing import checkpointed_call
from robotrl.policies.vla.networks.context import ContextSizes, SplitContext, mean_over
from robotrl.policies.vla.networks.flow_time import time_features

ROPE_BASE = 10_000.0
MLP_MULTIPLE = 256
"""Widths of the expert's MLPs are multiples of this."""


@dataclass(frozen=True)
class SmolVlaCfg:
    """Size of a `SmolVla`; the defaults are those of the published model (SmolVLM2 500M, half of its layers)."""

    width: int = 960
    """Width of the language model."""
    layers: int = 16
    """Layers of the language model in use."""
    heads: int = 15
    kv_heads: int = 5
    head_width: int = 64
    mlp: int = 2560
    vocabulary: int = 49280
    norm_eps: float = 1e-5
    vision_width: int = 768
    vision_layers: int = 12
    vision_heads: int = 12
    vision_mlp: int = 3072
    patch: int = 16
    """Side of a patch, in pixels."""
    image: int = 512
    """Side of an image, in pixels."""
    shuffle: int = 4
    """`shuffle` x `shuffle` patches are merged into one token."""
    expert_share: float = 0.75
    """Width of the expert as a fraction of the language model's."""
    self_every: int = 2
    """The expert has self-attention in every n-th layer."""
    state: int = 32
    """Width of the measured state, padding included."""
    action: int = 32
    """Width of an action, padding included."""
    min_period: float = 4e-3
    """Shortest period of the time encoding."""
    max_period: float = 4.0

    @property
    def expert_width(self) -> int:
        """Width of the action expert."""
        return int(self.width * self.expert_share)


class Body(nn.Module):
    """The vision-language model and the expert; a separate module to match the checkpoint's names."""

    def __init__(self, cfg: SmolVlaCfg) -> None:
        super().__init__()
        self.vlm: Any = SmolVLMForConditionalGeneration(vlm_config(cfg))
        self.lm_expert: Any = LlamaModel(text_config(cfg, cfg.expert_width, expert_mlp(cfg.expert_width)))
        seen = cfg.kv_heads * cfg.head_width
        for index, layer in enumerate(self.lm_expert.layers):
            if index % cfg.self_every:
                layer.self_attn.k_proj = nn.Linear(seen, seen, bias=False)
                layer.self_attn.v_proj = nn.Linear(seen, seen, bias=False)
        self.lm_expert.embed_tokens = None


class SmolVla(nn.Module):
    """SmolVLA's network; implements `FlowNet`.

    Raises:
        ConfigError: inconsistent sizes.
    """

    computed_from_outside = True
    """The parts of the transformer blocks are called, not the blocks, since the two stacks run layer by layer."""

    def __init__(self, cfg: SmolVlaCfg) -> None:
        super().__init__()
        _check(cfg)
        self.cfg = cfg
        self.vlm_with_expert = Body(cfg)
        expert = cfg.expert_width
        self.state_proj = nn.Linear(cfg.state, cfg.width)
        self.action_in_proj = nn.Linear(cfg.action, expert)
        self.action_out_proj = nn.Linear(expert, cfg.action)
        self.action_time_mlp_in = nn.Linear(2 * expert, expert)
        self.action_time_mlp_out = nn.Linear(expert, expert)
        self.sizes = ContextSizes(cfg.width, 0, cfg.layers, cfg.kv_heads * cfg.head_width)

    @property
    def tokens(self) -> int:
        """P, tokens per camera image."""
        return (self.cfg.image // self.cfg.patch // self.cfg.shuffle) ** 2

    @property
    def trunk(self) -> nn.Module:
        """The vision-language model."""
        return self.vlm_with_expert.vlm

    @property
    def image(self) -> int:
        """Side of an image, in pixels."""
        return self.cfg.image

    def encode_images(self, pictures: Tensor) -> Tensor:
        """Image features: tokens (B, P, D) of a camera's images (B, S, S, 3), uint8."""
        model = self.vlm_with_expert.vlm.model
        dtype = model.text_model.embed_tokens.weight.dtype
        pixels = pictures.permute(0, 3, 1, 2).to(dtype) / 127.5 - 1
        return model.connector(model.vision_model(pixel_values=pixels).last_hidden_state)

    def encode_context(
        self, shown: Sequence[Tensor | None], ids: Tensor, token_mask: Tensor, state: Tensor
    ) -> SplitContext:
        """See `FlowNet.see`."""
        model = self.vlm_with_expert.vlm.model
        words = model.text_model.embed_tokens(ids)
        tokens, seen = zip(*(self._or_missing(x, words) for x in shown), strict=True)
        scale = math.sqrt(self.cfg.width)
        measured = self.state_proj(state)[:, None]
        hidden = torch.cat([*(scale * x for x in tokens), scale * words, measured], dim=1)
        token_mask = torch.cat([*seen, token_mask, token_mask.new_ones(len(ids), 1)], dim=1)
        # the state attends to all tokens; only the state attends to it
        among = token_mask[:, None, :].expand(-1, hidden.shape[1], -1).clone()
        among[:, :-1, -1] = False
        rotation = rotations(token_mask.long().cumsum(dim=1) - 1, self.cfg.head_width, hidden.dtype)
        keys, values = list[Tensor](), list[Tensor]()
        for index, layer in enumerate(model.text_model.layers):
            hidden, k, v = checkpointed_call(layer, self._see_in, layer, hidden, rotation, among[:, None])
            keep = self._for_expert(index, k, v)
            keys.append(keep[0])
            values.append(keep[1])
        features = mean_over(model.text_model.norm(hidden), token_mask)
        return SplitContext(features, state[:, :0], torch.stack(keys, dim=1), torch.stack(values, dim=1), token_mask)

    def velocity(self, memory: SplitContext, x: Tensor, t: Tensor) -> Tensor:
        """See `FlowNet.velocity`."""
        # the published velocity points from action to noise
        return -self.action_out_proj(self.expert_states(memory, x, t))

    def expert_states(self, memory: SplitContext, x: Tensor, t: Tensor) -> Tensor:
        """See `FlowNet.moving`."""
        cfg, (batch, count, _) = self.cfg, x.shape
        time = time_features(1 - t, cfg.expert_width, cfg.min_period, cfg.max_period).to(x.dtype)
        action = self.action_in_proj(x)
        both = torch.cat([action, time[:, None].expand_as(action)], dim=2)
        hidden = self.action_time_mlp_out(silu(self.action_time_mlp_in(both)))
        place = torch.arange(count, device=x.device)
        alone = rotations(place[None], cfg.head_width, x.dtype)
        behind = rotations(memory.token_mask.sum(dim=1, keepdim=True) + place, cfg.head_width, x.dtype)
        seen = memory.token_mask[:, None, None, :].expand(-1, -1, count, -1)
        before = torch.ones(count, count, dtype=torch.bool, device=x.device).tril().expand(batch, 1, -1, -1)
        both_masks = torch.cat([seen, before], dim=3)
        # unbind once: the gradient of a separate slice for each layer would have the size of all layers
        remembered = zip(memory.keys.unbind(1), memory.values.unbind(1), strict=True)
        for index, (layer, kept) in enumerate(zip(self.vlm_with_expert.lm_expert.layers, remembered, strict=True)):
            k, v = (self._split(part) for part in kept)
            if index % cfg.self_every:
                hidden = checkpointed_call(layer, self._move_in, layer, hidden, k, v, alone, seen)
            else:
                hidden = checkpointed_call(layer, self._move_among, layer, hidden, k, v, behind, both_masks)
        return self.vlm_with_expert.lm_expert.norm(hidden)

    def _see_in(
        self, layer: Any, hidden: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run a layer of the language model: output (B, T, D), keys and values (B, T, heads * width)."""
        q, k, v = self._heads(layer, layer.input_layernorm(hidden))
        q, k = rotate(q, rotation), rotate(k, rotation)
        return after_attention(layer, hidden, attend(q, k, v, mask)), flat(k), flat(v)

    def _move_in(
        self, layer: Any, hidden: Tensor, k: Tensor, v: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor
    ) -> Tensor:
        """Run a cross-attention layer of the expert: output (B, H, D)."""
        q = rotate(self._split(layer.self_attn.q_proj(layer.input_layernorm(hidden))), rotation)
        return after_attention(layer, hidden, attend(q, k, v, mask))

    def _move_among(
        self, layer: Any, hidden: Tensor, k: Tensor, v: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor
    ) -> Tensor:
        """Run an expert layer that attends to the context and to its own tokens: output (B, H, D)."""
        q, own_k, own_v = self._heads(layer, layer.input_layernorm(hidden))
        q, own_k = rotate(q, rotation), rotate(own_k, rotation)
        mixed = attend(q, torch.cat([k, own_k], dim=2), torch.cat([v, own_v], dim=2), mask)
        return after_attention(layer, hidden, mixed)

    def _or_missing(self, shown: Tensor | None, words: Tensor) -> tuple[Tensor, Tensor]:
        """Image tokens (B, P, D) of a camera and their mask (B, P); zeros and False for a missing camera."""
        if shown is None:
            shown = words.new_zeros((len(words), self.tokens, words.shape[2]))
            return shown, torch.zeros(shown.shape[:2], dtype=torch.bool, device=words.device)
        return shown, torch.ones(shown.shape[:2], dtype=torch.bool, device=words.device)

    def _for_expert(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, L, D) for the expert's layer; projected for its cross-attention layers."""
        if index % self.cfg.self_every == 0:
            return keys, values
        attention = self.vlm_with_expert.lm_expert.layers[index].self_attn
        return attention.k_proj(keys), attention.v_proj(values)

    def _heads(self, layer: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attention = layer.self_attn
        q, k, v = (self._split(project(x)) for project in (attention.q_proj, attention.k_proj, attention.v_proj))
        return q, k, v

    def _split(self, x: Tensor) -> Tensor:
        """(B, T, heads * width) to (B, heads, T, width)."""
        return x.unflatten(2, (-1, self.cfg.head_width)).transpose(1, 2)


def _check(cfg: SmolVlaCfg) -> None:
    side = cfg.image // cfg.patch
    if cfg.image % cfg.patch or side % cfg.shuffle:
        raise ConfigError(
            f"image {cfg.image} by patch {cfg.patch} by shuffle {cfg.shuffle}: expected whole patches, whole tokens"
        )
    if cfg.heads % cfg.kv_heads or cfg.head_width % 2 or cfg.expert_width % 2 or cfg.self_every < 1:
        raise ConfigError(
            f"heads {cfg.heads}, kv_heads {cfg.kv_heads}, head_width {cfg.head_width}, expert_width"
            f" {cfg.expert_width}, self_every {cfg.self_every}: expected whole groups of heads, even widths, 1 or more"
        )


def text_config(cfg: SmolVlaCfg, width: int, mlp: int) -> LlamaConfig:
    """Config of a Llama stack of this width."""
    return LlamaConfig(
        vocab_size=cfg.vocabulary,
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=cfg.layers,
        num_attention_heads=cfg.heads,
        num_key_value_heads=cfg.kv_heads,
        head_dim=cfg.head_width,
        rms_norm_eps=cfg.norm_eps,
        tie_word_embeddings=False,
    )


def vlm_config(cfg: SmolVlaCfg) -> SmolVLMConfig:
    """Config of the vision-language model."""
    return SmolVLMConfig(
        text_config=text_config(cfg, cfg.width, cfg.mlp),
        vision_config={
            "hidden_size": cfg.vision_width,
            "intermediate_size": cfg.vision_mlp,
            "num_hidden_layers": cfg.vision_layers,
            "num_attention_heads": cfg.vision_heads,
            "image_size": cfg.image,
            "patch_size": cfg.patch,
        },
        scale_factor=cfg.shuffle,
        image_token_id=0,
        tie_word_embeddings=False,
    )


def expert_mlp(width: int) -> int:
    """Hidden width of the expert's MLPs: 8/3 of its width, rounded up to a multiple of 256."""
    return -(-4 * (2 * width // 3) // MLP_MULTIPLE) * MLP_MULTIPLE


def rotations(place: Tensor, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines (B, 1, T, width / 2) of rotary positions (B, T)."""
    power = torch.arange(width // 2, dtype=torch.float32, device=place.device) * (2.0 / width)
    angle = place.to(torch.float32)[:, None, :, None] / ROPE_BASE**power
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Apply rotary positions to queries or keys (B, heads, T, width); element i is paired with i + width / 2."""
    cos, sin = rotation
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention (B, T, heads * width), with grouped key-value heads."""
    return flat(scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1]))


def flat(x: Tensor) -> Tensor:
    """Merge heads: (B, heads, T, width) to (B, T, heads * width)."""
    return x.transpose(1, 2).flatten(2)


def after_attention(layer: Any, hidden: Tensor, mixed: Tensor) -> Tensor:
    """Rest of a layer after attention: output projection and MLP, each with its residual."""
    hidden = hidden + layer.self_attn.o_proj(mixed)
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden))
