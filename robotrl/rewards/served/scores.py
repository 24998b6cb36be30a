"""Scores of pictures and clips by a served vision-language model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.rewards.endpoint.client import ChatEndpoint
from robotrl.rewards.endpoint.protocol import identity_of
from robotrl.rewards.scoring.ledger import Answers
from robotrl.rewards.served.question import QuestionCfg


class EndpointScores:
    """Asks one question about each picture or clip; a `PictureScores` of one output, a score in 0 to 1.

    Nothing here waits for the server, unless `patient`.

    Args:
        endpoint: address, time limits, budget.
        question: question and form of the answer.
        where: name of the settings of the reward, for errors.
        patient: `collect` waits for all answers, as long as the time limit of one; for tests and measurements.

    Raises:
        ConfigError: a setting is out of range, or the key's variable is not set.
        DataError: the directory of answers cannot be used.
    """

    def __init__(self, endpoint: EndpointCfg, question: QuestionCfg, where: str, patient: bool) -> None:
        self._question, self._patient_s = question, endpoint.timeout_s if patient else 0.0
        self._client = ChatEndpoint(endpoint, question.reply(), f"{where}.endpoint")
        asked = (question.question, question.low, question.high, question.words, question.scores)
        self.identity = f"{asked!r} {identity_of(endpoint, question.reply())}"
        """Text that differs between sources with different answers; time limits and budgets change none."""

    def submit(self, tickets: NDArray[np.int64], pictures: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Ask about pictures (n, h, w, 3) or clips (n, T, h, w, 3); see `ChatEndpoint.submit`."""
        return self._client.submit(tickets, [self._question.question] * len(tickets), pictures)

    def collect(self) -> Answers:
        """See `PictureScores.collect`."""
        if self._patient_s:
            return self.wait(self._patient_s)
        return self._scored(self._client.collect())

    def wait(self, limit_s: float) -> Answers:
        """See `PictureScores.wait`."""
        return self._scored(self._client.wait(limit_s))

    def _scored(self, answers: Answers) -> Answers:
        return answers._replace(outputs=self._question.score(answers.outputs))

    @property
    def room(self) -> int:
        """See `PictureScores.room`."""
        return self._client.room

    @property
    def pending(self) -> int:
        """See `PictureScores.pending`."""
        return self._client.pending

    @property
    def paid(self) -> int:
        """Number of calls."""
        return int(self._client.state()["calls"])

    @property
    def cost(self) -> float:
        """Cost of the calls."""
        return self._client.state()["cost"]

    def charge(self, count: int, cost: float) -> None:
        """See `PictureScores.charge`."""
        paid = self._client.state()
        self._client.load({"calls": paid["calls"] + count, "cost": paid["cost"] + cost})

    def bill(self) -> NDArray[np.float64]:
        """All that is known of payments and prices, in the order of the names of `ChatEndpoint.state`."""
        return np.array(list(self._client.state().values()), np.float64)

    def load_bill(self, bill: NDArray[np.generic]) -> None:
        """Restore the result of `bill`."""
        self._client.load(dict(zip(self._client.state(), bill.tolist(), strict=True)))

    def metrics(self) -> dict[str, float]:
        """See `PictureScores.metrics`."""
        return self._client.metrics()

    def close(self) -> None:
        """See `PictureScores.close`."""
        self._client.close()
