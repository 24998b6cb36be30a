"""Questions about pairs of segments, the answers, and their store on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robotrl.rewards.preferences.segments import pair_key
from robotrl.rewards.scoring.answer_files import AnswerFiles

FIRST, SECOND, NEITHER = 0, 1, -1
"""Answers: the first segment is better, the second one is, or neither; the last is kept, and not learned from."""
ANSWERS = (FIRST, SECOND, NEITHER)


class Question(NamedTuple):
    """Question about two segments: which is better."""

    key: bytes
    """Of the pair in this order."""
    advantage: float
    """Sum of the sim's own rewards in the second segment less that in the first, which synthetic answers go by."""
    clips: NDArray[np.uint8] | None
    """(2, F, h, w, 3): F pictures of each segment, in the order of time; None where the labeler needs none."""


class Labeler(Protocol):
    """Answers questions, at once or later."""

    identity: str
    """Text that differs between labelers whose answers may differ."""
    needs_clips: bool
    """True if it looks at pictures."""

    def ask(self, questions: Sequence[Question]) -> None:
        """Take questions; nobody waits here. A question that is open already is not asked twice."""
        ...

    def collect(self, wait_s: float = 0.0) -> dict[bytes, int]:
        """Answers that have come since the last call, by the keys of their questions.

        Args:
            wait_s: seconds to wait for those of all open questions.
        """
        ...

    @property
    def pending(self) -> int:
        """Number of questions that will be answered later."""
        ...

    def metrics(self) -> dict[str, float]:
        """Scalars to log, e.g. calls and cost."""
        ...

    def state(self) -> dict[str, float]:
        """Payments so far, so that a resumed run keeps to its budget."""
        ...

    def load(self, state: Mapping[str, float]) -> None:
        """Restore the result of `state`."""
        ...

    def close(self) -> None:
        """End; open questions are dropped."""
        ...


class LabelStore:
    """Answers by the contents of their pairs, in memory and, with a directory, on disk.

    A pair that is asked about in the other order has the opposite answer. Answers of other labelers in the same
    directory are left alone. Damaged rows are dropped with a warning, and their pairs asked about again.

    Args:
        directory: directory of the answers; None keeps them in memory only.
        identity: the labeler's.
        field: name of the setting that names the directory, for errors.

    Raises:
        DataError: the directory cannot be used.
    """

    def __init__(self, directory: str | None, identity: str, field: str = "labels") -> None:
        self._answers = dict[bytes, int]()
        self._files = None if directory is None else AnswerFiles(directory, identity, 1, None, field)
        if self._files is not None:
            self._files.warn_of_damage()

    def get(self, first: bytes, second: bytes) -> int | None:
        """Answer about two segments, by their keys; None if there is none."""
        key, swapped = pair_key(first, second)
        answer = self._answers.get(key)
        if answer is None and self._files is not None:
            row = self._files.get(key)
            answer = None if row is None or int(row[0]) not in ANSWERS else int(row[0])
        return _turned(answer, swapped)

    def put(self, first: bytes, second: bytes, answer: int) -> None:
        """Keep an answer about two segments.

        Raises:
            OSError: the disk refused.
        """
        key, swapped = pair_key(first, second)
        turned = _turned(answer, swapped)
        assert turned is not None
        self._answers[key] = turned
        if self._files is not None:
            self._files.put([key], np.array([[turned]], np.float32))

    def close(self) -> None:
        """Sync what was stored to the disk."""
        if self._files is not None:
            self._files.close()


def _turned(answer: int | None, swapped: bool) -> int | None:
    """The answer about a pair in the other order."""
    return 1 - answer if swapped and answer in (FIRST, SECOND) else answer
