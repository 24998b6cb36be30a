"""HTML page of rewards against ground truth: verdicts, metrics, distributions, and scores along some episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.report.document import document
from robotrl.report.eval_page import again_section, replay_section
from robotrl.report.histogram import ValueGroup, histogram
from robotrl.report.replay import EpisodePictures
from robotrl.report.text import esc

STYLES = ("style.css", "drive.css", "replays.css", "trust.css")
NO_TRUTH = "-"


class MetricRow(NamedTuple):
    """One row of a table of metrics."""

    label: str
    about: str
    """Comparison that the number states, in a few words."""
    cells: Sequence[tuple[float, float, float] | None]
    """Value and ends of its interval, for each column; None where there is no truth to compare with."""


class MetricTable(NamedTuple):
    """Metrics of several rewards, or of one in several scenarios."""

    columns: Sequence[str]
    rows: Sequence[MetricRow]


class RewardVerdict(NamedTuple):
    """A reward's verdict."""

    name: str
    standing: str
    """"tells", "weak", "fails", "opposed" or "not judged"."""
    sentences: Sequence[str]


class ScoreSpread(NamedTuple):
    """Mean scores of a reward's episodes."""

    name: str
    success: NDArray[np.float64]
    failed: NDArray[np.float64]


@dataclass(frozen=True)
class TrustPage:
    """Content of the page.

    Args:
        title: rewards and sim.
        verdict: main result in one sentence.
        lede: rollouts and remarks.
        dt_s: duration of a step, s.
        verdicts: of each reward.
        metrics: metrics of each reward.
        spreads: distributions of the episodes' mean scores; empty without successes or failures.
        scenarios: tables by scenario, by name of the reward.
        replays: some of the episodes.
        chosen: sentence on how they were chosen, or why there are none.
        command: command that makes the page again.
        settings: settings that the results depend on, by name.
    """

    title: str
    verdict: str
    lede: str
    dt_s: float
    verdicts: Sequence[RewardVerdict]
    metrics: MetricTable
    spreads: Sequence[ScoreSpread] = ()
    scenarios: Mapping[str, MetricTable] = field(default_factory=dict[str, MetricTable])
    replays: Sequence[EpisodePictures] = ()
    chosen: str = ""
    command: str = ""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])


def render_trust(page: TrustPage) -> str:
    """Render the page as text."""
    starts = (
        "A start is named by its split and its number there, from 0, and by who acted. A chart shows the score of each "
        "step, and between valid scores the last one. A picture shows the state before its step."
    )
    parts = [
        _verdicts(page.verdicts),
        _metrics(page.metrics),
        _spreads(page.spreads),
        replay_section(page.replays, page.dt_s, True, page.chosen, starts),
        *(_scenarios(name, table) for name, table in page.scenarios.items()),
        again_section(page.command, page.settings),
    ]
    return document(page.title, STYLES, page.verdict, page.lede, parts)


def _verdicts(verdicts: Sequence[RewardVerdict]) -> str:
    items = "".join(
        f'<li class="{one.standing.replace(" ", "-")}"><b>{esc(one.name)}</b><ul>'
        + "".join(f"<li>{esc(sentence[0].upper() + sentence[1:])}.</li>" for sentence in one.sentences)
        + "</ul></li>"
        for one in verdicts
    )
    return f'<section><h2>Verdict</h2><ul class="verdicts">{items}</ul></section>'


def _metrics(table: MetricTable) -> str:
    return (
        "<section><h2>Metrics</h2><p>An AUC is the probability that a random success scores higher than a random "
        "failure: 1 tells them apart, 0.5 is chance. A rank correlation is 1 if both rise together. Below each number "
        f"is its 95 % interval over episodes.</p>{_table(table)}</section>"
    )


def _scenarios(name: str, table: MetricTable) -> str:
    return f"<section><h2>{esc(name)} by scenario</h2>{_table(table)}</section>"


def _table(table: MetricTable) -> str:
    head = "".join(f'<th scope="col">{esc(name)}</th>' for name in table.columns)
    body = "".join(
        f'<tr><th scope="row">{esc(row.label)}<small>{esc(row.about)}</small></th>'
        + "".join(f'<td class="n">{_cell(cell)}</td>' for cell in row.cells)
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<div class="scroll"><table class="metrics"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(cell: tuple[float, float, float] | None) -> str:
    if cell is None:
        return f'<span class="absent">{NO_TRUTH}</span>'
    value, low, high = cell
    if low == high == value:
        return f"<b>{value:.2f}</b>"
    return f"<b>{value:.2f}</b><small>{low:.2f} to {high:.2f}</small>"


def _spreads(spreads: Sequence[ScoreSpread]) -> str:
    if not spreads:
        return ""
    keys = "".join(f'<li><span class="key"></span>{label}</li>' for label in ("success", "failed"))
    legend = f'<ul class="legend sorts">{keys}</ul>'
    charts = "".join(
        f"<div><h3>{esc(one.name)}</h3>"
        + "".join(
            histogram(
                [ValueGroup("success", "bar-ok", one.success), ValueGroup("failed", "bar-fail", one.failed)],
                "mean score of an episode",
                width,
                css,
                False,
            )
            for width, css in ((460, "wide"), (330, "narrow"))
        )
        + "</div>"
        for one in spreads
    )
    return (
        "<section><h2>Mean scores of successes and failures</h2><p>A reward that tells them apart has two heaps.</p>"
        f'{legend}<div class="halves">{charts}</div></section>'
    )
