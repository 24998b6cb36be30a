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


class SpeakerCfg(Protocol):
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
    there: Tensor
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

    def __init__(self, cfg: SpeakerCfg, width: int, end: int) -> None:
        super().__init__()
        if cfg.decoding not in DECODINGS:
            raise unknown("decoding", str(cfg.decoding), DECODINGS)
        if cfg.bins >= end:
            raise ConfigError(f"bins is {cfg.bins}: expected less than the {end} ids of the vocabulary")
        if cfg.queries and cfg.decoding != "parallel":
            raise ConfigError(f"queries is {cfg.queries} and decoding is {cfg.decoding!r}: expected 0, or 'parallel'")
        self.speech = cfg
        """Decoding settings."""
        self.width, self.end = width, end

    def add_queries(self) -> None:
        """Create the learned queries, if configured; called last, so that other weights' random draws do not change."""
        if self.speech.queries:
            self.action_queries = nn.Parameter(torch.randn(self.speech.queries, self.width))

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
    def sight(self, pictures: Tensor) -> Tensor:
        """Image features (B, P, V) of images (B, S, S, 3), from the vision encoder."""
        ...

    @abstractmethod
    def seen(self, sight: Tensor) -> Tensor:
        """Project image features (B, P, V) to embeddings (B, P, D)."""
        ...

    @abstractmethod
    def eye(self) -> nn.Module:
        """A copy of the vision encoder: images (B, S, S, 3) to (B, P, F)."""
        ...

    @abstractmethod
    def prefix(self, patches: Tensor, ids: Tensor, there: Tensor, state: Tensor | None = None) -> Prefix:
        """Embed an image, a prompt and a state.

        Args:
            patches: (B, P, V) image features from `sight`.
            ids: (B, L) token ids of the prompt.
            there: (B, L) bool, False for padding.
            state: (B, S) normalised; required if the config has a state.
        """
        ...

    def places(self, there: Tensor, picture: Place) -> Tensor:
        """Positions (B, T), or (n, B, T) along several axes, of tokens with padding where `there` (B, T) is False."""
        return places(there)

    def mask(self, there: Tensor, dtype: torch.dtype, causal: bool, prefix: Prefix) -> Tensor:
        """Additive attention mask (B, 1, T, T) of a prefix and the tokens after it; see `attention`."""
        return attention(there, dtype, causal)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits (..., bins) of the action bins, in their order."""
        return (hidden @ self.words()[self.end - self.speech.bins : self.end].T).flip(-1)

    def summary(self, prefix: Prefix) -> Tensor:
        """Hidden state (B, D) at the prompt's last token, before any action token."""
        return self._last(prefix, self.speech.decoding == "autoregressive")

    def first(self, prefix: Prefix) -> Tensor:
        """Logits (B, bins) of the token after the prefix, with causal attention as in language-model training."""
        return self.head(self._last(prefix, causal=True))

    def speaking(self, prefix: Prefix, count: int) -> Tensor:
        """Hidden states (B, n, D) that predict action tokens, as far as known before any is decoded.

        All `count` of them in parallel decoding; the first alone in autoregressive decoding.
        """
        if self.speech.decoding == "parallel":
            return self._spoken(prefix, count)
        return self.summary(prefix)[:, None]

    def logits(self, prefix: Prefix, tokens: Tensor) -> Tensor:
        """Logits (B, T, bins) of T action tokens.

        Args:
            prefix: embeddings before them.
            tokens: (B, T) bins. Each is predicted from those before it; in parallel decoding only their number matters.
        """
        if self.speech.decoding == "parallel":
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
        if self.speech.decoding == "parallel":
            return choose(self._parallel(prefix, count))
        embeddings, there, picture = prefix
        mask = self.mask(there, embeddings.dtype, True, prefix)
        hidden_from = hiding(there[:, None], embeddings.dtype)
        at = self.places(there, picture)
        behind = at[..., -1:] + 1 + torch.arange(count - 1, device=at.device)
        goes_on = decode.reader(self.stack, Masks(mask, hidden_from), at, behind)
        hidden = goes_on.read(embeddings, last_of(there))
        said = [choose(self.head(hidden))[:, 0]]
        while len(said) < count:
            new = self.embed(to_ids(said[-1], self.end))[:, None]
            said.append(choose(self.head(goes_on.step(new)))[:, 0])
        return torch.stack(said, dim=1)

    def _parallel(self, prefix: Prefix, count: int) -> Tensor:
        """Logits (B, count, bins) of all tokens at once."""
        return self.head(self._spoken(prefix, count))

    def _spoken(self, prefix: Prefix, count: int) -> Tensor:
        """Hidden states (B, count, D) of parallel decoding, from queries or zeros followed by the end token."""
        batch, _, width = prefix.embeddings.shape
        asked = prefix.embeddings.new_zeros((batch, count, width))
        if self.speech.queries:
            asked = asked + self.action_queries[:count]
        stop = torch.full((batch, 1), self.stop, device=asked.device)
        after = torch.cat([asked, self.embed(stop)], dim=1)
        return self._behind(self._run(prefix, after, causal=False), prefix, count)

    def _run(self, prefix: Prefix, after: Tensor, causal: bool) -> Tensor:
        """Hidden states (B, L + T, D) of the prefix and embeddings (B, T, D) after it."""
        there = torch.cat([prefix.there, prefix.there.new_ones(after.shape[:2])], dim=1)
        inputs = torch.cat([prefix.embeddings, after.to(prefix.embeddings.dtype)], dim=1)
        return self._hidden(inputs, there, causal, prefix)

    def _last(self, prefix: Prefix, causal: bool) -> Tensor:
        """Hidden state (B, D) at the prompt's last token."""
        hidden = self._hidden(prefix.embeddings, prefix.there, causal, prefix)
        return hidden[torch.arange(len(hidden)), last_of(prefix.there)]

    def _hidden(self, inputs: Tensor, there: Tensor, causal: bool, prefix: Prefix) -> Tensor:
        """Hidden states (B, T, D) of embeddings (B, T, D) that begin with the prefix; `there` (B, T) marks padding."""
        mask, at = self.mask(there, inputs.dtype, causal, prefix), self.places(there, prefix.picture)
        out = self.stack(inputs_embeds=inputs, attention_mask=mask, position_ids=at, use_cache=False)
        return out.last_hidden_state

    def _behind(self, hidden: Tensor, prefix: Prefix, count: int) -> Tensor:
        """The `count` hidden states (B, count, D) at the prompt's last token and at those after the prefix."""
        last = hidden[torch.arange(len(hidden)), last_of(prefix.there)][:, None]
        start = prefix.there.shape[1]
        return torch.cat([last, hidden[:, start : start + count - 1]], dim=1)


