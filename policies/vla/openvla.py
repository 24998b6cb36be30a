"""The network of OpenVLA (Kim et al. 2024, 2406.09246) and of OpenVLA-OFT (Kim et al. 2025, 2502.19645).

Two vision towers see the picture; their patches, side by side, are projected into the language model's embeddings and
put behind its first token. Then OpenVLA says one action token after the other. OFT says all of a chunk's tokens in one
pass: in their places stand zeros, every token sees every other, and a measured state may come behind the patches.

Parameters have the names of the published checkpoints. All attention goes by explicit masks: padding of the prompt is
seen by nobody and takes no place, so a row says the same in any batch, and OFT needs no patched library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from robotrl.errors import ConfigError, unknown
from robotrl.policies.vla import decode
from robotrl.policies.vla.bins import to_ids
from robotrl.policies.vla.vision import DINOV2_L, SIGLIP_SO400M, Tower, TowerCfg

Decoding = Literal["autoregressive", "parallel"]
DECODINGS: tuple[Decoding, ...] = ("autoregressive", "parallel")


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


class Prefix(NamedTuple):
    """What stands before the action tokens."""

    embeddings: Tensor
    """(B, L, D)"""
    there: Tensor
    """(B, L) bool: False for padding of the prompt."""


class OpenVla(nn.Module):
    """The network.

    Raises:
        ConfigError: sizes that do not fit each other, or an unknown decoding.
    """

    def __init__(self, cfg: OpenVlaCfg) -> None:
        super().__init__()
        if cfg.decoding not in DECODINGS:
            raise unknown("decoding", str(cfg.decoding), DECODINGS)
        first, second = (tower.image // tower.patch for tower in cfg.towers)
        if first != second or cfg.towers[0].image != cfg.towers[1].image:
            raise ConfigError(
                f"towers see {cfg.towers[0].image} and {cfg.towers[1].image} pixels in {first} and {second} patches a"
                " side: expected the same of both"
            )
        if cfg.bins >= cfg.text.end:
            raise ConfigError(f"bins is {cfg.bins}: expected less than the {cfg.text.end} ids of the vocabulary")
        if cfg.queries and cfg.decoding != "parallel":
            raise ConfigError(f"queries is {cfg.queries} and decoding is {cfg.decoding!r}: expected 0, or 'parallel'")
        self.cfg = cfg
        self.vision_backbone = VisionBackbone(cfg.towers)
        self.projector = Projector(sum(tower.width for tower in cfg.towers), cfg.text.width)
        self.language_model = LlamaForCausalLM(llama_config(cfg.text))
        if cfg.state:
            self.proprio_projector = StateProjector(cfg.state, cfg.text.width)
        if cfg.queries:
            self.action_queries = nn.Parameter(torch.randn(cfg.queries, cfg.text.width))

    def sight(self, pictures: Tensor) -> Tensor:
        """Patches (B, P, V) of pictures (B, S, S, 3), bytes: what both towers make of them."""
        return self.vision_backbone(pictures)

    def prefix(self, patches: Tensor, ids: Tensor, there: Tensor, state: Tensor | None = None) -> Prefix:
        """Embed a picture, a prompt and a state.

        Args:
            patches: (B, P, V) of the picture, from `sight`.
            ids: (B, L) the prompt; its first token stands before the picture.
            there: (B, L) bool, False where the prompt is padded at its end.
            state: (B, S) normalised; needed where the config has one.
        """
        words = self.language_model.model.embed_tokens(ids)
        seen = [self.projector(patches)]
        if state is not None:
            seen.append(self.proprio_projector(state)[:, None])
        middle = torch.cat(seen, dim=1)
        always = torch.ones(middle.shape[:2], dtype=torch.bool, device=ids.device)
        return Prefix(
            torch.cat([words[:, :1], middle, words[:, 1:]], dim=1),
            torch.cat([there[:, :1], always, there[:, 1:]], dim=1),
        )

    def summary(self, prefix: Prefix) -> Tensor:
        """(B, D) the hidden state at the prompt's last token: what was seen and read, before anything is said."""
        causal = self.cfg.decoding == "autoregressive"
        mask = attention(prefix.there, prefix.embeddings.dtype, causal)
        hidden = self._hidden(prefix.embeddings, mask, places(prefix.there))
        return hidden[torch.arange(len(hidden)), last_of(prefix.there)]

    def speaking(self, prefix: Prefix, count: int) -> Tensor:
        """(B, n, D) the hidden states that say `count` action tokens, as far as they are there before any is said.

        In parallel decoding these are all; one after the other it is that of the first.
        """
        if self.cfg.decoding == "parallel":
            return self._spoken(prefix, count)
        return self.summary(prefix)[:, None]

    def logits(self, prefix: Prefix, tokens: Tensor) -> Tensor:
        """Logits (B, T, bins) of T action tokens.

        Args:
            prefix: what stands before them.
            tokens: (B, T) bins. Each is predicted from those before it; in parallel decoding only their number counts.
        """
        if self.cfg.decoding == "parallel":
            return self._parallel(prefix, tokens.shape[1])
        said = self.language_model.model.embed_tokens(to_ids(tokens[:, :-1], self.cfg.text.end))
        hidden = self._run(prefix, said, causal=True)
        return self._head(self._behind(hidden, prefix, tokens.shape[1]))

    def _parallel(self, prefix: Prefix, count: int) -> Tensor:
        """All tokens' logits (B, count, bins) at once."""
        return self._head(self._spoken(prefix, count))

    def _spoken(self, prefix: Prefix, count: int) -> Tensor:
        """The hidden states (B, count, D) that say all tokens at once, from queries or zeros and a stop behind them."""
        batch, _, width = prefix.embeddings.shape
        asked = prefix.embeddings.new_zeros((batch, count, width))
        if self.cfg.queries:
            asked = asked + self.action_queries[:count]
        stop = torch.full((batch, 1), self.cfg.text.stop, device=asked.device)
        after = torch.cat([asked, self.language_model.model.embed_tokens(stop)], dim=1)
        return self._behind(self._run(prefix, after, causal=False), prefix, count)

    def _run(self, prefix: Prefix, after: Tensor, causal: bool) -> Tensor:
        """Hidden states (B, L + T, D) of the prefix and embeddings (B, T, D) after it."""
        there = torch.cat([prefix.there, prefix.there.new_ones(after.shape[:2])], dim=1)
        inputs = torch.cat([prefix.embeddings, after.to(prefix.embeddings.dtype)], dim=1)
        return self._hidden(inputs, attention(there, inputs.dtype, causal), places(there))

    def _hidden(self, inputs: Tensor, mask: Tensor, at: Tensor) -> Tensor:
        """Hidden states (B, T, D) of embeddings (B, T, D) at positions (B, T)."""
        out = self.language_model.model(inputs_embeds=inputs, attention_mask=mask, position_ids=at, use_cache=False)
        return out.last_hidden_state

    def _behind(self, hidden: Tensor, prefix: Prefix, count: int) -> Tensor:
        """(B, count, D) of hidden states: at the last token of the prompt, and at those after the prefix."""
        last = hidden[torch.arange(len(hidden)), last_of(prefix.there)][:, None]
        start = prefix.there.shape[1]
        return torch.cat([last, hidden[:, start : start + count - 1]], dim=1)

    def _head(self, hidden: Tensor) -> Tensor:
        """Logits (..., bins) of the actions' ids alone, in the order of the bins."""
        end = self.cfg.text.end
        rows = self.language_model.lm_head.weight[end - self.cfg.bins : end]
        return (hidden @ rows.T).flip(-1)

    def sample(self, prefix: Prefix, count: int, choose: Any) -> Tensor:
        """Say `count` action tokens (B, count); each pass goes over what is new alone.

        Args:
            prefix: what stands before them.
            count: T.
            choose: from logits (B, n, bins) to bins (B, n).
        """
        if self.cfg.decoding == "parallel":
            return choose(self._parallel(prefix, count))
        model, (embeddings, there) = self.language_model.model, prefix
        stack, at = decode.layers(model), places(there)
        mask = attention(there, embeddings.dtype, causal=True)
        turn = decode.turn_to(model, at, embeddings)
        hidden, kept = decode.read(stack, embeddings, turn, mask, last_of(there))
        seen = hiding(there[:, None], hidden.dtype)
        behind = at[:, -1:] + 1 + torch.arange(count - 1, device=at.device)
        said: list[Tensor] = []
        for turn in [*decode.each_of(decode.turn_to(model, behind, hidden)), None]:
            said.append(choose(self._head(model.norm(hidden)))[:, 0])
            if turn is not None:
                new = model.embed_tokens(to_ids(said[-1], self.cfg.text.end))[:, None]
                hidden, kept = decode.step(stack, new, turn, seen, kept)
        return torch.stack(said, dim=1)


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


def attention(there: Tensor, dtype: torch.dtype, causal: bool) -> Tensor:
    """(B, 1, T, T) what is added to attention: 0 where a token (row) sees another, the lowest number elsewhere.

    Args:
        there: (B, T) bool; nobody sees a token that is not there, but for itself.
        dtype: of the result.
        causal: whether tokens see only those before them.
    """
    length = there.shape[1]
    seen = there[:, None, :].expand(-1, length, -1)
    if causal:
        seen = seen & torch.ones(length, length, dtype=torch.bool, device=there.device).tril()
    seen = seen | torch.eye(length, dtype=torch.bool, device=there.device)
    return hiding(seen, dtype)


def hiding(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, 1, Q, T) what is added to attention: 0 where `seen` (B, Q, T) says so, the lowest number elsewhere."""
    nothing = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return nothing.masked_fill(~seen, torch.finfo(dtype).min)[:, None]


def places(there: Tensor) -> Tensor:
    """(B, T) positions: padding takes none."""
    return (there.long().cumsum(dim=1) - 1).clamp(min=0)


def last_of(there: Tensor) -> Tensor:
    """(B,) where the last token that is there stands."""
    at = torch.arange(there.shape[1], device=there.device)
    return (at * there).argmax(dim=1)
