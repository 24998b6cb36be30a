"""Texts as word indices of a vocabulary."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, nearest

_WORD = re.compile(r"\w+(?:['.-]\w+)*")


class UnknownWordError(ConfigError):
    """A text has a word outside the vocabulary."""


def words_in(text: str) -> list[str]:
    """Return the words of a text, in lower case.

    A word is a run of letters, digits and underscores, with hyphens, apostrophes and points inside. Everything else
    separates words and is dropped.
    """
    return _WORD.findall(text.lower())


def encode(
    text: str, number: Mapping[str, int], longest: int, *, what: str, limit: str, vocabulary: str
) -> NDArray[np.int32]:
    """Convert a text to word indices (longest,), padded with 0.

    Args:
        text: the text.
        number: index of each word of the vocabulary.
        longest: maximum number of words.
        what: name of the text, for errors.
        limit: origin of `longest`, appended to it in errors.
        vocabulary: owner of the vocabulary, for errors.

    Raises:
        UnknownWordError: a word outside the vocabulary.
        ConfigError: no word, or more than `longest`.
    """
    said = words_in(text)
    if not 1 <= len(said) <= longest:
        raise ConfigError(f"{what} has {len(said)} words: expected 1 to {longest}{limit}")
    for word in said:
        if word not in number:
            close = nearest(word, number)
            hint = f"did you mean {close!r}? " if close else ""
            raise UnknownWordError(
                f"{what}: word {word!r} is unknown: {hint}expected one of the {len(number)} words of {vocabulary}"
            )
    out = np.zeros(longest, np.int32)
    out[: len(said)] = [number[word] for word in said]
    return out
