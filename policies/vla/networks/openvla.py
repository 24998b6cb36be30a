"""The network of OpenVLA (Kim et al. 2024, 2406.09246) and of OpenVLA-OFT (Kim et al. 2025, 2502.19645).

Two vision towers encode the image; their patch features are concatenated, projected to the language model's embeddings
and inserted after its first token. OpenVLA decodes one action token at a time. OFT predicts all tokens of a chunk in
one pass: their inputs are zeros, attention is bidirectional, and a measured state may follow the patches.

Parameters have the names of the published checkpoints; decoding is in `robotrl.policies.vla.networks.autoregressive`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from robotrl.errors import ConfigError
from robotrl.policies.vla.networks.autoregressive import AutoregressiveVla, Decoding, Prefix
from robotrl.policies.vla.networks.vision import DINOV2_L, SIGLIP_SO400M, Tower, TowerCfg


@dataclass(frozen=True)
class TextCfg:
    """Size of the language model; the defaults are Llama 2 7B's as OpenVLA has it."""

    width: int = 4096
    depth: int = 32
    heads: int = 32
    kv_heads: int = 32
    mlp: int = 11008
    vocabulary: int = 32064
    """Rows of the embedding, padding included."""
    padding: int = 64
    """Unused rows at the end of the vocabulary; the actions' ids are the last before them."""
    positions: int = 2048
    norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    stop: int = 2
    """Id of the end-of-text token."""

    @property
    def end(self) -> int:
        """One past the last used id."""
        return self.vocabulary - self.padding


@dataclass(frozen=True)
class OpenVlaCfg:
    """Sizes and decoding of an `OpenVla`; the defaults are the published model's."""

    towers: tuple[TowerCfg, TowerCfg] = (DINOV2_L, SIGLIP_SO400M)
    """`featurizer` and `fused_featurizer`; both have the same grid of patches."""
    text: TextCfg = TextCfg()
    bins: int = 256
    decoding: Decoding = "autoregressive"
    state: int = 0
    """Width of the measured state after the patches; 0 for none."""
    queries: int = 0
    """Parallel decoding: number of learned query embeddings, one per token; 0 for zeros, as published. Zeros differ
    only by their positions, which a small network trained from scratch learns slowly."""


class VisionBackbone(nn.Module):
    """Two vision towers whose patch features are concatenated."""

    def __init__(self, towers: tuple[TowerCfg, TowerCfg]) -> None:
        super().__init__()
        self.featurizer, self.fused_featurizer = (Tower(cfg) for cfg in towers)

    def forward(self, pictures: Tensor) -> Tensor:
        """Patch features (B, P, D) of images (B, S, S, 3), uint8."""
        return torch.cat([self.featurizer(pictures), self.fused_featurizer(pictures)], dim=2)


class Projector(nn.Module):
    """Three-layer MLP from patch features to embeddings."""

    def __init__(self, vision: int, text: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(vision, 4 * vision)
        self.fc2 = nn.Linear(4 * vision, text)
        self.fc3 = nn.Linear(text, text)

    def forward(self, patches: Tensor) -> Tensor:
        """(B, P, V) to (B, P, D)."""
        gelu = nn.functional.gelu
        return self.fc3(gelu(self.fc2(gelu(self.fc1(patches)))))


class StateProjector(nn.Module):
    """Two-layer MLP from a measured state to one embedding; OFT stores it in a separate file."""

    def __init__(self, state: int, text: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(state, text)
        self.fc2 = nn.Linear(text, text)

    def forward(self, state: Tensor) -> Tensor:
        """(B, S) to (B, D)."""
        return self.fc2(nn.functional.gelu(self.fc1(state)))


class OpenVla(AutoregressiveVla):
    """OpenVLA's network.

    Raises:
        ConfigError: inconsistent sizes, or an unknown decoding.
    """

    def __init__(self, cfg: OpenVlaCfg) -> None:
        super().__init__(cfg, cfg.text.width, cfg.text.end)
        first, second = (tower.image // tower.patch for tower in cfg.towers)
        if first != second or cfg.towers[0].image != cfg.towers[1].image:
            raise ConfigError(
                f"towers see {cfg.towers[0].image} and {cfg.towers[1].image} pixels in {first} and {second} patches a"
                " side: expected the same of both"
            )
        self.cfg = cfg
        self.vision_backbone = VisionBackbone(cfg.towers)
        self.projector = Projector(sum(tower.width for tower in cfg.towers), cfg.text.width)
        self.language_model = LlamaForCausalLM(llama_config(cfg.text))
        if cfg.state:
            self.proprio_projector = StateProjector(cfg.state, cfg.text.width)
        self.add_queries()

    @property
    def stack(self) -> Any:
        """See `AutoregressiveVla`."""
        return self.language_model.model

    @property
    def stop(self) -> int:
        """See `AutoregressiveVla`."""
        return self.cfg.text.stop

    @property
    def patches(self) -> int:
        """See `AutoregressiveVla`."""
        return self.cfg.towers[0].patches

    def embed(self, ids: Tensor) -> Tensor:
        """See `AutoregressiveVla`."""
        return self.stack.embed_tokens(ids)

    def words(self) -> Tensor:
        """See `AutoregressiveVla`."""
        return self.language_model.lm_head.weight

    def encode_images(self, pictures: Tensor) -> Tensor:
        """Patch features (B, P, V) of images (B, S, S, 3), uint8, from both towers."""
        return self.vision_backbone(pictures)

    def project(self, features: Tensor) -> Tensor:
        """See `AutoregressiveVla`."""
        return self.projector(features)

    def vision_encoder(self) -> nn.Module:
        """A copy of both towers."""
        return copy.deepcopy(self.vision_backbone)

    def prefix(self, patches: Tensor, ids: Tensor, token_mask: Tensor, state: Tensor | None = None) -> Prefix:
        """See `AutoregressiveVla`; the image follows the prompt's first token."""
        words = self.embed(ids)
        seen = [self.project(patches)]
        if state is not None:
            seen.append(self.proprio_projector(state)[:, None])
        middle = torch.cat(seen, dim=1)
        always = torch.ones(middle.shape[:2], dtype=torch.bool, device=ids.device)
        return Prefix(
            torch.cat([words[:, :1], middle, words[:, 1:]], dim=1),
            torch.cat([token_mask[:, :1], always, token_mask[:, 1:]], dim=1),
        )


def llama_config(cfg: TextCfg) -> LlamaConfig:
    """Config of the language model."""
    return LlamaConfig(
        vocab_size=cfg.vocabulary,
        hidden_size=cfg.width,
        intermediate_size=cfg.mlp,
        num_hidden_layers=cfg.depth,
        num_attention_heads=cfg.heads,
        num_key_value_heads=cfg.kv_heads,
        max_position_embeddings=cfg.positions,
        rms_norm_eps=cfg.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": cfg.rope_theta},
        tie_word_embeddings=False,
    )
