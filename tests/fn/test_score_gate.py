"""The gate on a score, by hand."""

from __future__ import annotations

import math

import pytest

from robotrl.fn.evidence.score_gate import ScoreGate


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
