"""HTML page of an improvement: what the logs hold, what the critic told, what the gate decided and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.report.compare.curves import ArmCurve, arm_class, arm_curves
from robotrl.report.document import document
from robotrl.report.eval_page import again_section
from robotrl.report.histogram import ValueGroup, histogram
from robotrl.report.text import esc, percent

STYLES = ("style.css", "compare.css", "improve.css")
WIDTHS = ((920, "wide"), (360, "narrow"))
ABOUT_GATE = (
    "Both policies drive the same starts. The band holds at all times together: it may be looked at after every start."
    " A candidate is accepted where the whole band lies above 0."
)
ABOUT_STARTS = (
    "Episodes are sorted by one element of their first observation, and divided into thirds. A row has a star where the"
    " intervals of its best and of its worst third do not overlap; of many rows, one in a few dozen is by chance."
)
ABOUT_DEPARTURE = (
    "The time at which a failure first went farther from all successes than these are from each other, but for 1 % of"
    " their frames."
)


class ThirdCell(NamedTuple):
    """Success of one third of the episodes."""

    span: str
    """Values of the element, with the unit."""
    value: float
    """0 to 1."""
    low: float
    high: float


class StartRow(NamedTuple):
    """Success by thirds of an element of the first observation."""

    name: str
    thirds: Sequence[ThirdCell]
    clear: bool
    """True if the best and the worst third differ clearly."""


@dataclass(frozen=True)
class HoldingsPart:
    """Contents of the logs; texts are ready for display.

    Args:
        facts: numbers by name.
        success_s: lengths of the successes, s.
        failure_s: lengths of the failures, s.
        starts: elements by which success differs most.
        departures_s: times at which failures left the way of the successes, s.
        departures: sentence on the failures that did, and did not.
        visited: sentence on the coverage of the observations.
    """

    facts: Mapping[str, str]
    success_s: NDArray[np.float64]
    failure_s: NDArray[np.float64]
    starts: Sequence[StartRow]
    departures_s: NDArray[np.float64]
    departures: str
    visited: str


class RoundRow(NamedTuple):
    """One round in the table; texts are ready for display."""

    number: str
    data: str
    critic: str
    gate: str
    result: str
    accepted: bool


class GatePart(NamedTuple):
    """The gate of one round."""

    title: str
    why: str
    sides: Mapping[str, str]
    """Scores in words."""
    curve: ArmCurve | None
    """Difference in points of success against starts; None where nothing was judged."""
    agreement: Sequence[tuple[str, int, str]]
    """Starts by the outcomes of both: in words, their number, and the first of them."""


class RolloutPair(NamedTuple):
    """Both policies on one start, as moving pictures."""

    caption: str
    before: str
    """Data URL."""
    candidate: str


@dataclass(frozen=True)
class ImprovePage:
    """Content of the page.

    Args:
        verdict: the result in one sentence.
        lede: policy, logs, method.
        notes: faults of the logs, and what was not checked.
        faulty: whether the notes are faults, for which nothing was done.
        holdings: contents of the logs; None without an episode.
        critic: sentences on the critic.
        rounds: all rounds.
        gates: gates of the rounds that had one.
        rollouts: both policies on some starts.
        settings: settings that the result depends on.
        command: command that makes it again.
    """

    verdict: str
    lede: str
    notes: Sequence[str]
    faulty: bool
    holdings: HoldingsPart | None
    critic: Sequence[str]
    rounds: Sequence[RoundRow]
    gates: Sequence[GatePart]
    rollouts: Sequence[RolloutPair] = ()
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    command: str = ""


def render_improvement(page: ImprovePage) -> str:
    """Render the page as text."""
    parts = [
        _notes(page.notes, page.faulty),
        _rounds(page.rounds),
        *(_gate(part) for part in page.gates),
        _rollouts(page.rollouts),
        _critic(page.critic),
        "" if page.holdings is None else _holdings(page.holdings),
        again_section(page.command, page.settings),
    ]
    return document("Improvement", STYLES, page.verdict, page.lede, parts)


def _notes(notes: Sequence[str], faulty: bool) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{esc(_sentence(note))}</li>" for note in notes)
    css, title = (' class="warning"', "Faults of the logs") if faulty else ("", "Not checked")
    return f"<section{css}><h2>{title}</h2><ul>{items}</ul></section>"


def _rounds(rows: Sequence[RoundRow]) -> str:
    if not rows:
        return ""
    body = "".join(
        f"<tr><td class='n'>{esc(row.number)}</td><td class='{'yes' if row.accepted else 'no'}'>{esc(row.result)}</td>"
        f"<td class='about'>{esc(row.gate)}</td><td class='about'>{esc(row.data)}</td>"
        f"<td class='about'>{esc(row.critic)}</td></tr>"
        for row in rows
    )
    return (
        "<section><h2>Rounds</h2><div class='scroll'><table><thead><tr><th>round</th><th>policy</th><th>gate</th>"
        f"<th>episodes</th><th>critic</th></tr></thead><tbody>{body}</tbody></table></div></section>"
    )


def _gate(part: GatePart) -> str:
    sides = "".join(f"<li><b>{esc(name)}</b>: {esc(text)}</li>" for name, text in part.sides.items())
    body = f"<p>{esc(_sentence(part.why))}</p>" + (f"<ul>{sides}</ul>" if sides else "")
    if part.curve is not None:
        charts = "".join(
            arm_curves([part.curve], "starts", "difference in points of success", width, css) for width, css in WIDTHS
        )
        legend = f'<li><span class="key {arm_class(0)}"></span>{esc(part.curve.name)}, points of success</li>'
        body += f'<p class="soft">{esc(ABOUT_GATE)}</p><ul class="legend arms">{legend}</ul>{charts}'
    if part.agreement:
        rows = "".join(
            f"<tr><td>{esc(about)}</td><td class='n'>{starts:,}</td><td class='about'>{esc(shown)}</td></tr>"
            for about, starts, shown in part.agreement
        )
        body += (
            "<div class='scroll'><table><thead><tr><th></th><th>starts</th><th>the first of them</th></tr></thead>"
            f"<tbody>{rows}</tbody></table></div>"
        )
    return f"<section><h2>{esc(part.title)}</h2>{body}</section>"


def _rollouts(pairs: Sequence[RolloutPair]) -> str:
    if not pairs:
        return ""
    body = "".join(
        f"<h3>{esc(pair.caption)}</h3><div class='rollouts'>"
        f"<figure><img src='{pair.before}' alt='policy of before'><figcaption><b>before</b></figcaption></figure>"
        f"<figure><img src='{pair.candidate}' alt='candidate'><figcaption><b>candidate</b></figcaption></figure></div>"
        for pair in pairs
    )
    return f"<section><h2>Beside each other</h2>{body}</section>"


def _critic(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{esc(_sentence(text))}</li>" for text in sentences)
    return f"<section><h2>Critic</h2><ul>{items}</ul></section>" if sentences else ""


def _holdings(part: HoldingsPart) -> str:
    facts = "".join(f"<tr><td>{esc(name)}</td><td class='n'>{esc(text)}</td></tr>" for name, text in part.facts.items())
    lengths = [ValueGroup("success", "bar-ok", part.success_s), ValueGroup("failure", "bar-fail", part.failure_s)]
    lengths = [group for group in lengths if len(group.values)]
    legend = "".join(f'<li><span class="key {group.css}"></span>{group.label}</li>' for group in lengths)
    body = (
        f"<div class='scroll'><table><tbody>{facts}</tbody></table></div><h3>Lengths</h3>"
        f"<ul class='legend'>{legend}</ul>"
        + "".join(histogram(lengths, "length of the episode, s", width, css) for width, css in WIDTHS)
    )
    if part.starts:
        body += f"<h3>Failures by start</h3><p class='soft'>{esc(ABOUT_STARTS)}</p>{_starts(part.starts)}"
    body += f"<h3>Failures in time</h3><p>{esc(_sentence(part.departures))}</p>"
    if len(part.departures_s):
        group = [ValueGroup("", "bar-fail", part.departures_s)]
        body += f"<p class='soft'>{esc(ABOUT_DEPARTURE)}</p>" + "".join(
            histogram(group, "time of the departure, s", width, css) for width, css in WIDTHS
        )
    body += f"<h3>Coverage</h3><p>{esc(_sentence(part.visited))}</p>"
    return f"<section><h2>Content of the logs</h2>{body}</section>"


def _starts(rows: Sequence[StartRow]) -> str:
    body = "".join(
        f"<tr class='{'clear' if row.clear else ''}'><td class='about'>{esc(row.name)}</td>"
        + "".join(
            f"<td class='n third' style='--rate:{100 * cell.value:.0f}%'><b>{percent(cell.value)}</b>"
            f"<small>{100 * cell.low:.0f} to {100 * cell.high:.0f} %, at {esc(cell.span)}</small></td>"
            for cell in row.thirds
        )
        + "</tr>"
        for row in rows
    )
    return (
        "<div class='scroll'><table class='thirds'><thead><tr><th>first observation</th><th>lowest third</th>"
        f"<th>middle third</th><th>highest third</th></tr></thead><tbody>{body}</tbody></table></div>"
    )


def _sentence(text: str) -> str:
    """A text with a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".") if text else ""
