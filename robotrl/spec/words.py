"""What a word of an instruction is."""

from __future__ import annotations

import re

_WORD = re.compile(r"\w+(?:['.-]\w+)*")


def words_in(text: str) -> list[str]:
    """The words of a text, in lower case.

    A word is a run of letters, digits and underscores; hyphens, apostrophes and points belong to it where they stand
    inside. Everything else separates words and is left out.
    """
    return _WORD.findall(text.lower())
