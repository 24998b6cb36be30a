"""HTML page of a verdict on two policies: the difference with its interval after each start, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from robotrl.report.compare.curves import ArmCurve, arm_class, arm_curves
from robotrl.report.document import document, folded_table
from robotrl.report.eval_page import again_section
from robotrl.report.text import esc

STYLES = ("style.css", "compare.css")
ABOUT_INTERVAL = (
    "The band is the interval that holds at all times together: it may be looked at after every start. The test stops"
    " where its capital suffices."
)


class SideRow(NamedTuple):
    """One side in the table of scores; texts are ready for display."""

    role: str
    """Baseline, candidate or control."""
    path: str
    score: str


class AgreeRow(NamedTuple):
    """Starts on which two sides have certain outcomes."""

    about: str
    starts: int
    shown: str
    """Ids of the first of them."""


@dataclass(frozen=True)
class VerdictPage:
    """Content of the page.

    Args:
        verdict: the verdict in one sentence.
        lede: what was judged, on which starts.
        sides: baseline, candidate, and control if there is one.
        curves: difference in points against starts, one for each side that the candidate is compared with.
        unit: unit of the difference.
        apart: differences in words, one for each curve.
        agreement: starts by the outcomes of baseline and candidate; empty for several seeds.
        heads: titles of the columns of the table of starts.
        starts: its rows.
        settings: settings that the verdict depends on.
        command: command that makes the page again.
    """

    verdict: str
    lede: str
    sides: Sequence[SideRow]
    curves: Sequence[ArmCurve]
    unit: str
    apart: Sequence[str]
    agreement: Sequence[AgreeRow]
    heads: Sequence[str]
    starts: Sequence[Sequence[str]]
    settings: Mapping[str, str]
    command: str = ""


def render_verdict(page: VerdictPage) -> str:
    """Render the page as text."""
    parts = [
        _sides(page.sides),
        _curves(page),
        _agreement(page.agreement),
        folded_table(page.heads, page.starts),
        again_section(page.command, page.settings),
    ]
    return document("Verdict", STYLES, page.verdict, page.lede, parts)


def _sides(sides: Sequence[SideRow]) -> str:
    rows = "".join(
        f"<tr><td>{esc(side.role)}</td><td class='about'>{esc(side.path)}</td><td>{esc(side.score)}</td></tr>"
        for side in sides
    )
    return (
        "<section><h2>Scores</h2><div class='scroll'><table><thead><tr><th></th><th>policy</th><th>score</th></tr>"
        f"</thead><tbody>{rows}</tbody></table></div></section>"
    )


def _curves(page: VerdictPage) -> str:
    charts = "".join(
        arm_curves(page.curves, "starts", f"difference in {page.unit}", width, css)
        for width, css in ((920, "wide"), (360, "narrow"))
    )
    legend = "".join(
        f'<li><span class="key {arm_class(index)}"></span>{esc(text)}</li>' for index, text in enumerate(page.apart)
    )
    return (
        f"<section><h2>Difference in {esc(page.unit)}</h2><p>{esc(ABOUT_INTERVAL)}</p>"
        f'<ul class="legend arms">{legend}</ul>{charts}</section>'
    )


def _agreement(rows: Sequence[AgreeRow]) -> str:
    if not rows:
        return ""
    body = "".join(
        f"<tr><td>{esc(row.about)}</td><td class='n'>{row.starts:,}</td><td class='about'>{esc(row.shown)}</td></tr>"
        for row in rows
    )
    return (
        "<section><h2>Where they differ</h2><div class='scroll'><table><thead><tr><th></th><th>starts</th>"
        f"<th>the first of them</th></tr></thead><tbody>{body}</tbody></table></div></section>"
    )
