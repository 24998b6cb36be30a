"""Errors as tests know them: by what they name, not by their wording."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeVar

import pytest

E = TypeVar("E", bound=BaseException)


def times_named(text: str, part: object) -> int:
    """Number of times that a text has `part` as a word or number of its own.

    "1" is in "is 1:" and not in "10", "-1" or "0.1".
    """
    return len(re.findall(rf"(?<![\w.-]){re.escape(str(part))}(?!\.?\w)", text))


@contextmanager
def raises_naming(
    error: type[E], field: str, *parts: object, nearest: str | None = None
) -> Generator[pytest.ExceptionInfo[E]]:
    """Expect an error of one line that names a field, and the given parts of the rest, in any order and wording.

    Args:
        error: its class.
        field: field, option or file at fault.
        parts: its value and what was expected, the numbers and names alone.
        nearest: the valid choice that is suggested.
    """
    with pytest.raises(error) as caught:
        yield caught
    said = str(caught.value)
    assert "\n" not in said, f"an error of several lines: {said}"
    wanted = Counter(str(part) for part in (field, *parts))
    missing = [part for part, times in wanted.items() if times_named(said, part) < times]
    assert not missing, f"{said!r} does not name {missing}"
    assert nearest is None or f"'{nearest}'" in said, f"{said!r} does not suggest {nearest!r}"
