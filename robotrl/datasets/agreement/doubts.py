"""What about a dataset is doubtful: said in one warning, or refused, unless its user knows it to be right."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from robotrl.errors import DataError

KNOWN = "accept_data (--accept-data)"
"""The setting by which a user says that doubtful data is right."""
NAMED = 3
"""Doubts that an error tells before it counts."""


class Doubt(NamedTuple):
    """Something about a dataset that may be right, and probably is not."""

    text: str
    """What was found, and what was expected."""
    grave: bool
    """Whether nothing is learned from it before its user has said that it is right."""


def settle(root: Path, doubts: Iterable[Doubt], accept: bool) -> None:
    """Refuse grave doubts, tell of the others in one warning; without effect where the user knows the data.

    Args:
        root: of the dataset.
        doubts: what was found.
        accept: whether its user said that the data is right.

    Raises:
        DataError: a grave doubt.
    """
    found = list(dict.fromkeys(doubts))
    if accept or not found:
        return
    grave = [doubt.text for doubt in found if doubt.grave]
    if grave:
        more = f"; and {len(grave) - NAMED} more" if len(grave) > NAMED else ""
        raise DataError(f"dataset {root}: {'; '.join(grave[:NAMED])}{more}; if you know it to be right: {KNOWN}")
    said = "; ".join(doubt.text for doubt in found)
    warnings.warn(f"dataset {root} is doubtful: {said}; if you know it to be right: {KNOWN}", stacklevel=3)
