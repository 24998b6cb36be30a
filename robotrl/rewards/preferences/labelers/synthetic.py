"""Synthetic answers from the sim's own reward, some of them wrong, for experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from robotrl.errors import check_number, unknown
from robotrl.rewards.preferences.labelers.labels import FIRST, NEITHER, SECOND, Question

Truth = Literal["return", "regret"]
TRUTHS: tuple[Truth, ...] = ("return", "regret")


@dataclass(frozen=True)
class SyntheticCfg:
    """Answers from the sim's own reward."""

    truth: Truth = "return"
    """The better segment has the larger sum of rewards ("return"), or the smaller regret by values that are fitted to
    the data ("regret")."""
    error: float = 0.1
    """Fraction of wrong answers, 0 to 0.5."""
    band: float = 0.0
    """No preference where the segments differ by less, in the sim's reward, 0 or more."""
    seed: int = 0
    """Seed of the errors."""

    def check(self, field: str = "synthetic") -> None:
        """Check the ranges.

        Raises:
            ConfigError: a setting is out of range.
        """
        if self.truth not in TRUTHS:
            raise unknown(f"{field}.truth", str(self.truth), TRUTHS)
        check_number(f"{field}.error", self.error, 0.0, 0.5)
        check_number(f"{field}.band", self.band, 0.0, 1e12)


class SyntheticLabeler:
    """Answers at once; the same pair always in the same way.

    Args:
        cfg: settings.

    Raises:
        ConfigError: a setting is out of range.
    """

    needs_clips = False

    def __init__(self, cfg: SyntheticCfg) -> None:
        cfg.check()
        self._cfg = cfg
        self.identity = f"synthetic:{cfg!r}"
        self._answers = dict[bytes, int]()

    @property
    def pending(self) -> int:
        """See `Labeler.pending`."""
        return 0

    def ask(self, questions: Sequence[Question]) -> None:
        """See `Labeler.ask`."""
        self._answers |= {one.key: self._answer(one) for one in questions}

    def _answer(self, question: Question) -> int:
        if question.advantage == 0 or abs(question.advantage) < self._cfg.band:
            return NEITHER
        rng = np.random.default_rng([self._cfg.seed, int.from_bytes(question.key, "little")])
        better = SECOND if question.advantage > 0 else FIRST
        return 1 - better if rng.random() < self._cfg.error else better

    def collect(self, wait_s: float = 0.0) -> dict[bytes, int]:
        """See `Labeler.collect`."""
        answers, self._answers = self._answers, {}
        return answers

    def metrics(self) -> dict[str, float]:
        """See `Labeler.metrics`."""
        return {}

    def state(self) -> dict[str, float]:
        """See `Labeler.state`."""
        return {}

    def load(self, state: Mapping[str, float]) -> None:
        """See `Labeler.load`."""

    def close(self) -> None:
        """See `Labeler.close`."""
