"""Rows of what scored beside the sim, from a run's last scalars."""

from __future__ import annotations

import re

from robotrl.report.compare.scoring_table import ScoringRow, scoring_rows, scoring_section
from robotrl.rewards.endpoint.counters import EndpointCounters
from robotrl.rewards.scoring.counters import ServiceCounters


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


def test_a_served_model_shows_shares_like_the_scoring_service() -> None:
    counters = EndpointCounters(submitted=1000, hits=400, dropped=32, refused=5, invalid=7, timed_out=3, valid=900)
    endpoint = {"queue_length": 1.0, "requests_paid": 600.0, "cost": 0.5} | counters.scalars()
    service = ServiceCounters(submitted=1000, hits=400, dropped=32, refused=5, invalid=7, timed_out=3).scalars()
    last = {f"scoring/vlm-score/{key}": value for key, value in endpoint.items()}
    last |= {f"scoring/contrast/{key}": value for key, value in service.items()}
    last |= {f"scoring/contrast/{key}": endpoint[key] for key in ("queue_length", "requests_paid")}
    last |= {f"reward_{key}/{name}": 0.5 for key in ("valid", "age") for name in ("vlm-score", "contrast")}
    served, scored = (cells_of(row) for row in scoring_rows("run", last))
    expected = {"scored": "600", "known": "40.0 %", "dropped": "3.2 %", "over budget": "0.5 %", "invalid": "0.7 %"}
    expected |= {"too late": "0.3 %", "waiting": "1", "steps with a score": "50.0 %", "mean age, steps": "0.5"}
    assert {head: served[head] for head in expected} == expected
    assert {head: scored[head] for head in expected} == expected
    assert (served["cost"], scored["cost"]) == ("0.50", "-")


def test_faults_of_either_kind_have_columns_of_their_own() -> None:
    service = ServiceCounters(submitted=100, unserved=25, restarts=3, outages=1).scalars() | {"down": 1.0}
    endpoint = EndpointCounters(submitted=100, failed=40).scalars()
    last = {f"scoring/contrast/{key}": value for key, value in service.items()}
    last |= {f"scoring/vlm-score/{key}": value for key, value in endpoint.items()}
    scored, served = (cells_of(row) for row in scoring_rows("run", last))
    expected = {"no worker": "25.0 %", "server failed": "-", "workers lost": "3", "outages": "1", "down now": "yes"}
    assert {head: scored[head] for head in expected} == expected
    expected = {"no worker": "-", "server failed": "40.0 %", "workers lost": "-", "outages": "-", "down now": "-"}
    assert {head: served[head] for head in expected} == expected


def test_each_path_of_a_source_is_a_row_with_the_steps_of_the_source() -> None:
    last = {
        "reward_valid/dual-pathway": 0.9,
        "reward_age/dual-pathway": 2.0,
        "scoring/dual-pathway/static/hit_rate": 0.2,
        "scoring/dual-pathway/static/requests_paid": 9.0,
        "scoring/dual-pathway/dynamic/hit_rate": 0.1,
        "scoring/dual-pathway/dynamic/valid": 0.7,
        "scoring/dual-pathway/gate_open": 0.1,
        "scoring/preferences/answers": 3.0,
    }
    rows = scoring_rows("run", last)
    assert [row.source for row in rows] == ["dual-pathway/static", "dual-pathway/dynamic", "preferences"]
    for row, known in zip(rows[:2], ("20.0 %", "10.0 %"), strict=True):
        cells = cells_of(row)
        assert (cells["steps with a score"], cells["mean age, steps"], cells["known"]) == ("90.0 %", "2", known)


def cells_of(row: ScoringRow) -> dict[str, str]:
    """Texts of a row of the page, by their heads."""
    text = scoring_section([row])
    heads, cells = (re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", text) for tag in ("th", "td"))
    return dict(zip(heads, cells, strict=True))


def test_other_runs_have_no_section() -> None:
    assert scoring_section(scoring_rows("runs/a", {"reward/task": 1.0, "scoring/lost": 0.0})) == ""
