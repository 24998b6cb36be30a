"""The record of a fault kind, and the outcomes of an attempt."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robotrl.errors import RobotrlError

LOGGER = logging.getLogger("robotrl.faults")
"""Debug lines show exceptions when one input is repeated."""
LONGEST = 600
"""Maximum length of an error that still counts as one line."""


class Outcome(StrEnum):
    """The result of one faulty input."""

    REFUSED = "refused"
    """A one-line `RobotrlError`, and nothing of the input was used."""
    CORRECTED = "corrected"
    """Corrected without loss: the result equals that of the sound input."""
    WARNED = "warned"
    """Used, and a warning named the fault."""
    CONTAINED = "contained"
    """Used in part or handled safely (a held or damped tick, one lost line or episode), and logged."""
    HARMLESS = "harmless"
    """The change is meaningless (a space in JSON): the result equals that of the sound input."""
    SILENT = "silent"
    """Used although wrong, without a message."""
    CRASHED = "crashed"
    """Another exception than a `RobotrlError`, a multi-line error, or a hanging process."""


FAILURES = (Outcome.SILENT, Outcome.CRASHED)
"""Outcomes that must not occur."""

Attempt = Callable[[np.random.Generator, Path], Outcome]
"""One try: takes a random generator for the input, and an empty folder for its files."""


class Kind(NamedTuple):
    """One kind of fault."""

    name: str
    """Short, unique in its area: "action columns in another order"."""
    wanted: tuple[Outcome, ...]
    """Correct outcomes for this kind."""
    inputs: int
    """Number of inputs that the bench tries."""
    attempt: Attempt
    """Makes one input from the generator, passes it to the code and returns the outcome."""


def outcome_of(call: Callable[[], object], used: Outcome = Outcome.SILENT) -> Outcome:
    """Run a call on a faulty input and return the outcome.

    Args:
        call: the code under test.
        used: the outcome if the call returns without a warning.
    """
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            call()
        except RobotrlError as error:
            text = str(error)
            LOGGER.debug("refused: %s", text)
            return Outcome.REFUSED if text and "\n" not in text and len(text) <= LONGEST else Outcome.CRASHED
        except Exception:
            LOGGER.debug("crashed", exc_info=True)
            return Outcome.CRASHED
    return Outcome.WARNED if any(issubclass(w.category, UserWarning) for w in seen) else used
