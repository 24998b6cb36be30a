"""The page of rewards against ground truth: escaped texts, tables, and no more sections than there is to show."""

from __future__ import annotations

from typing import Any

import numpy as np

from robotrl.report.replay import EpisodePictures, StepCurve
from robotrl.report.trust_page import (
    MetricRow,
    MetricTable,
    RewardVerdict,
    ScoreSpread,
    TrustPage,
    render_trust,
)

TABLE = MetricTable(["<b>", "other"], [MetricRow("AUC", "of it", [(0.93, 0.88, 0.97), None])])
VERDICT = RewardVerdict("<b>", "not judged", ["not judged: all 3 episodes failed", "valid on 5 % of the steps"])


def page(**more: Any) -> str:
    fields: dict[str, Any] = {
        "title": "Reward <b> on a sim",
        "verdict": "<b> tells",
        "lede": "3 rollouts",
        "dt_s": 0.1,
        "verdicts": [VERDICT],
        "metrics": TABLE,
    }
    return render_trust(TrustPage(**{**fields, **more}))


def test_verdicts_and_numbers_with_their_intervals() -> None:
    text = page()
    assert '<li class="not-judged"><b>&lt;b&gt;</b>' in text
    assert "<li>Not judged: all 3 episodes failed.</li><li>Valid on 5 % of the steps.</li>" in text
    assert "<b>0.93</b><small>0.88 to 0.97</small>" in text
    assert text.count('<span class="absent">-</span>') == 1
    assert '<th scope="col">&lt;b&gt;</th>' in text
    assert "Mean scores" not in text and "Make it again" not in text and 'id="replays"' not in text


def test_distributions_scenarios_and_the_command() -> None:
    spread = ScoreSpread("it", np.array([0.8, 0.9]), np.array([0.1, 0.2, 0.3]))
    text = page(spreads=[spread], scenarios={"it": TABLE}, command="robotrl reward eval", settings={"seed": "0"})
    assert text.count("<svg") == 2 and "bar-ok" in text and "bar-fail" in text
    assert "<h2>it by scenario</h2>" in text and "<pre>robotrl reward eval</pre>" in text


def test_replays_bring_their_curves() -> None:
    frames = np.zeros((2, 8, 8, 3), np.uint8)
    curve = StepCurve("it", "valid on 5 % of the steps", (0.123456789, 1.0))
    replay = EpisodePictures("test 1", 7, True, 1.1, 2, (0, 1), frames, (0.1, 1.0), "highest", (curve,))
    text = page(replays=[replay], chosen="One of them.")
    assert '"curves":[["it","valid on 5 % of the steps",[0.123457,1.0]]]' in text and "One of them." in text


def test_reason_for_no_replays_is_told() -> None:
    assert '<p class="why">no camera</p>' in page(chosen="no camera")
