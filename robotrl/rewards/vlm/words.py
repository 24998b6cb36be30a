"""Tokenizer of whole words, for small models with a vocabulary of their own.

CLIP's byte-pair table has 49,408 rows, which would be most of a model of half a million parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import ConfigError
from robotrl.fn.text.words import encode, words_in

PAD = 0


class WholeWordTokenizer:
    """Token ids of sentences: 1 and up for words, the highest id for the end, 0 behind it.

    Args:
        words: the vocabulary, without duplicates.
        longest: maximum number of words in a sentence.
    """

    def __init__(self, words: Sequence[str], longest: int) -> None:
        self.words, self.longest = tuple(words), longest
        self._number = {word: i for i, word in enumerate(self.words, start=1)}

    @classmethod
    def of(cls, sentences: Iterable[str]) -> WholeWordTokenizer:
        """The tokenizer of all words in these sentences."""
        split = [words_in(sentence) for sentence in sentences]
        return cls(sorted({word for words in split for word in words}), max(len(words) for words in split))

    @property
    def vocab_size(self) -> int:
        """Number of ids, padding and end included."""
        return len(self.words) + 2

    @property
    def context_length(self) -> int:
        """Length of a row of ids."""
        return self.longest + 1

    def __call__(self, sentences: Sequence[str]) -> Tensor:
        """Ids (n, `context_length`) of sentences.

        Raises:
            ConfigError: a word outside the vocabulary, no word, or too many; the sentence is named.
        """
        if not sentences:
            raise ConfigError("prompts are empty: expected one sentence or more")
        out = torch.full((len(sentences), self.context_length), PAD, dtype=torch.int64)
        for row, sentence in zip(out, sentences, strict=True):
            ids = encode(
                sentence,
                self._number,
                self.longest,
                what=f"prompt {sentence!r}",
                limit=", the longest that the model was trained on",
                vocabulary="the model",
            )
            count = int(np.count_nonzero(ids))
            row[:count] = torch.from_numpy(ids[:count].astype(np.int64))
            row[count] = self.vocab_size - 1
        return out
