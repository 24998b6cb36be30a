"""Base class of autoregressive VLA networks: action tokens after an image and a prompt, for any language model.

Attention uses explicit masks: padding of the prompt is invisible and takes no position, so a row gives the same result
in any batch, and bidirectional attention needs no patched library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from robotrl.errors import ConfigError, unknown
from robotrl.policies.vla.bins import to_ids
from robotrl.policies.vla.decoding import decode
from robotrl.policies.vla.decoding.parts import Masks

Decoding = Literal["autoregressive", "parallel"]
DECODINGS: tuple[Decoding, ...] = ("autoregressive", "parallel")


class ActionDecodingCfg(Protocol):
    """Decoding settings in a network's config."""

    @property
    def bins(self) -> int:
        """Bins for each element of an action."""
        ...

    @property
    def decoding(self) -> Decoding:
        """One token at a time ("autoregressive"), or all at once ("parallel")."""
        ...

    @property
    def state(self) -> int:
        """Width of the measured state after the image; 0 for none."""
        ...

    @property
    def queries(self) -> int:
        """Parallel decoding: number of learned query embeddings; 0 for zero embeddings."""
        ...


class Place(NamedTuple):
    """A range of token indices."""

    start: int
    end: int
    """One past the last index."""


NOWHERE = Place(0, 0)


class Prefix(NamedTuple):
    """Embedded image, prompt and state before the action tokens."""

    embeddings: Tensor
    """(B, L, D)"""
    token_mask: Tensor
    """(B, L) bool: False for padding of the prompt."""
    picture: Place = NOWHERE
    """Token range of the image, for networks that need it."""


