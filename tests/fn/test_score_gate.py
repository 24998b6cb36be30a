"""The gate on a score, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from robotrl.fn.evidence.score_gate import ScoreEvidence, ScoreGate, evidence_of_log, score_evidence


@pytest.mark.parametrize(
    ("before", "after", "margin", "accepted"),
    [
        (2.0, 2.5, 0.25, True),  # a rise of 0.5 is exactly a quarter of 2
        (2.0, 2.25, 0.25, False),
        (-2.0, -1.5, 0.25, True),  # a quarter of |-2|
        (-2.0, -1.75, 0.25, False),
        (-2.0, -2.5, 0.0, False),
        (2.0, 2.0, 0.0, True),
        (0.0, 0.0, 0.25, True),
        (0.0, -0.1, 0.25, False),
        (1.0, math.nan, 0.0, False),
        (1.0, math.inf, 0.0, False),
    ],
)
def test_a_score_has_to_rise_by_the_margin(before: float, after: float, margin: float, accepted: bool) -> None:
    assert ScoreGate.of(before, after, margin).accepted is accepted


def test_scores_are_compared_with_success_by_rank() -> None:
    """Ranks (1, 2, 3, 4) and (1, 3, 2, 4): 1 - 6 (1 + 1) / (4 * 15)."""
    found = score_evidence(np.array([-3.0, 0.0, 5.0, 90.0]), np.array([0.1, 0.4, 0.3, 0.9]))
    assert found.rank == pytest.approx(0.8) and found.policies == 4
    assert score_evidence(np.arange(2.0), np.arange(2.0)) == ScoreEvidence(None, 2)
    assert score_evidence(np.arange(3.0), np.ones(3)) == ScoreEvidence(None, 3)
    with pytest.raises(ValueError, match="3 scores of policies and 2 success rates"):
        score_evidence(np.arange(3.0), np.ones(2))


def test_a_score_is_believed_from_twelve_policies_and_a_rank_of_six_tenths() -> None:
    assert ScoreEvidence(0.6, 12).believed
    assert not ScoreEvidence(0.59, 12).believed
    assert not ScoreEvidence(0.9, 11).believed
    assert not ScoreEvidence(None, 12).believed


def test_evaluations_of_accepted_updates_are_taken_from_a_log() -> None:
    lines = [
        {"eval_success": 0.9},
        {"gate/score": 1.0, "gate/accepted": 1.0, "eval_success": 0.2},
        {"gate/score": 9.0, "gate/accepted": 0.0, "eval_success": 0.2},
        {"gate/score": 2.0, "gate/accepted": 1.0},
        {"gate/score": 3.0, "gate/accepted": 1.0, "eval_success": 0.1},
        {"gate/score": 4.0, "gate/accepted": 1.0, "eval_success": 0.3},
    ]
    # scores 1, 3, 4 and success 0.2, 0.1, 0.3: 1 - 6 (1 + 1) / (3 * 8)
    assert evidence_of_log(lines) == ScoreEvidence(pytest.approx(0.5), 3)
    assert evidence_of_log([]) == ScoreEvidence(None, 0)
