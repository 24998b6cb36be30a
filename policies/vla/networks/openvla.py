"""The network of OpenVLA (Kim et al. 2024, 2406.09246) and of OpenVLA-OFT (Kim et al. 2025, 2502.19645).

Two vision towers see the picture; their patches, side by side, are projected into the language model's embeddings and
put behind its first token. Then OpenVLA says one action token after the other. OFT says all of a chunk's tokens in one
pass: in their places stand zeros, every token sees every other, and a measured state may come behind the patches.

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
    """Rows at the end of the vocabulary that mean nothing; the actions' ids lie before them."""
    positions: int = 2048
    norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    stop: int = 2
    """Id of the end of a text."""

    @property
    def end(self) -> int:
        """One past the last id that means something."""
        return self.vocabulary - self.padding


@dataclass(frozen=True)
class OpenVlaCfg:
    """Size and way of speaking of an `OpenVla`; the defaults are the published model's."""

    towers: tuple[TowerCfg, TowerCfg] = (DINOV2_L, SIGLIP_SO400M)
    """First `featurizer`, then `fused_featurizer`; patches of both lie on one grid."""
    text: TextCfg = TextCfg()
    bins: int = 256
    decoding: Decoding = "autoregressive"
    state: int = 0
    """Width of the measured state that follows the patches; 0 for none."""
    queries: int = 0
    """Parallel decoding: so many tokens are said from learned embeddings, each its own; 0 for zeros, as published.
    Zeros are told apart by their positions alone, which a small network trained from nothing is slow to find."""


class VisionBackbone(nn.Module):
    """Two towers whose patches are laid side by side."""

    def __init__(self, towers: tuple[TowerCfg, TowerCfg]) -> None:
        super().__init__()
        self.featurizer, self.fused_featurizer = (Tower(cfg) for cfg in towers)

    def forward(self, pictures: Tensor) -> Tensor:
        """(B, P, D) of pictures (B, S, S, 3), bytes."""
        return torch.cat([self.featurizer(pictures), self.fused_featurizer(pictures)], dim=2)


class Projector(nn.Module):
    """Three layers from patches to embeddings."""

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
    """Two layers from a measured state to one embedding; OFT keeps them in a file of their own."""

    def __init__(self, state: int, text: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(state, text)
        self.fc2 = nn.Linear(text, text)

    def forward(self, state: Tensor) -> Tensor:
        """(B, S) to (B, D)."""
        return self.fc2(nn.functional.gelu(self.fc1(state)))


class OpenVla(AutoregressiveVla):
    """The network.

    Raises:
        ConfigError: sizes that do not fit each other, or an unknown decoding.
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

    def sight(self, pictures: Tensor) -> Tensor:
        """Patches (B, P, V) of pictures (B, S, S, 3), bytes: what both towers make of them."""
        return self.vision_backbone(pictures)

    def seen(self, sight: Tensor) -> Tensor:
        """See `AutoregressiveVla`."""
        return self.projector(sight)

    def eye(self) -> nn.Module:
        """A copy of both towers."""
        return copy.deepcopy(self.vision_backbone)

    def prefix(self, patches: Tensor, ids: Tensor, there: Tensor, state: Tensor | None = None) -> Prefix:
        """See `AutoregressiveVla`; the prompt's first token stands before the picture."""
        words = self.embed(ids)
        seen = [self.seen(patches)]
        if state is not None:
            seen.append(self.proprio_projector(state)[:, None])
        middle = torch.cat(seen, dim=1)
        always = torch.ones(middle.shape[:2], dtype=torch.bool, device=ids.device)
        return Prefix(
            torch.cat([words[:, :1], middle, words[:, 1:]], dim=1),
            torch.cat([there[:, :1], always, there[:, 1:]], dim=1),
        )


def llama_config(cfg: TextCfg) -> LlamaConfig:
    """The language model's config."""
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