class AutoregressiveVla(nn.Module, ABC):
    """A network that predicts action tokens from an image, a prompt and optionally a measured state.

    Args:
        cfg: decoding settings.
        width: D, width of the language model.
        end: one past the last of the actions' ids.

    Raises:
        ConfigError: an unknown decoding, more bins than ids, or queries with autoregressive decoding.
    """

    def __init__(self, cfg: ActionDecodingCfg, width: int, end: int) -> None:
        super().__init__()
        if cfg.decoding not in DECODINGS:
            raise unknown("decoding", str(cfg.decoding), DECODINGS)
        if cfg.bins >= end:
            raise ConfigError(f"bins is {cfg.bins}: expected less than the {end} ids of the vocabulary")
        if cfg.queries and cfg.decoding != "parallel":
            raise ConfigError(f"queries is {cfg.queries} and decoding is {cfg.decoding!r}: expected 0, or 'parallel'")
        self.decoding_cfg = cfg
        """Decoding settings."""
        self.width, self.end = width, end

    def add_queries(self) -> None:
        """Create the learned queries, if configured; called last, so that other weights' random draws do not change."""
        if self.decoding_cfg.queries:
            self.action_queries = nn.Parameter(torch.randn(self.decoding_cfg.queries, self.width))

    @property
    @abstractmethod
    def stack(self) -> Any:
        """The language model's layers, from embeddings to hidden states."""
        ...

    @property
    @abstractmethod
    def stop(self) -> int:
        """Id of the end-of-text token."""
        ...

    @property
    @abstractmethod
    def patches(self) -> int:
        """P, tokens per image."""
        ...

    @abstractmethod
    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings (..., D) of token ids (...)."""
        ...

    @abstractmethod
    def words(self) -> Tensor:
        """Weight (V, D) of the language model's head."""
        ...

    @abstractmethod
    def encode_images(self, pictures: Tensor) -> Tensor:
        """Image features (B, P, V) of images (B, S, S, 3), from the vision encoder."""
        ...

    @abstractmethod
    def project(self, features: Tensor) -> Tensor:
        """Project image features (B, P, V) to embeddings (B, P, D)."""
        ...

    @abstractmethod
    def vision_encoder(self) -> nn.Module:
        """A copy of the vision encoder: images (B, S, S, 3) to (B, P, F)."""
        ...

    @abstractmethod
    def prefix(self, patches: Tensor, ids: Tensor, token_mask: Tensor, state: Tensor | None = None) -> Prefix:
        """Embed an image, a prompt and a state.

        Args:
            patches: (B, P, V) image features from `encode_images`.
            ids: (B, L) token ids of the prompt.
            token_mask: (B, L) bool, False for padding.
            state: (B, S) normalised; required if the config has a state.
        """
        ...

    def places(self, token_mask: Tensor, picture: Place) -> Tensor:
        """Positions (B, T), or (n, B, T) along several axes, of tokens; `token_mask` (B, T) is False for padding."""
        return places(token_mask)

    def mask(self, token_mask: Tensor, dtype: torch.dtype, causal: bool, prefix: Prefix) -> Tensor:
        """Additive attention mask (B, 1, T, T) of a prefix and the tokens after it; see `attention`."""
        return attention(token_mask, dtype, causal)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits (..., bins) of the action bins, in their order."""
        return (hidden @ self.words()[self.end - self.decoding_cfg.bins : self.end].T).flip(-1)

    def summary(self, prefix: Prefix) -> Tensor:
        """Hidden state (B, D) at the prompt's last token, before any action token."""
        return self._last(prefix, self.decoding_cfg.decoding == "autoregressive")

    def first(self, prefix: Prefix) -> Tensor:
        """Logits (B, bins) of the token after the prefix, with causal attention as in language-model training."""
        return self.head(self._last(prefix, causal=True))

    def action_states(self, prefix: Prefix, count: int) -> Tensor:
        """Hidden states (B, n, D) that predict action tokens, as far as known before any is decoded.

        All `count` of them in parallel decoding; the first alone in autoregressive decoding.
        """
        if self.decoding_cfg.decoding == "parallel":
            return self._parallel_states(prefix, count)
        return self.summary(prefix)[:, None]

    def logits(self, prefix: Prefix, tokens: Tensor) -> Tensor:
        """Logits (B, T, bins) of T action tokens.

        Args:
            prefix: embeddings before them.
            tokens: (B, T) bins. Each is predicted from those before it; in parallel decoding only their number matters.
        """
        if self.decoding_cfg.decoding == "parallel":
            return self._parallel(prefix, tokens.shape[1])
        said = self.embed(to_ids(tokens[:, :-1], self.end))
        hidden = self._run(prefix, said, causal=True)
        return self.head(self._behind(hidden, prefix, tokens.shape[1]))

    def sample(self, prefix: Prefix, count: int, choose: Any) -> Tensor:
        """Decode `count` action tokens (B, count), with a key-value cache.

        Args:
            prefix: embeddings before them.
            count: T, number of tokens.
            choose: selects bins (B, n) from logits (B, n, bins).
        """
        if self.decoding_cfg.decoding == "parallel":
            return choose(self._parallel(prefix, count))
        embeddings, token_mask, picture = prefix
        mask = self.mask(token_mask, embeddings.dtype, True, prefix)
        mask_after = additive_mask(token_mask[:, None], embeddings.dtype)
        at = self.places(token_mask, picture)
        positions_after = at[..., -1:] + 1 + torch.arange(count - 1, device=at.device)
        decoder = decode.decoder(self.stack, Masks(mask, mask_after), at, positions_after)
        hidden = decoder.read(embeddings, last_index(token_mask))
        bins = [choose(self.head(hidden))[:, 0]]
        while len(bins) < count:
            new = self.embed(to_ids(bins[-1], self.end))[:, None]
            bins.append(choose(self.head(decoder.step(new)))[:, 0])
        return torch.stack(bins, dim=1)

    def _parallel(self, prefix: Prefix, count: int) -> Tensor:
        """Logits (B, count, bins) of all tokens at once."""
        return self.head(self._parallel_states(prefix, count))

    def _parallel_states(self, prefix: Prefix, count: int) -> Tensor:
        """Hidden states (B, count, D) of parallel decoding, from queries or zeros followed by the end token."""
        batch, _, width = prefix.embeddings.shape
        queries = prefix.embeddings.new_zeros((batch, count, width))
        if self.decoding_cfg.queries:
            queries = queries + self.action_queries[:count]
        stop = torch.full((batch, 1), self.stop, device=queries.device)
        after = torch.cat([queries, self.embed(stop)], dim=1)
        return self._behind(self._run(prefix, after, causal=False), prefix, count)

    def _run(self, prefix: Prefix, after: Tensor, causal: bool) -> Tensor:
        """Hidden states (B, L + T, D) of the prefix and embeddings (B, T, D) after it."""
        token_mask = torch.cat([prefix.token_mask, prefix.token_mask.new_ones(after.shape[:2])], dim=1)
        inputs = torch.cat([prefix.embeddings, after.to(prefix.embeddings.dtype)], dim=1)
        return self._hidden(inputs, token_mask, causal, prefix)

    def _last(self, prefix: Prefix, causal: bool) -> Tensor:
        """Hidden state (B, D) at the prompt's last token."""
        hidden = self._hidden(prefix.embeddings, prefix.token_mask, causal, prefix)
        return hidden[torch.arange(len(hidden)), last_index(prefix.token_mask)]

    def _hidden(self, inputs: Tensor, token_mask: Tensor, causal: bool, prefix: Prefix) -> Tensor:
        """Hidden states (B, T, D) of embeddings (B, T, D) that begin with the prefix; `token_mask` as in `mask`."""
        mask, at = self.mask(token_mask, inputs.dtype, causal, prefix), self.places(token_mask, prefix.picture)
        out = self.stack(inputs_embeds=inputs, attention_mask=mask, position_ids=at, use_cache=False)
        return out.last_hidden_state

    def _behind(self, hidden: Tensor, prefix: Prefix, count: int) -> Tensor:
        """The `count` hidden states (B, count, D) at the prompt's last token and at those after the prefix."""
        last = hidden[torch.arange(len(hidden)), last_index(prefix.token_mask)][:, None]
        start = prefix.token_mask.shape[1]
        return torch.cat([last, hidden[:, start : start + count - 1]], dim=1)


