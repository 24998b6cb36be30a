"""Scene encoder: attention over the rows of several lists, such as road users, lanes and the points of a route."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from robotrl.errors import ConfigError

HEADS = 4


class CrossAttention(nn.Module):
    """Pre-norm block: queries attend to all tokens, not to each other, then an MLP (Vaswani et al. 2017).

    Args:
        width: width of query and tokens, a multiple of `HEADS`.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))
        self.key_value = nn.Linear(width, 2 * width)
        self.join = nn.Linear(width, width)
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor, tokens: Tensor, absent: Tensor) -> Tensor:
        """Query (B, width) after attending to the tokens (B, T, width) that are not `absent` (B, T)."""
        return self.attend(x[:, None], tokens, absent)[:, 0]

    def attend(self, x: Tensor, tokens: Tensor, absent: Tensor) -> Tensor:
        """Queries (B, Q, width) after each has attended to the tokens; see `forward`."""
        batch, count, width = tokens.shape
        query = self.query(x).view(batch, -1, HEADS, width // HEADS).transpose(1, 2)
        key, value = (
            self.key_value(tokens).view(batch, count, 2, HEADS, width // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        )
        scores = (query @ key.transpose(-2, -1) / math.sqrt(width // HEADS)).masked_fill(absent[:, None, None], -1e9)
        x = x + self.join((scores.softmax(-1) @ value).transpose(1, 2).reshape(x.shape))
        return x + self.layers(x)


class SceneEncoder(nn.Module):
    """Encodes several lists of rows together: a query made of the vectors attends to the rows of all lists.

    A list with a mask is a set: its rows share their weights and carry no index, so their order changes nothing but
    rounding. A list without one is a sequence (the points of a route): each row has an embedding of its index. One
    learned token is always there, for scenes in which every list is empty.

    Args:
        vectors: width of the vector that the query is made of.
        lists: (K, D) of each list, by key.
        masked: keys of the lists that have a mask.
        features: width of tokens and output, a multiple of 4, the number of heads.
        layers: rounds of attention, 1 or more.

    Raises:
        ConfigError: `features` is no multiple of 4.
    """

    def __init__(
        self,
        vectors: int,
        lists: Mapping[str, tuple[int, int]],
        masked: frozenset[str],
        features: int,
        layers: int,
    ) -> None:
        super().__init__()
        if features % HEADS:
            raise ConfigError(
                f"policy.set_features is {features}: expected a multiple of {HEADS} with policy.set_attention, one part"
                " for each head"
            )
        self._masked = masked
        self.rows = nn.ModuleDict(
            {
                key: nn.Sequential(nn.Linear(width, features), nn.ReLU(), nn.Linear(features, features))
                for key, (_, width) in lists.items()
            }
        )
        self.places = nn.ParameterDict(
            {
                key: nn.Parameter(0.02 * torch.randn(count, features))
                for key, (count, _) in lists.items()
                if key not in masked
            }
        )
        self.always = nn.Parameter(0.02 * torch.randn(1, 1, features))
        self.first = nn.Linear(vectors, features)
        self.norm = nn.LayerNorm(features)
        self.blocks = nn.ModuleList(CrossAttention(features) for _ in range(layers))

    def forward(self, vectors: Tensor, lists: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Tensor:
        """Features (B, features).

        Args:
            vectors: (B, V) vectors that the query is made of.
            lists: (B, K, D) rows of each list.
            masks: (B, K) of each list that has a mask; rows at which it is 0 are left out.
        """
        joined, left_out = self.tokens(lists, masks)
        x = self.first(vectors)
        for block in self.blocks:
            x = block(x, joined, left_out)
        return x.to(vectors.dtype)

    def tokens(self, lists: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Tokens (B, T, features) of all lists, and (B, T) bool which of them are absent; see `forward`."""
        some = lists[next(iter(self.rows))]
        batch = len(some)
        tokens = [self.always.expand(batch, -1, -1)]
        absent = [torch.zeros((batch, 1), dtype=torch.bool, device=some.device)]
        for key, encoder in self.rows.items():
            row = encoder(lists[key])
            tokens.append(row if key in self._masked else row + self.places[key])
            is_set = key in self._masked
            absent.append(masks[key] == 0 if is_set else torch.zeros_like(row[..., 0], dtype=torch.bool))
        return self.norm(torch.cat(tokens, dim=1)), torch.cat(absent, dim=1)
