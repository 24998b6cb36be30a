"""Checks that observations and vocabularies match their spec, at the boundary of a policy or a controller.

Code behind the boundary does not check its input again, and errors would go unnoticed there: an image scaled to [0, 1]
is nearly black, a negative word id counts from the end.
"""

from __future__ import annotations

import functools
import math
from itertools import zip_longest
from typing import Any, NamedTuple

from robotrl.spec.arrays import Spec, is_picture

WHOLE = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
"""Integer dtypes."""
FLOATS = frozenset(("float16", "bfloat16", "float32", "float64"))
"""Floating-point dtypes."""
NUMBERS = WHOLE | FLOATS | {"bool"}
NO_WORDS = frozenset(("bool", "uint16", "uint32", "uint64"))
"""Dtypes that a policy's word ids may not have: torch does not compare the last three."""


def misfit(
    name: str, array: Any, spec: Spec, *, batched: bool = False, by_value: bool = False, read: bool = True
) -> str:
    """One-line description of how an array deviates from its spec; "" if it does not.

    Bounds of measured numbers are not checked: a robot's measurements may lie outside of them. The order of an image's
    channels cannot be checked.

    Args:
        name: key of the observation.
        array: a numpy array or a torch tensor.
        spec: expected shape and dtype.
        batched: whether a batch axis of any length stands in front.
        by_value: accept any numeric dtype, also for images: a robot's link sends everything as float32.
        read: whether to check the values too; on a GPU this waits for the device.
    """
    shape, dtype = tuple(array.shape), _named(array.dtype)
    if shape[batched:] != spec.shape or len(shape) != batched + len(spec.shape):
        wanted = f"({', '.join(['B', *map(str, spec.shape)])})" if batched else spec.shape
        return f"observation {name!r} has shape {shape}: expected {wanted}"
    if is_picture(spec):
        return _no_picture(name, array, dtype, spec, by_value and read)
    if spec.words:
        return _no_words(name, array, dtype, spec, by_value, read)
    # datasets return all measured numbers as float32
    if dtype in (NUMBERS if by_value else (spec.dtype, "float32")):
        return ""
    return f"observation {name!r} is {dtype}: expected {'numbers' if by_value else spec.dtype}"


@functools.cache
def _named(dtype: Any) -> str:
    # cached: called on every tick of a controller, where formatting the text would dominate
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
    # datasets return word ids as float32
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
    """A value of the array that is not an integer from 0 to `last`; None if there is none."""
    low, high = array.min(), array.max()
    # written so that NaN fails the test
    if not low >= 0 or not high <= last:
        return f"{float(high if low >= 0 else low):g}"
    if dtype in WHOLE or dtype == "bool":
        return None
    other = array.round() != array
    return f"{float(array[other][0]):g}" if other.any() else None


class WordDifference(NamedTuple):
    """First difference between two vocabularies."""

    number: int
    before: str
    """Word of the first vocabulary, quoted; "none" past its end."""
    now: str
    """Word of the second vocabulary, likewise."""


def first_word_difference(before: tuple[str, ...], now: tuple[str, ...]) -> WordDifference | None:
    """First word in which two vocabularies differ; None if they are equal."""
    if before == now:
        return None
    every = enumerate(zip_longest(before, now))
    number, (one, other) = next((number, pair) for number, pair in every if pair[0] != pair[1])
    return WordDifference(number, *("none" if word is None else repr(word) for word in (one, other)))