def attention(token_mask: Tensor, dtype: torch.dtype, causal: bool, together: Place = NOWHERE) -> Tensor:
    """Additive attention mask (B, 1, T, T): 0 where a token (row) attends to another, the lowest number elsewhere.

    Args:
        token_mask: (B, T) bool, False for padding, which is visible to itself only.
        dtype: dtype of the mask.
        causal: tokens attend only to those before them ...
        together: ... except for this range of tokens, which all attend to each other.
    """
    length = token_mask.shape[1]
    visible = token_mask[:, None, :].expand(-1, length, -1)
    if causal:
        before = torch.ones(length, length, dtype=torch.bool, device=token_mask.device).tril()
        start, end = together
        before[start:end, start:end] = True
        visible = visible & before
    visible = visible | torch.eye(length, dtype=torch.bool, device=token_mask.device)
    return additive_mask(visible, dtype)


def additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive attention mask (B, 1, Q, T): 0 where `visible` (B, Q, T) is True, the lowest number elsewhere."""
    nothing = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return nothing.masked_fill(~visible, torch.finfo(dtype).min)[:, None]


def places(token_mask: Tensor) -> Tensor:
    """Positions (B, T) of tokens; padding takes none."""
    return (token_mask.long().cumsum(dim=1) - 1).clamp(min=0)


def last_index(token_mask: Tensor) -> Tensor:
    """Index (B,) of the last token that is not padding."""
    at = torch.arange(token_mask.shape[1], device=token_mask.device)
    return (at * token_mask).argmax(dim=1)