def attention(there: Tensor, dtype: torch.dtype, causal: bool, together: Place = NOWHERE) -> Tensor:
    """Additive attention mask (B, 1, T, T): 0 where a token (row) attends to another, the lowest number elsewhere.

    Args:
        there: (B, T) bool, False for padding, which is visible to itself only.
        dtype: dtype of the mask.
        causal: tokens attend only to those before them ...
        together: ... except for this range of tokens, which all attend to each other.
    """
    length = there.shape[1]
    seen = there[:, None, :].expand(-1, length, -1)
    if causal:
        before = torch.ones(length, length, dtype=torch.bool, device=there.device).tril()
        start, end = together
        before[start:end, start:end] = True
        seen = seen & before
    seen = seen | torch.eye(length, dtype=torch.bool, device=there.device)
    return hiding(seen, dtype)


def hiding(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive attention mask (B, 1, Q, T): 0 where `seen` (B, Q, T) is True, the lowest number elsewhere."""
    nothing = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return nothing.masked_fill(~seen, torch.finfo(dtype).min)[:, None]


def places(there: Tensor) -> Tensor:
    """Positions (B, T) of tokens; padding takes none."""
    return (there.long().cumsum(dim=1) - 1).clamp(min=0)


def last_of(there: Tensor) -> Tensor:
    """Index (B,) of the last token that is not padding."""
    at = torch.arange(there.shape[1], device=there.device)
    return (at * there).argmax(dim=1)
