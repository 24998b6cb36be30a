"""Scores of pictures that come after a random number of steps, in random order, some of them invalid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.rewards.scoring.ledger import Answers
from tests.kits.scoring_kit import answers_of


class ScatteredScores:
    """Answers of a sim's pictures; a `PictureScores`.

    Args:
        sim: a walk with a tape, whose length is the time.
        outputs: makes the outputs (n, K) of the numbers (n,) of pictures.
        longest: most steps that an answer takes.
        invalid: share of the answers that are invalid.
        seed: of delays, order and invalid answers.
    """

    paid, cost, room = 0, 0.0, 1 << 40

    def __init__(
        self,
        sim: Any,
        outputs: Callable[[NDArray[np.int64]], NDArray[np.float32]],
        longest: int,
        invalid: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._sim, self._outputs, self._longest, self._invalid = sim, outputs, longest, invalid
        self._rng = np.random.default_rng(seed)
        self._held: list[tuple[int, int, bool, NDArray[np.float32]]] = []
        self._width = outputs(np.zeros(1, np.int64)).shape[1]
        self.given: dict[int, tuple[int, bool]] = {}
        """Time at which each ticket was answered, and whether that was valid."""

    @property
    def pending(self) -> int:
        return len(self._held)

    def submit(self, tickets: NDArray[np.int64], pictures: NDArray[np.uint8]) -> NDArray[np.bool_]:
        rows = self._outputs(answers_of(pictures)[:, 0].astype(np.int64))
        for ticket, row in zip(tickets.tolist(), rows, strict=True):
            due = len(self._sim.tape) + int(self._rng.integers(0, self._longest + 1))
            self._held.append((due, ticket, bool(self._rng.random() >= self._invalid), row))
        return np.ones(len(tickets), np.bool_)

    def collect(self) -> Answers:
        now = len(self._sim.tape)
        given = [one for one in self._held if one[0] <= now]
        self._held = [one for one in self._held if one[0] > now]
        self._rng.shuffle(given)  # type: ignore[arg-type]
        self.given |= {ticket: (now, valid) for _, ticket, valid, _ in given}
        valid = np.array([one[2] for one in given], np.bool_)
        outputs = np.array([one[3] for one in given], np.float32).reshape(len(given), self._width)
        outputs[~valid] = np.nan
        return Answers(np.array([one[1] for one in given], np.int64), outputs, valid, np.zeros(len(given)))

    def wait(self, limit_s: float) -> Answers:
        return self.collect()

    def charge(self, count: int, cost: float) -> None: ...

    def metrics(self) -> dict[str, float]:
        return {"pending": float(self.pending)}

    def close(self) -> None: ...
