"""Symmetries of a sim: transformations of observations, instructions and actions that leave its dynamics unchanged.

Example: mirror a tabletop arm and exchange the words "left" and "right"; the mirrored episode is a valid episode. Each
demonstration can so be augmented with every symmetry, as GR-RL (ByteDance 2025) mirrors two arms. The transformations
are applied by `robotrl.fn.symmetry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Signed(NamedTuple):
    """Signed permutation of the columns of an array."""

    order: tuple[int, ...]
    """Column i of the result is column `order[i]` of the input ..."""
    signs: tuple[float, ...]
    """... times this sign, 1 or -1."""


class Look(NamedTuple):
    """Transformation of an image."""

    flipped: bool = False
    """True if the image is mirrored left to right."""
    channels: tuple[int, int, int] = (0, 1, 2)
    """Channel i of the result is channel `channels[i]` of the input."""


class Symmetry(NamedTuple):
    """One symmetry; each observation key of the sim is in exactly one of the first three fields."""

    numbers: Mapping[str, Signed]
    """Signed permutations of measured arrays, by key."""
    pictures: Mapping[str, Look]
    words: Mapping[str, tuple[int, ...]]
    """Word permutations by key: the new id of each word id."""
    action: Signed
