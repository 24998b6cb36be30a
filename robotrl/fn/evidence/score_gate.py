"""A gate on a score: a change is kept only where the score rises by a margin; and whether the score can be believed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.fn.progress.metrics import rank_correlation

FEWEST, LEAST_RANK = 12, 0.6
"""Fewest policies, and least rank correlation, with which a score counts as one that tells policies apart."""


class ScoreGate(NamedTuple):
    """A decision on a change."""

    before: float
    after: float
    accepted: bool

    @classmethod
    def of(cls, before: float, after: float, margin: float) -> ScoreGate:
        """Accept if after - before >= margin |before|; a score that is not finite is rejected.

        Args:
            before: score without the change, finite.
            after: score with it.
            margin: least rise, as a fraction of the score before; 0 or more.
        """
        return cls(before, after, math.isfinite(after) and after - before >= margin * abs(before))


class ScoreEvidence(NamedTuple):
    """Agreement of a score with the success that policies really have."""

    rank: float | None
    """Spearman's rank correlation, -1 to 1; None for fewer than three policies, or if all succeed alike."""
    policies: int
    """Number of policies."""

    @property
    def believed(self) -> bool:
        """True if enough policies are ranked well enough; else a gate on the score is blind."""
        return self.rank is not None and self.policies >= FEWEST and self.rank >= LEAST_RANK


def score_evidence(scores: NDArray[np.float64], success: NDArray[np.float64]) -> ScoreEvidence:
    """Compare scores (P,) of policies, all by the same critics, with their success rates (P,).

    Raises:
        ValueError: there are not as many of both.
    """
    if len(scores) != len(success):
        raise ValueError(f"{len(scores)} scores of policies and {len(success)} success rates: expected as many")
    comparable = len(success) >= 3 and np.ptp(success) > 0
    return ScoreEvidence(rank_correlation(scores, success) if comparable else None, len(success))


def evidence_of_log(lines: Iterable[Mapping[str, float]]) -> ScoreEvidence:
    """Compare the scores of a run's gate with its evaluations.

    Counted are evaluations of accepted updates: after others the policy is that of before.

    Args:
        lines: scalars of each iteration, with "gate/accepted", "gate/score" and, where it was evaluated,
            "eval_success".
    """
    found = [
        (line["gate/score"], line["eval_success"])
        for line in lines
        if "eval_success" in line and line.get("gate/accepted") == 1.0
    ]
    table = np.array(found, np.float64).reshape(-1, 2)
    return score_evidence(table[:, 0], table[:, 1])
