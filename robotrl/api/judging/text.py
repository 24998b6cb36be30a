"""A verdict as text lines and as JSON values."""

from __future__ import annotations

from typing import Any

import numpy as np

from robotrl.api.judging.judge import Contrast, Judgment, SideOutcomes
from robotrl.api.verdict import Score
from robotrl.fn.evidence.sequential import Outcome
from robotrl.fn.stats import wilson
from robotrl.report.text import number

ROLES = ("baseline", "candidate", "control")
UNITS: dict[Score, str] = {"success": "points of success", "return": "points of starts with a higher return"}
WORDS: dict[Outcome, str] = {
    "better": "better",
    "worse": "worse",
    "not better": "not better by {detect:g} points",
    "open": "open: not decided after all starts",
}


def verdict_words(found: Judgment) -> str:
    """The verdict in a few words: "better", "not better by 10 points"."""
    return WORDS[found.outcome].format(detect=100 * found.settings.test.detect)


def lines(found: Judgment) -> list[str]:
    """Each side's score, the differences, the verdict, and the cost."""
    scores = [
        f"{role} {side.side.path}: {score_words(side, found)}" for role, side in zip(ROLES, found.sides, strict=False)
    ]
    against = [
        f"candidate less {other}: {apart_words(each, found)}"
        for each, other in zip(found.contrasts, ROLES[::2], strict=False)
    ]
    ran, policies = len(found.ids), sum(len(side.side.policies) for side in found.sides)
    cost = (
        f"{ran} of at most {found.most} starts of split {found.settings.split}, seed {found.settings.seed}, each by"
        f" {policies} policies ({ran * policies} episodes); a fixed plan has {found.planned} starts"
    )
    return [*scores, *against, f"verdict: {verdict_words(found)}", cost]


def score_words(side: SideOutcomes, found: Judgment) -> str:
    """A side's success with its interval, or its mean return."""
    seeds = f", {len(side.side.policies)} seeds" if len(side.side.policies) > 1 else ""
    if found.score == "return":
        return f"mean return {number(float(side.returns.mean()))}{seeds}"
    if seeds:
        each = ", ".join(_percent(float(rate)) for rate in side.success.mean(axis=1))
        return f"success {_percent(float(side.success.mean()))}{seeds} ({each}), {found.rule}"
    rate = wilson(int(side.success.sum()), side.success.size)
    return (
        f"success {_percent(rate.value)} (95 % interval {100 * rate.low:.1f} to {100 * rate.high:.1f} %), {found.rule}"
    )


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"


def apart_words(each: Contrast, found: Judgment) -> str:
    """The difference with its intervals, and when it was decided."""
    apart, sure = each.apart, 100 * (1 - 2 * found.settings.test.alpha)
    unit = UNITS[found.score]
    when = "open" if each.decision.outcome == "open" else "decided"
    text = (
        f"{100 * apart.value:+.1f} {unit} ({sure:.0f} % interval at any time {100 * apart.low:+.1f} to"
        f" {100 * apart.high:+.1f}), {when} after {each.decision.starts} starts"
    )
    if each.over_seeds is None:
        return text
    over = each.over_seeds
    return (
        f"{text}; these policies alone. Over {over.episodes} seeds {100 * over.value:+.1f} (Student's 95 % interval"
        f" {100 * over.low:+.1f} to {100 * over.high:+.1f})"
    )


def to_json(found: Judgment) -> dict[str, Any]:
    """The verdict with every outcome."""
    settings = found.settings
    return {
        "outcome": found.outcome,
        "sim": found.sim,
        "options": dict(settings.options or {}),
        "split": settings.split,
        "seed": settings.seed,
        "score": found.score,
        **settings.test._asdict(),
        "most": found.most,
        "fixed_plan": found.planned,
        "against": [
            {
                "path": str(each.other),
                **each.decision._asdict(),
                "apart": each.apart._asdict(),
                "over_seeds": None if each.over_seeds is None else each.over_seeds._asdict(),
            }
            for each in found.contrasts
        ],
        "starts": found.ids.tolist(),
        "sides": [
            {
                "path": str(side.side.path),
                "policies": [str(path) for path in side.side.policies],
                "success": side.success.astype(np.int64).tolist(),
                "returns": side.returns.tolist(),
            }
            for side in found.sides
        ],
    }
