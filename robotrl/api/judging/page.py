"""A verdict as an HTML page."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from robotrl.api.judging.judge import Contrast, Judgment
from robotrl.api.judging.text import ROLES, UNITS, apart_words, score_words, verdict_words
from robotrl.fn.evidence.sequential import intervals
from robotrl.report.compare.curves import ArmCurve, ArmPoint
from robotrl.report.compare.verdict_page import AgreeRow, SideRow, VerdictPage, render_verdict
from robotrl.report.text import number

POINTS = 60
"""Points of a curve, about."""
SHOWN = 5
"""Number of starts that are named."""


def verdict_page(found: Judgment, command: str = "") -> str:
    """HTML page: one file that needs no server, no network and no other file.

    Args:
        found: the verdict.
        command: command that makes it again.
    """
    settings, baseline, candidate = found.settings, found.sides[0], found.sides[1]
    others = ROLES[::2]
    sentence = verdict_words(found)
    apart = found.contrasts[0].apart
    return render_verdict(
        VerdictPage(
            verdict=f"The candidate is {sentence}." if found.outcome != "open" else "The verdict is open.",
            lede=f"{candidate.side.path} against {baseline.side.path}: {100 * apart.value:+.1f} {UNITS[found.score]} on"
            f" {len(found.ids)} starts of split {settings.split} of {found.sim}, the same for both.",
            sides=[
                SideRow(role, str(side.side.path), score_words(side, found))
                for role, side in zip(ROLES, found.sides, strict=False)
            ],
            curves=[
                _curve(f"candidate less {other}", each, found)
                for other, each in zip(others, found.contrasts, strict=False)
            ],
            unit=UNITS[found.score],
            apart=[
                f"candidate less {other}: {apart_words(each, found)}"
                for other, each in zip(others, found.contrasts, strict=False)
            ],
            agreement=_agreement(found) if found.score == "success" and len(candidate.side.policies) == 1 else [],
            heads=("start", *(role for role, _ in zip(ROLES, found.sides, strict=False))),
            starts=_starts(found),
            settings={
                "sim": found.sim,
                "options": ", ".join(f"{name} {value}" for name, value in (settings.options or {}).items())
                or "the run's",
                "split": settings.split,
                "seed": str(settings.seed),
                "difference to detect": f"{100 * settings.test.detect:g} points",
                "chance of a false better or worse": f"{100 * settings.test.alpha:g} %",
                "chance of a false not better": f"{100 * settings.test.beta:g} %",
                "starts of a fixed plan": str(found.planned),
                "most starts": str(found.most),
            },
            command=command,
        )
    )


def _curve(name: str, each: Contrast, found: Judgment) -> ArmCurve:
    d, test = each.differences, found.settings.test
    ends = 100 * intervals(d, test.detect, test.alpha)
    mean = 100 * np.cumsum(d) / np.arange(1, len(d) + 1)
    step = math.ceil(len(d) / POINTS)
    at = sorted({*range(step - 1, len(d), step), len(d) - 1})
    policies = len(found.sides[1].side.policies)
    return ArmCurve(
        name, [ArmPoint(i + 1, float(mean[i]), float(ends[i, 0]), float(ends[i, 1]), policies, True) for i in at]
    )


def _agreement(found: Judgment) -> list[AgreeRow]:
    """Starts by the outcomes of baseline and candidate, of one policy each."""
    before, after = (side.success[0] > 0 for side in found.sides[:2])
    rows = (
        ("only the candidate succeeds", ~before & after),
        ("only the baseline succeeds", before & ~after),
        ("both succeed", before & after),
        ("both fail", ~before & ~after),
    )
    return [AgreeRow(about, int(where.sum()), _named(found.ids[where])) for about, where in rows]


def _named(ids: NDArray[np.int64]) -> str:
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return ", ".join(str(i) for i in ids[:SHOWN]) + more


def _starts(found: Judgment) -> list[list[str]]:
    """Outcome of each side on each start; a share of its seeds, or the mean return."""
    rows: list[list[str]] = []
    for place, start in enumerate(found.ids.tolist()):
        row = [str(start)]
        for side in found.sides:
            if found.score == "return":
                row.append(number(float(side.returns[:, place].mean())))
            else:
                count, of = int(side.success[:, place].sum()), len(side.success)
                row.append(("succeeds" if count else "fails") if of == 1 else f"{count} of {of} succeed")
        rows.append(row)
    return rows
