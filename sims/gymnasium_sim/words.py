"""Encodes texts as word numbers: the vocabulary, and the observation space of an instruction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from robotrl.errors import DataError, check_count, out_of_range
from robotrl.fn.text.words import encode, words_in
from robotrl.utils.files import read_plain

Numbers = NDArray[np.int32]
DEFAULT_LONGEST = 24
"""Default maximum number of words of an instruction."""
MOST_WORDS = 1024
LONGEST_FILE = 1 << 24
"""Maximum size of a vocabulary file, bytes."""


class Vocabulary:
    """Vocabulary and maximum instruction length.

    Args:
        words: the vocabulary, without "".
        longest: maximum number of words of an instruction.
    """

    def __init__(self, words: Sequence[str], longest: int) -> None:
        self.words: tuple[str, ...] = ("", *words)
        """Words by number; number 0 is padding ("")."""
        self.longest = longest
        self._number = {word: i for i, word in enumerate(self.words) if word}

    def encode(self, text: str, field: str = "instruction") -> Numbers:
        """Word numbers (longest,) of a text, padded with 0.

        Args:
            text: the text.
            field: name of the text in errors.

        Raises:
            ConfigError: a word outside the vocabulary, no word, or more than `longest` words.
        """
        return encode(
            text,
            self._number,
            self.longest,
            what=f"{field} {text!r}",
            limit=f" (option longest={self.longest})",
            vocabulary="the option vocabulary",
        )


class Words(spaces.Box):
    """Observation space of an instruction: word numbers, padded with 0.

    Args:
        vocab: vocabulary and maximum length.
    """

    def __init__(self, vocab: Vocabulary) -> None:
        super().__init__(0, len(vocab.words) - 1, (vocab.longest,), np.int32)
        self.words = vocab.words


def vocabulary_of(text: str | None, vocabulary: Any, longest: Any) -> Vocabulary:
    """Build the vocab from the options.

    Args:
        text: the fixed instruction, or None.
        vocabulary: words as one text, a list of words, or "@FILE"; None uses the words of `text`.
        longest: maximum number of words; None uses the length of `text` if `vocabulary` is None, else 24.

    Raises:
        ConfigError: a value of another type or out of range, a file that cannot be read, or no word.
    """
    words = words_in(text or "") if vocabulary is None else _vocabulary(vocabulary)
    if not words:
        field, value = ("instruction", text) if vocabulary is None else ("vocabulary", vocabulary)
        raise out_of_range(field, value, "one word or more")
    if longest is None:
        longest = len(words) if vocabulary is None else DEFAULT_LONGEST
    check_count("longest", longest, 1, MOST_WORDS)
    return Vocabulary(tuple(dict.fromkeys(words)), longest)


def _vocabulary(given: Any) -> list[str]:
    if isinstance(given, str):
        return words_in(_read(given) if given.startswith("@") else given)
    if not isinstance(given, Sequence) or not all(isinstance(word, str) for word in given):
        raise out_of_range("vocabulary", given, "a text, a list of words, or @FILE")
    if len(given) == 1:  # pyright: ignore[reportUnknownArgumentType]
        return _vocabulary(given[0])
    return words_in(" ".join(given))


def _read(given: str) -> str:
    try:
        return read_plain(Path(given[1:]).expanduser(), "it", LONGEST_FILE).decode("utf-8")
    except (OSError, ValueError, RuntimeError, DataError) as error:
        why = getattr(error, "strerror", None) or error
        raise out_of_range("vocabulary", given, f"a file of words after the @ ({why})") from error


def said(words: Sequence[str], numbers: NDArray[Any]) -> str:
    """Text of word numbers (W,)."""
    return " ".join(words[int(number)] for number in numbers if number)
