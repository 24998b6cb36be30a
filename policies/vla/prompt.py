"""Tokenization of instructions as tensor operations: from word numbers to a prompt's token ids.

Each word of the sim's vocabulary is tokenized twice, as the first word of an instruction and with a space before it; a
prompt is composed from these ids. Words have different numbers of tokens, so there is padding between them, which
`token_mask` marks and the network masks. The constructor checks that composed prompts equal the tokenizer's ids of the
whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from robotrl.errors import ConfigError

Tokenize = Callable[[str], list[int]]
"""Ids of a text, special ones included."""
TASK = "{task}"


class Ids(NamedTuple):
    """Token ids of prompts and their mask."""

    ids: Tensor
    """(B, L) int64; arbitrary for padding."""
    token_mask: Tensor
    """(B, L) bool, False for padding."""


class Pieces(NamedTuple):
    """Token ids from which prompts are composed."""

    before: list[int]
    first: dict[str, list[int]]
    """Ids of each word at the start of an instruction."""
    later: dict[str, list[int]]
    """Ids of each word elsewhere."""
    after: list[int]


def unread(pieces: Pieces, unknown: int | None) -> str | None:
    """Message about the first word that the tokenizer cannot represent; None if it represents all of them.

    Two words may have the same ids only if they differ in capitalization alone.

    Args:
        pieces: token ids of the words.
        unknown: id of the unknown token, if there is one.
    """
    for rows in (pieces.first, pieces.later):
        by_ids: dict[tuple[int, ...], str] = {}
        for word, ids in rows.items():
            if not ids or unknown in ids:
                return f"makes {ids} of the sim's word {word!r}: expected known tokens"
            other = by_ids.setdefault(tuple(ids), word)
            if other.lower() != word.lower():
                return f"makes {ids} of the sim's words {other!r} and {word!r}: expected ids of their own"
    return None


class Prompt(nn.Module):
    """Module that converts instructions to prompts.

    Args:
        words: the vocabulary, "" for no word.
        template: prompt with "{task}" for the instruction.
        tokenize: tokenizes a whole text.

    Raises:
        ConfigError: the template has no "{task}", or words cannot be tokenized separately.
    """

    before: Tensor
    after: Tensor
    table: Tensor
    whole: Tensor

    def __init__(self, words: Sequence[str], template: str, tokenize: Tokenize) -> None:
        super().__init__()
        if template.count(TASK) != 1:
            raise ConfigError(f"prompt is {template!r}: expected {TASK} in it, once")
        pieces = _apart([word for word in words if word], template, tokenize)
        self.pieces = pieces
        """Token ids from which prompts are composed."""
        longest = max(len(row) for rows in (pieces.first, pieces.later) for row in rows.values())
        table = torch.zeros((2, len(words), longest), dtype=torch.int64)
        whole = torch.zeros((2, len(words), longest), dtype=torch.bool)
        for place, rows in enumerate((pieces.first, pieces.later)):
            for number, word in enumerate(words):
                row = rows.get(word, [])
                table[place, number, : len(row)] = torch.tensor(row, dtype=torch.int64)
                whole[place, number, : len(row)] = True
        for name, value in (("table", table), ("whole", whole)):
            self.register_buffer(name, value, persistent=False)
        for name, ids in (("before", pieces.before), ("after", pieces.after)):
            self.register_buffer(name, torch.tensor(ids, dtype=torch.int64), persistent=False)

    def forward(self, words: Tensor) -> Ids:
        """Prompts of instructions (B, W), as word numbers; numbers outside the vocabulary are a device-side error."""
        batch = len(words)
        number = words.long()
        ids, token_mask = (
            torch.cat([of[0][number[:, :1]], of[1][number[:, 1:]]], dim=1).flatten(1) for of in (self.table, self.whole)
        )
        around = [x.expand(batch, -1) for x in (self.before, self.after)]
        always = [torch.ones_like(x, dtype=torch.bool) for x in around]
        return Ids(torch.cat([around[0], ids, around[1]], dim=1), torch.cat([always[0], token_mask, always[1]], dim=1))


def _apart(said: list[str], template: str, tokenize: Tokenize) -> Pieces:
    """Ids of each word, and of the template before and after the words."""
    if not said:
        raise ConfigError("the vocabulary has no word: expected one at least")

    def prompt(some: Sequence[str]) -> list[int]:
        return tokenize(template.replace(TASK, " ".join(some)))

    # the common start and end of all prompts are those of the template
    alone = {word: prompt([word]) for word in said}
    marker = prompt([said[0], said[-1]])
    rows = [*alone.values(), marker]
    before = _common(rows)
    after = _common([row[len(before) :][::-1] for row in rows])[::-1]
    ends = len(before), len(after)
    first = {word: _between(row, *ends) for word, row in alone.items()}
    start = len(before) + len(first[said[0]])
    later = {word: _between(prompt([said[0], word]), start, len(after)) for word in said}
    # each word first, second and last, and all of them in a row
    probes = [[word] for word in said] + [[said[-1], word, said[0]] for word in said] + [said, said[::-1]]
    for some in probes:
        made = [*before, *first[some[0]], *(i for word in some[1:] for i in later[word]), *after]
        if made != prompt(some):
            raise ConfigError(
                f"prompt {template!r}: this tokenizer makes other ids of {' '.join(some[:3])!r} than of its words each:"
                " expected one that splits at spaces"
            )
    return Pieces(before, first, later, after)


def _common(rows: list[list[int]]) -> list[int]:
    """Longest common prefix of all rows."""
    shortest = min(rows, key=len)
    for at, value in enumerate(shortest):
        if any(row[at] != value for row in rows):
            return shortest[:at]
    return shortest


def _between(row: list[int], start: int, behind: int) -> list[int]:
    return row[start : len(row) - behind]


class WordTokenizer:
    """Word-level tokenizer with an id for each word, for small models trained from scratch.

    Args:
        words: the vocabulary; "" is ignored.

    Raises:
        ConfigError: when called with an unknown word.
    """

    BOS, STOP = 1, 2

    def __init__(self, words: Sequence[str]) -> None:
        self._number = {word: self.STOP + 1 + i for i, word in enumerate(dict.fromkeys(word for word in words if word))}

    def __len__(self) -> int:
        """Number of ids in use."""
        return self.STOP + 1 + len(self._number)

    def __call__(self, text: str) -> list[int]:
        """Ids of a text, the first of them `BOS`."""
        unknown = [word for word in text.split() if word not in self._number]
        if unknown:
            raise ConfigError(f"word {unknown[0]!r} is not in the vocabulary of {len(self._number)} words")
        return [self.BOS, *(self._number[word] for word in text.split())]
