"""Action tokens behind a picture and a prompt: what networks that say them share, whatever language model they have.

All attention goes by explicit masks: padding of the prompt is seen by nobody and takes no place, so a row says the same
in any batch, and tokens that all see each other need no patched library.
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
    """What the config of a network says about how it speaks."""

    @property
    def bins(self) -> int:
        """Of each element of an action."""
        ...

    @property
    def decoding(self) -> Decoding:
        """One token after the other, or all at once."""
        ...

    @property
    def state(self) -> int:
        """Width of the measured state that follows the picture; 0 for none."""
        ...

    @property
    def queries(self) -> int:
        """Parallel decoding: tokens that are said from learned embeddings; 0 for zeros."""
        ...


class Place(NamedTuple):
    """Where something stands among the tokens."""

    start: int
    end: int
    """One past the last."""


NOWHERE = Place(0, 0)


class Prefix(NamedTuple):
    """What stands before the action tokens."""

    embeddings: Tensor
    """(B, L, D)"""
    there: Tensor
    """(B, L) bool: False for padding of the prompt."""
    picture: Place = NOWHERE
    """Where the picture's patches stand, for networks to which it matters."""


class AutoregressiveVla(nn.Module, ABC):
    """A network that sees a picture, reads a prompt and says action tokens.

    Args:
        cfg: how it speaks.
        width: D, of the language model.
        end: one past the last of the actions' ids.

    Raises:
        ConfigError: an unknown decoding, more bins than ids, queries where tokens come one after the other.
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
        """How it speaks."""
        self.width, self.end = width, end

    def add_queries(self) -> None:
        """Make the learned embeddings, where the config has any: after all else, as all else is drawn before them."""
        if self.speech.queries:
            self.action_queries = nn.Parameter(torch.randn(self.speech.queries, self.width))

    @property
    @abstractmethod
    def stack(self) -> Any:
        """The language model, from embeddings to hidden states."""
        ...

    @property
    @abstractmethod
    def stop(self) -> int:
        """Id of the end of a text."""
        ...

    @property
    @abstractmethod
    def patches(self) -> int:
        """P, what a picture becomes."""
        ...

    @abstractmethod
    def embed(self, ids: Tensor) -> Tensor:
        """(..., D) of ids (...)."""
        ...

    @abstractmethod
    def words(self) -> Tensor:
        """(V, D) the language model's head."""
        ...

    @abstractmethod
    def sight(self, pictures: Tensor) -> Tensor:
        """What eyes make (B, P, V) of pictures (B, S, S, 3)."""
        ...

    @abstractmethod
    def seen(self, sight: Tensor) -> Tensor:
        """Embeddings (B, P, D) of what eyes made (B, P, V)."""
        ...

    @abstractmethod
    def eye(self) -> nn.Module:
        """A copy of what sees: pictures (B, S, S, 3) to (B, P, F)."""
        ...

    @abstractmethod
    def prefix(self, patches: Tensor, ids: Tensor, there: Tensor, state: Tensor | None = None) -> Prefix:
        """Embed a picture, a prompt and a state.

        Args:
            patches: (B, P, V) of the picture, from `sight`.
            ids: (B, L) the prompt.
            there: (B, L) bool, False where the prompt has a gap.
            state: (B, S) normalised; needed where the config has one.
        """
        ...

    def places(self, there: Tensor, picture: Place) -> Tensor:
        """(B, T) positions, or (n, B, T) along several axes, of tokens of which some are not there (B, T)."""
        return places(there)

    def mask(self, there: Tensor, dtype: torch.dtype, causal: bool, prefix: Prefix) -> Tensor:
        """(B, 1, T, T) what is added to attention behind and among a prefix; see `attention`."""
        return attention(there, dtype, causal)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits (..., bins) of the actions' ids alone, in the order of the bins."""
        return (hidden @ self.words()[self.end - self.speech.bins : self.end].T).flip(-1)

    def summary(self, prefix: Prefix) -> Tensor:
        """(B, D) the hidden state at the prompt's last token: what was seen and read, before anything is said."""
        return self._last(prefix, self.speech.decoding == "autoregressive")

    def first(self, prefix: Prefix) -> Tensor:
        """Logits (B, bins) of the token behind the prefix as the language model was trained to say it."""
        return self.head(self._last(prefix, causal=True))

    def speaking(self, prefix: Prefix, count: int) -> Tensor:
        """(B, n, D) the hidden states that say `count` action tokens, as far as they are there before any is said.

        In parallel decoding these are all; one after the other it is that of the first.
        """
        if self.speech.decoding == "parallel":
            return self._spoken(prefix, count)
        return self.summary(prefix)[:, None]

    def logits(self, prefix: Prefix, tokens: Tensor) -> Tensor:
        """Logits (B, T, bins) of T action tokens.

        Args:
            prefix: what stands before them.
            tokens: (B, T) bins. Each is predicted from those before it; in parallel decoding only their number counts.
        """
        if self.speech.decoding == "parallel":
            return self._parallel(prefix, tokens.shape[1])
        said = self.embed(to_ids(tokens[:, :-1], self.end))
        hidden = self._run(prefix, said, causal=True)
        return self.head(self._behind(hidden, prefix, tokens.shape[1]))

    def sample(self, prefix: Prefix, count: int, choose: Any) -> Tensor:
        """Say `count` action tokens (B, count); each pass goes over what is new alone.

        Args:
            prefix: what stands before them.
            count: T.
            choose: from logits (B, n, bins) to bins (B, n).
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
        """All tokens' logits (B, count, bins) at once."""
        return self.head(self._spoken(prefix, count))

    def _spoken(self, prefix: Prefix, count: int) -> Tensor:
        """The hidden states (B, count, D) that say all tokens at once, from queries or zeros and a stop behind them."""
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
        """(B, D) the hidden state at the prompt's last token."""
        hidden = self._hidden(prefix.embeddings, prefix.there, causal, prefix)
        return hidden[torch.arange(len(hidden)), last_of(prefix.there)]

    def _hidden(self, inputs: Tensor, there: Tensor, causal: bool, prefix: Prefix) -> Tensor:
        """Hidden states (B, T, D) of a prefix and more, embeddings (B, T, D) of which some are not there (B, T)."""
        mask, at = self.mask(there, inputs.dtype, causal, prefix), self.places(there, prefix.picture)
        out = self.stack(inputs_embeds=inputs, attention_mask=mask, position_ids=at, use_cache=False)
        return out.last_hidden_state

    def _behind(self, hidden: Tensor, prefix: Prefix, count: int) -> Tensor:
        """(B, count, D) of hidden states: at the last token of the prompt, and at those after the prefix."""
        last = hidden[torch.arange(len(hidden)), last_of(prefix.there)][:, None]
        start = prefix.there.shape[1]
        return torch.cat([last, hidden[:, start : start + count - 1]], dim=1)


def attention(there: Tensor, dtype: torch.dtype, causal: bool, together: Place = NOWHERE) -> Tensor:
    """(B, 1, T, T) what is added to attention: 0 where a token (row) sees another, the lowest number elsewhere.

    Args:
        there: (B, T) bool; nobody sees a token that is not there, but for itself.
        dtype: of the result.
        causal: whether tokens see only those before them ...
        together: ... but for those that stand here, which all see each other.
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
