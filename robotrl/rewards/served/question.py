"""A question to a served vision-language model, and the score in 0 to 1 that its strict answer stands for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, check_number, out_of_range
from robotrl.rewards.endpoint.replies import NumbersReply, ReplySchema, WordReply

LARGEST_BOUND = 1e6


@dataclass(frozen=True, kw_only=True)
class QuestionCfg:
    """A question, and its allowed answers: a number in a range, or one of some words."""

    question: str
    """Question about the picture, or about the frames of a clip; the form of the answer is added."""
    low: float = 0.0
    """Lowest number of an answer; it is a score of 0."""
    high: float = 10.0
    """Highest number of an answer; it is a score of 1."""
    words: tuple[str, ...] = ()
    """Words to choose from, in place of a number; none: a number."""
    scores: tuple[float, ...] = ()
    """Score of each word, 0 to 1; none: evenly spaced, from 0 for the first to 1 for the last."""

    def check_question(self, where: str) -> None:
        """Check these settings.

        Args:
            where: name of these settings, for errors.

        Raises:
            ConfigError: a setting is out of range.
        """
        if not self.question.strip():
            raise ConfigError(f"{where}.question is {self.question!r}: expected a question")
        check_number(f"{where}.low", self.low, -LARGEST_BOUND, LARGEST_BOUND)
        check_number(f"{where}.high", self.high, -LARGEST_BOUND, LARGEST_BOUND)
        if self.low >= self.high:
            raise out_of_range(f"{where}.low", self.low, f"a number below {where}.high, {self.high}")
        if self.words and (len(set(self.words)) < max(len(self.words), 2) or not all(x.strip() for x in self.words)):
            raise out_of_range(f"{where}.words", self.words, "two different words or more, or none")
        if self.scores and len(self.scores) != len(self.words):
            raise out_of_range(f"{where}.scores", self.scores, f"{len(self.words)} numbers, one for each word")
        for score in self.scores:
            check_number(f"{where}.scores", score, 0.0, 1.0)

    def reply(self) -> ReplySchema:
        """Form of the answers."""
        return WordReply(self.words) if self.words else NumbersReply((self.low,), (self.high,))

    def score(self, outputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scores (n, 1) of answers (n, 1); NaN stays NaN."""
        if not self.words:
            return (outputs - self.low) / np.float32(self.high - self.low)
        table = np.array(self.scores or np.linspace(0.0, 1.0, len(self.words)), np.float32)
        known = np.isfinite(outputs)
        return np.where(known, table[np.where(known, outputs, 0).astype(np.int64)], np.nan).astype(np.float32)
