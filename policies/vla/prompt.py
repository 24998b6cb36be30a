"""From word numbers to a prompt's token ids, as arithmetic on tensors.

Each word of the sim's vocabulary is tokenised once, by itself, with what a space before it makes of it; a prompt is put
together from these. Words have different numbers of tokens, so there are gaps, which `there` marks and the network's
masks leave out. That a prompt put together so is the one that the tokenizer makes of the whole text is checked.
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
    """Prompts."""

    ids: Tensor
    """(B, L) int64; anything in the gaps."""
    there: Tensor
    """(B, L) bool, False in the gaps."""


class Prompt(nn.Module):
    """Prompts around instructions.

    Args:
        words: the vocabulary, "" standing for none.
        template: with "{task}" where the words go.
        tokenize: of a whole text.

    Raises:
        ConfigError: the template has no "{task}", or words cannot be tokenised apart.
    """

    before: Tensor
    after: Tensor
    table: Tensor
    whole: Tensor

    def __init__(self, words: Sequence[str], template: str, tokenize: Tokenize) -> None:
        super().__init__()
        if template.count(TASK) != 1:
            raise ConfigError(f"prompt is {template!r}: expected {TASK} in it, once")
        said = [word for word in words if word]
        rows, before, after = _apart(said, template, tokenize)
        longest = max(map(len, rows), default=1)
        table = torch.zeros((len(words), longest), dtype=torch.int64)
        whole = torch.zeros((len(words), longest), dtype=torch.bool)
        for number, word in enumerate(words):
            if word:
                row = rows[said.index(word)]
                table[number, : len(row)] = torch.tensor(row)
                whole[number, : len(row)] = True
        for name, value in (("table", table), ("whole", whole)):
            self.register_buffer(name, value, persistent=False)
        for name, ids in (("before", before), ("after", after)):
            self.register_buffer(name, torch.tensor(ids, dtype=torch.int64), persistent=False)

    def forward(self, words: Tensor) -> Ids:
        """Prompts of instructions (B, W), word numbers; numbers outside the vocabulary are an error of the device."""
        batch = len(words)
        number = words.long()
        ids, there = self.table[number].flatten(1), self.whole[number].flatten(1)
        around = [x.expand(batch, -1) for x in (self.before, self.after)]
        always = [torch.ones_like(x, dtype=torch.bool) for x in around]
        return Ids(torch.cat([around[0], ids, around[1]], dim=1), torch.cat([always[0], there, always[1]], dim=1))


def _apart(said: list[str], template: str, tokenize: Tokenize) -> tuple[list[list[int]], list[int], list[int]]:
    """Ids of each word, of what stands before the words and of what stands behind them.

    Each word is found between two others, so that it is tokenised as it is in a sentence.
    """
    if not said:
        raise ConfigError("the vocabulary has no word: expected one at least")
    one = said[0]
    once, twice = (tokenize(template.replace(TASK, " ".join([one] * count))) for count in (1, 2))
    size = len(twice) - len(once)
    # where the second occurrence begins: behind the first, which ends where the two prompts part ways at the latest
    shared = next((i for i, (a, b) in enumerate(zip(once, twice, strict=False)) if a != b), len(once))
    for start in range(shared - size, -1, -1):
        before, word, after = once[:start], once[start : start + size], once[start + size :]
        if before + word + word + after != twice:
            continue
        rows = []
        for other in said:
            ids = tokenize(template.replace(TASK, f"{one} {other} {one}"))
            rows.append(ids[len(before) + size : len(ids) - len(after) - size])
        # each word first and last, and all of them in a row
        probes = [(i,) for i in range(len(said))] + [tuple(range(len(said)))]
        if all(
            before + [i for k in some for i in rows[k]] + after
            == tokenize(template.replace(TASK, " ".join(said[k] for k in some)))
            for some in probes
        ):
            return rows, before, after
    raise ConfigError(
        f"prompt {template!r}: this tokenizer makes other ids of words in a sentence than of each alone: expected one"
        " that splits at spaces"
    )


class WordTokenizer:
    """A tokenizer made in code: a number for each word; for small models that are trained from nothing.

    Args:
        words: what can be said, "" left out.

    Raises:
        ConfigError: when called, a word that it does not know.
    """

    BOS, STOP = 1, 2

    def __init__(self, words: Sequence[str]) -> None:
        self._number = {word: self.STOP + 1 + i for i, word in enumerate(dict.fromkeys(word for word in words if word))}

    def __len__(self) -> int:
        """Ids in use."""
        return self.STOP + 1 + len(self._number)

    def __call__(self, text: str) -> list[int]:
        """Ids of a text, the first of them `BOS`."""
        unknown = [word for word in text.split() if word not in self._number]
        if unknown:
            raise ConfigError(f"word {unknown[0]!r} is not in the vocabulary of {len(self._number)} words")
        return [self.BOS, *(self._number[word] for word in text.split())]
