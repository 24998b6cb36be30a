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
"""Debug lines show what was raised, for one input that is looked at again."""
LONGEST = 600
"""Characters of an error that a user still reads as one line."""


class Outcome(StrEnum):
    """The result of one faulty input."""

    REFUSED = "refused"
    """A `RobotrlError` of one line, and nothing of the input was used."""
    CORRECTED = "corrected"
    """Mended without loss: the result equals that of the sound input."""
    WARNED = "warned"
    """Used, and a warning named the fault."""
    CONTAINED = "contained"
    """Used in part or answered safely: a held or damped tick, one lost line or episode, and the log says so."""
    HARMLESS = "harmless"
    """The change has no meaning (a space in JSON): the result equals that of the sound input."""
    SILENT = "silent"
    """Used as it stands, wrong, without a word."""
    CRASHED = "crashed"
    """Another exception than a `RobotrlError`, an error of many lines, or a process that hung."""


FAILURES = (Outcome.SILENT, Outcome.CRASHED)
"""Outcomes that must not occur."""

Attempt = Callable[[np.random.Generator, Path], Outcome]
"""One try: a generator that draws the input, and an empty folder that it may write to."""


class Kind(NamedTuple):
    """One kind of fault."""

    name: str
    """Short, unique in its area: "action columns in another order"."""
    wanted: tuple[Outcome, ...]
    """Outcomes that are right for this kind."""
    inputs: int
    """Number of inputs that the bench tries."""
    attempt: Attempt
    """Makes one input from the generator, gives it to the code and tells the outcome."""


def outcome_of(call: Callable[[], object], used: Outcome = Outcome.SILENT) -> Outcome:
    """Run a call on a faulty input and tell the outcome.

    Args:
        call: the code under test.
        used: the outcome where the call returns without a warning.
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
