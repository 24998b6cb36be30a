"""Symmetries of a sim: changes of what is seen, told and done under which it behaves alike.

An arm on a table is an example: mirrored, the words "left" and "right" exchanged, an episode is another one that might
have been. So one demonstration can be cloned in as many ways as there are changes, as GR-RL (ByteDance 2025) mirrors
two arms. `robotrl.fn.symmetry` has the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Signed(NamedTuple):
    """Numbers in another order, some of them negated."""

    order: tuple[int, ...]
    """Column i of the new is column `order[i]` of the old ..."""
    signs: tuple[float, ...]
    """... times this, 1 or -1."""


class Look(NamedTuple):
    """A picture seen otherwise."""

    flipped: bool = False
    """Whether left becomes right."""
    channels: tuple[int, int, int] = (0, 1, 2)
    """Channel i of the new is channel `channels[i]` of the old."""


class Symmetry(NamedTuple):
    """One change; each key of a sim's observation is in one of the first three."""

    numbers: Mapping[str, Signed]
    """Of measured arrays."""
    pictures: Mapping[str, Look]
    words: Mapping[str, tuple[int, ...]]
    """Of arrays of word numbers: what each word becomes, by number."""
    action: Signed
