"""Rows of what scored beside the sim, from a run's last scalars."""

from __future__ import annotations

from robotrl.report.compare.scoring_table import scoring_rows, scoring_section


def test_rows_are_read_from_the_last_scalars() -> None:
    last = {
        "reward/contrast": 0.3,
        "reward_valid/contrast": 0.98,
        "reward_age/contrast": 3.5,
        "scoring/contrast/requests_paid": 1020.0,
        "scoring/contrast/hit_rate": 0.25,
        "scoring/contrast/latency_p50_s": 0.0572,
        "scoring/contrast/worker_restarts": 0.0,
        "scoring/lost": 0.0,
    }
    (row,) = scoring_rows("runs/a", last)
    assert (row.run, row.source) == ("runs/a", "contrast")
    text = scoring_section([row])
    for shown in ("98.0 %", "3.5", "1,020", "25.0 %", "57 ms", ">0<", ">-<"):
        assert shown in text, shown
    assert "0.3" not in text


def test_other_runs_have_no_section() -> None:
    assert scoring_section(scoring_rows("runs/a", {"reward/task": 1.0, "scoring/lost": 0.0})) == ""
