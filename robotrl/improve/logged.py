"""Logged episodes of a robot, whatever they were read from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

FaultKind = Literal[
    "another bundle",
    "another robot",
    "another rate",
    "another order",
    "another observation",
    "another unit",
    "nothing was sent",
    "other actions",
    "pictures",
    "corrections without marks",
    "contradicted success",
]
"""Kinds of faults of logs; each of them leads to no change."""


class LogFault(NamedTuple):
    """A reason for which a log cannot be learned from."""

    kind: FaultKind
    text: str
    """One sentence, which names the log, the value and the expectation."""


class OwnEpisode(NamedTuple):
    """One episode of T control steps that a robot lived through."""

    obs: dict[str, np.ndarray]
    """(T, ...) of each observation before the action."""
    actions: NDArray[np.float32]
    """(T, A) as sent to the robot, in its units."""
    success: bool
    truncated: bool
    """True if a time limit ended it."""
    person: NDArray[np.bool_]
    """(T,) True where a person's correction was executed."""
    start: int
    """Number of its start; -1 if it has none."""
    sim: str
    """Sim in which it was recorded; empty for a robot."""
    task: str
    origin: str
    """Log and number of the episode, e.g. "control.jsonl episode 3"."""


class LogBook(NamedTuple):
    """Episodes of one or more logs."""

    episodes: tuple[OwnEpisode, ...] = ()
    left_out: Mapping[str, int] = {}
    """Number of episodes that were left out, by the reason."""
    faults: tuple[LogFault, ...] = ()
    bundles: frozenset[str] = frozenset()
    """Ids of the bundles that drove, where the logs state them."""


def joined(books: Sequence[LogBook]) -> LogBook:
    """All logs as one, in the order given."""
    left_out: Counter[str] = Counter()
    for book in books:
        left_out.update(book.left_out)
    return LogBook(
        tuple(episode for book in books for episode in book.episodes),
        dict(left_out),
        tuple(fault for book in books for fault in book.faults),
        frozenset(name for book in books for name in book.bundles),
    )
