"""Texts as word numbers: what a word is, a vocabulary, and the space of an instruction."""

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
"""Words of the longest instruction, where nothing says how many there are."""
MOST_WORDS = 1024
LONGEST_FILE = 1 << 24
"""Bytes of a vocabulary."""


class Lexicon:
    """A vocabulary, and how many words of it an instruction may have.

    Args:
        words: the vocabulary, without "".
        longest: words of the longest instruction.
    """

    def __init__(self, words: Sequence[str], longest: int) -> None:
        self.words: tuple[str, ...] = ("", *words)
        """By number; 0 stands for none."""
        self.longest = longest
        self._number = {word: i for i, word in enumerate(self.words) if word}

    def encode(self, text: str, field: str = "instruction") -> Numbers:
        """Word numbers (longest,) of a text, 0 after its end.

        Args:
            text: what is said.
            field: what it is, for errors.

        Raises:
            ConfigError: a word outside the vocabulary, no word, or more than `longest`.
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
    """The space of an instruction: its word numbers, padded with 0.

    Args:
        lexicon: the vocabulary and the length.
    """

    def __init__(self, lexicon: Lexicon) -> None:
        super().__init__(0, len(lexicon.words) - 1, (lexicon.longest,), np.int32)
        self.words = lexicon.words


def lexicon_of(text: str | None, vocabulary: Any, longest: Any) -> Lexicon:
    """The lexicon that options ask for.

    Args:
        text: the fixed instruction, None where there is none.
        vocabulary: words as one text, a list of words, or "@FILE"; None takes those of `text`.
        longest: words of the longest instruction; None takes those of `text` without `vocabulary`, else 24.

    Raises:
        ConfigError: a value of another kind or out of range, a file that cannot be read, or no word.
    """
    words = words_in(text or "") if vocabulary is None else _vocabulary(vocabulary)
    if not words:
        field, value = ("instruction", text) if vocabulary is None else ("vocabulary", vocabulary)
        raise out_of_range(field, value, "one word or more")
    if longest is None:
        longest = len(words) if vocabulary is None else DEFAULT_LONGEST
    check_count("longest", longest, 1, MOST_WORDS)
    return Lexicon(tuple(dict.fromkeys(words)), longest)


def _vocabulary(given: Any) -> list[str]:
    if isinstance(given, str):
        return words_in(_read(given) if given.startswith("@") else given)
    if not isinstance(given, Sequence) or not all(isinstance(word, str) for word in given):
        raise out_of_range("vocabulary", given, "a text, a list of words, or @FILE")
    return words_in(" ".join(given))


def _read(given: str) -> str:
    try:
        return read_plain(Path(given[1:]).expanduser(), "it", LONGEST_FILE).decode("utf-8")
    except (OSError, ValueError, RuntimeError, DataError) as error:
        why = getattr(error, "strerror", None) or error
        raise out_of_range("vocabulary", given, f"a file of words after the @ ({why})") from error


def said(words: Sequence[str], numbers: NDArray[Any]) -> str:
    """The words of an instruction's numbers (W,), with a space between them."""
    return " ".join(words[int(number)] for number in numbers if number)
