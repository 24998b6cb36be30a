"""Whether what somebody hands in is what a spec says: arrays at the border of a policy or a controller, and words.

Behind the border arrays are taken as they are, and the wrong ones are not noticed there: a picture of numbers from 0 to
1 is nearly black, a word number below 0 counts from the end.
"""

from __future__ import annotations

import functools
import math
from itertools import zip_longest
from typing import Any, NamedTuple

from robotrl.spec.arrays import Spec, is_picture

WHOLE = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
"""Types of whole numbers ..."""
FLOATS = frozenset(("float16", "bfloat16", "float32", "float64"))
"""... and of others."""
NUMBERS = WHOLE | FLOATS | {"bool"}
NO_WORDS = frozenset(("bool", "uint16", "uint32", "uint64"))
"""Types that word numbers of a policy may not have: torch compares none of the last three."""


def misfit(
    name: str, array: Any, spec: Spec, *, batched: bool = False, by_value: bool = False, read: bool = True
) -> str:
    """What about an array is not as its spec says, in one line for the user; "" where all of it is.

    Bounds of measured numbers are not looked at: what a robot measures may lie outside of them. Nor can the order of a
    picture's channels be seen.

    Args:
        name: key of the observation.
        array: numpy's or torch's.
        spec: what is expected.
        batched: whether a batch axis of any length stands in front.
        by_value: whether numbers may be of any type, bytes of a picture included: a robot's link has float32 for all.
        read: whether the numbers may be looked at; where they lie on a GPU that would wait for it.
    """
    shape, dtype = tuple(array.shape), _named(array.dtype)
    if shape[batched:] != spec.shape or len(shape) != batched + len(spec.shape):
        wanted = f"({', '.join(['B', *map(str, spec.shape)])})" if batched else spec.shape
        return f"observation {name!r} has shape {shape}: expected {wanted}"
    if is_picture(spec):
        return _no_picture(name, array, dtype, spec, by_value and read)
    if spec.words:
        return _no_words(name, array, dtype, spec, by_value, read)
    # datasets hand out all that is measured as float32
    if dtype in (NUMBERS if by_value else (spec.dtype, "float32")):
        return ""
    return f"observation {name!r} is {dtype}: expected {'numbers' if by_value else spec.dtype}"


@functools.cache
def _named(dtype: Any) -> str:
    # on every tick of a controller, where making the text would take longer than all else here
    return str(dtype).removeprefix("torch.")


def _no_picture(name: str, array: Any, dtype: str, spec: Spec, by_value: bool) -> str:
    bytes_of = f"0 to 255 for each of {', '.join(spec.names)}"
    if dtype == "uint8":
        return ""
    if not by_value or dtype not in NUMBERS:
        return f"observation {name!r} is {dtype}: expected uint8, {bytes_of}"
    wrong = _not_whole(array, dtype, 255)
    return "" if wrong is None else f"observation {name!r} holds {wrong}: expected whole numbers, {bytes_of}"


def _no_words(name: str, array: Any, dtype: str, spec: Spec, by_value: bool, read: bool) -> str:
    # datasets hand out word numbers as float32
    if dtype not in NUMBERS or (not by_value and dtype in NO_WORDS):
        return f"observation {name!r} is {dtype}: expected {spec.dtype}, word numbers"
    if not read or not math.prod(array.shape):
        return ""
    last, none = len(spec.words) - 1, not spec.words[0]
    wrong = _not_whole(array, dtype, last)
    if wrong is not None:
        ends = f"0 ({'none' if none else repr(spec.words[0])}) to {last} ({spec.words[last]!r})"
        return f"observation {name!r} holds word number {wrong}: expected whole numbers from {ends}"
    if none and not (array > 0).any(-1).all():
        return f"observation {name!r} says no word: expected 1 to {spec.shape[-1]}"
    return ""


def _not_whole(array: Any, dtype: str, last: int) -> str | None:
    """A number that is not a whole one from 0 to `last`, None where there is none."""
    low, high = array.min(), array.max()
    # so that NaN counts
    if not low >= 0 or not high <= last:
        return f"{float(high if low >= 0 else low):g}"
    if dtype in WHOLE or dtype == "bool":
        return None
    other = array.round() != array
    return f"{float(array[other][0]):g}" if other.any() else None


class OtherWord(NamedTuple):
    """Where two vocabularies differ first."""

    number: int
    before: str
    """The word of the one, quoted; "none" where it has ended."""
    now: str
    """That of the other."""


def other_word(before: tuple[str, ...], now: tuple[str, ...]) -> OtherWord | None:
    """Where two vocabularies differ first, None where they are the same."""
    if before == now:
        return None
    every = enumerate(zip_longest(before, now))
    number, (one, other) = next((number, pair) for number, pair in every if pair[0] != pair[1])
    return OtherWord(number, *("none" if word is None else repr(word) for word in (one, other)))
