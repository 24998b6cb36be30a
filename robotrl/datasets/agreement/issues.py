"""Doubts about a dataset: reported in one warning, or refused, unless the user accepts the data."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from robotrl.errors import DataError

KNOWN = "accept_data (--accept-data)"
"""Setting by which a user accepts doubtful data."""
NAMED = 3
"""Number of doubts that an error lists before it only counts them."""


class DataIssue(NamedTuple):
    """A property of a dataset that is probably wrong, but may be right."""

    text: str
    """Observed and expected values, as text."""
    severe: bool
    """True if training is refused until the user accepts the data."""


def settle(root: Path, issues: Iterable[DataIssue], accept: bool) -> None:
    """Raise on grave doubts, and report the others in one warning; no effect if the user accepted the data.

    Args:
        root: the dataset's directory.
        issues: the doubts about it.
        accept: whether the user has accepted the data.

    Raises:
        DataError: a grave doubt.
    """
    found = list(dict.fromkeys(issues))
    if accept or not found:
        return
    severe = [issue.text for issue in found if issue.severe]
    if severe:
        more = f"; and {len(severe) - NAMED} more" if len(severe) > NAMED else ""
        raise DataError(f"dataset {root}: {'; '.join(severe[:NAMED])}{more}; if you know it to be right: {KNOWN}")
    said = "; ".join(issue.text for issue in found)
    warnings.warn(f"dataset {root} is doubtful: {said}; if you know it to be right: {KNOWN}", stacklevel=3)
