"""Texts as word numbers: what a word of an instruction is, and which number it has."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, nearest

_WORD = re.compile(r"\w+(?:['.-]\w+)*")


def words_in(text: str) -> list[str]:
    """The words of a text, in lower case.

    A word is a run of letters, digits and underscores; hyphens, apostrophes and points belong to it where they stand
    inside. Everything else separates words and is left out.
    """
    return _WORD.findall(text.lower())


def encode(
    text: str, number: Mapping[str, int], longest: int, *, what: str, limit: str, vocabulary: str
) -> NDArray[np.int32]:
    """Word numbers (longest,) of a text, 0 after its end.

    Args:
        text: what is said.
        number: of each word of the vocabulary.
        longest: words at most.
        what: the text and where it stands, for errors.
        limit: where `longest` comes from, likewise; put behind it.
        vocabulary: whose words they are, likewise.

    Raises:
        ConfigError: a word outside the vocabulary, no word, or more than `longest`.
    """
    said = words_in(text)
    if not 1 <= len(said) <= longest:
        raise ConfigError(f"{what} has {len(said)} words: expected 1 to {longest}{limit}")
    for word in said:
        if word not in number:
            close = nearest(word, number)
            hint = f"did you mean {close!r}? " if close else ""
            raise ConfigError(
                f"{what}: word {word!r} is unknown: {hint}expected one of the {len(number)} words of {vocabulary}"
            )
    out = np.zeros(longest, np.int32)
    out[: len(said)] = [number[word] for word in said]
    return out
