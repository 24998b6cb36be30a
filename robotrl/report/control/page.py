"""HTML page of a control log: one file that needs no server, no network and no other file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from robotrl.deploy.analysis.summary import ActionMeaning, LogSummary, StepSizes, counterparts, seams, times_us
from robotrl.deploy.analysis.ticks import ControlTicks, LoggedEpisode
from robotrl.deploy.control.log import array_of
from robotrl.deploy.control.safety import Mode
from robotrl.report.charts import latency_histograms
from robotrl.report.control.timeline import STATE_NAMES, STATES, shown_episodes, state_spans, timeline
from robotrl.report.control.traces import ActionTrace, action_trace
from robotrl.report.document import document
from robotrl.report.eval_page import again_section
from robotrl.report.text import esc, micros, number, percent

STYLES = ("style.css", "control.css")
MOST_TRACED, MOST_ELEMENTS = 3, 16
"""Episodes and action elements whose traces are drawn: a page of all would open slowly."""


class ControlLogPage(NamedTuple):
    """Content of the page."""

    name: str
    """Name of the log's file."""
    ticks: ControlTicks
    summary: LogSummary
    meaning: ActionMeaning | None
    """Kind and units of the actions; None if unknown."""
    replayed: str
    """Result of a replay in a sentence; empty without one."""
    command: str
    """Command that makes the page again."""


def render_control_log(page: ControlLogPage) -> str:
    """Render the page as text."""
    parts = [
        _tiles(page),
        _notices(page),
        _times(page),
        _timeline(page),
        _interventions(page),
        _elements(page),
        _traces(page),
        _replay(page),
        _again(page),
    ]
    return document(f"Control log {page.name}", STYLES, _verdict(page.summary), _lede(page), parts)


def _verdict(summary: LogSummary) -> str:
    result = f"{summary.successes:,} of {summary.episodes:,} {_plural(summary.episodes, 'episode')} succeeded"
    bad = summary.held + summary.damped
    if not summary.interventions:
        return f"{result}; every action of the policy was sent as it was"
    if not bad:
        return f"{result}; the policy's action was used at every tick, and sometimes changed"
    return f"{result}; at {bad:,} of {summary.ticks:,} ticks the policy's action was not used"


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"


def _lede(page: ControlLogPage) -> str:
    header = page.ticks.header
    dry = " Dry run: the robot was held, and no command was sent." if header.get("dry_run") else ""
    scheduling = f" Scheduling: {header['scheduling']}." if "scheduling" in header else ""
    return (
        f"Robot {header['robot']}, bundle {str(header['bundle_id'])[:12]}, "
        f"{1 / page.ticks.period_s:g} Hz.{dry}{scheduling}"
    )


def _tiles(page: ControlLogPage) -> str:
    summary = page.summary
    p99 = {row.name: row.p99 for row in summary.times}
    tiles = [
        (f"{summary.duration_s:,.1f} s", f"of control, {summary.ticks:,} ticks"),
        (micros(p99["lateness, control ticks"]), "lateness, 99 % of the control ticks are below"),
    ]
    if "inference" in p99:
        tiles.append((micros(p99["inference"]), "inference, 99 % are below"))
    tiles.append((f"{summary.missed:,}", f"control {_plural(summary.missed, 'period')} missed"))
    tiles.append(
        (f"{summary.held + summary.damped:,}", f"ticks held ({summary.held:,}) or damped ({summary.damped:,})")
    )
    cells = "".join(f'<div class="tile"><b>{esc(value)}</b><span>{esc(about)}</span></div>' for value, about in tiles)
    return f'<div class="tiles">{cells}</div>'


def _notices(page: ControlLogPage) -> str:
    texts: list[str] = []
    if page.ticks.fault is not None:
        texts.append(f"The run ended early: {page.ticks.fault}")
    if page.ticks.cut:
        texts.append("The file ends in the middle of a line, which is left out.")
    if not texts:
        return ""
    return (
        '<section class="notice" role="alert"><h2>Not complete</h2>'
        + "".join(f"<p>{esc(text)}</p>" for text in texts)
        + "</section>"
    )


def _times(page: ControlLogPage) -> str:
    series = [(name, values.tolist()) for name, values in times_us(page.ticks).items()]
    period_us = page.ticks.period_s * 1e6
    charts = "".join(
        latency_histograms(series, period_us, width, css) for width, css in ((920, "wide"), (360, "narrow"))
    )
    rows = [
        (row.name, *(micros(value) for value in (row.p50, row.p99, row.p999, row.max)), f"{row.count:,}")
        for row in page.summary.times
    ]
    return (
        "<section><h2>Times</h2><p>Lateness: from a deadline to the wake-up. Inference: from the request to the chunk; "
        "no tick waits for it. Age: when the observation was read. Maxima are those of this run, not bounds.</p>"
        + charts
        + _table(("time", "p50", "p99", "p99.9", "max", "samples"), rows)
        + "</section>"
    )


def _timeline(page: ControlLogPage) -> str:
    legend = "".join(
        f'<li><span class="key {css}"></span>{esc(name)}</li>' for css, name in zip(STATES, STATE_NAMES, strict=True)
    )
    shown = len(shown_episodes(page.ticks))
    note = (
        ""
        if shown == len(page.ticks.episodes)
        else f" Of {len(page.ticks.episodes):,} episodes, the {shown} with most ticks held or damped."
    )
    charts = "".join(timeline(page.ticks, width, css) for width, css in ((920, "wide"), (360, "narrow")))
    return (
        f"<section><h2>Timeline</h2><p>What became of the policy's action at each tick; a gap is a missed control "
        f"period.{note}</p><ul class='legend modes'>{legend}</ul>{charts}</section>"
    )


def _interventions(page: ControlLogPage) -> str:
    if not page.summary.interventions:
        return (
            "<section><h2>Interventions</h2><p>None: no check failed, and no limit was reached. Every action of the "
            "policy was sent as it was.</p></section>"
        )
    rows = [
        (
            row.reason,
            "not used" if row.bad else "changed",
            f"{row.ticks:,}",
            percent(row.share),
            f"{row.first[0]}:{row.first[1]}",
            f"{row.longest:,}",
        )
        for row in page.summary.interventions
    ]
    heads = ("reason", "the action was", "ticks", "share", "first at", "most in a row")
    return (
        "<section><h2>Interventions</h2><p>Reasons of the safety chain and of the loop; several may hold at one tick. "
        "A tick is named by episode and number, as <code>--tick</code> takes it.</p>"
        + _table(heads, rows)
        + "</section>"
    )


def _elements(page: ControlLogPage) -> str:
    rows: list[tuple[str, ...]] = []
    for element in page.summary.elements:
        inside, jump = element.inside, element.seams
        ratio = "" if inside is None or jump is None or not inside.p99 else f"{jump.p99 / inside.p99:.1f}"
        rows.append(
            (
                _with_unit(element.name, element.unit),
                percent(element.clamped),
                percent(element.rate_limited),
                _p99(inside),
                _p99(jump),
                ratio or "-",
                "none" if jump is None else _figure(jump.max),
            )
        )
    heads = ("element", "clamped", "rate limited", "step p99", "seam p99", "seam / step", "seam max")
    return (
        "<section><h2>Actions</h2><p>Step: change of the policy's action inside a chunk, from tick to tick. Seam: its "
        "change where a new chunk takes over. A ratio far above 1 means that chunks do not join.</p>"
        + _table(heads, rows)
        + _tracking(page.summary)
        + "</section>"
    )


def _p99(steps: StepSizes | None) -> str:
    return "none" if steps is None else _figure(steps.p99)


def _figure(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else number(value)


def _with_unit(name: str, unit: str) -> str:
    return name if unit in ("", "1") else f"{name}, {unit}"


def _tracking(summary: LogSummary) -> str:
    if summary.untracked:
        text = f"Tracking: the log holds no measured counterpart ({summary.untracked})."
        return f'<p class="note">{esc(text)}</p>'
    rows = [
        (
            element.name,
            found.measured,
            *(f"{_figure(value)} {found.unit}" for value in (found.mean, found.rms, found.p99_abs, found.max_abs)),
        )
        for element in summary.elements
        if (found := element.tracking) is not None
    ]
    heads = ("position target", "measured by", "mean", "rms", "p99", "max")
    return (
        "<h3>Tracking</h3><p>Measured position one control period after a target was sent, minus the target.</p>"
        + _table(heads, rows)
    )


def _traces(page: ControlLogPage) -> str:
    chosen = traced_episodes(page.ticks)
    names = page.ticks.names
    found = counterparts(page.ticks, page.meaning)
    keys = [("line-policy", "policy"), ("line-sent", "sent")]
    keys += [("line-measured", "measured")] if found else []
    keys += [("line-limit", "limit"), ("line-seam", "seam: a new chunk takes over"), ("band-off", "not used")]
    legend = "".join(f'<li><span class="key {css}"></span>{esc(name)}</li>' for css, name in keys)
    sections = ""
    for place, episode in enumerate(chosen):
        charts = ""
        for element in range(min(len(names), MOST_ELEMENTS)):
            trace = trace_of(page, episode.number, element)
            pictures = "".join(action_trace(trace, width, css) for width, css in ((920, "wide"), (360, "narrow")))
            charts += f"<h3>{esc(names[element])} <small>{esc(_unit(page, element))}</small></h3>{pictures}"
        title = f"Episode {episode.number}, {_result(episode)}"
        sections += f"<details{'' if place else ' open'}><summary>{esc(title)}</summary>{charts}</details>"
    more = f" The first {MOST_ELEMENTS} of {len(names)} elements." if len(names) > MOST_ELEMENTS else ""
    which = ""
    if len(chosen) < len(page.ticks.episodes):
        worst = " The episode with most interventions, and the first ones."
        which = worst if page.summary.interventions else f" The first {len(chosen)} episodes."
    return (
        "<section class='traces-of'><h2>Action traces</h2><p>What the policy asked for and what was sent; where they "
        f"are equal, one line is seen.{which}{more}</p><ul class='legend traces'>{legend}</ul>{sections}</section>"
    )


def traced_episodes(ticks: ControlTicks) -> list[LoggedEpisode]:
    """Episodes whose traces are drawn: the one with most interventions first, then the first ones."""
    changed = {e.number: int((ticks.reason[ticks.episode == e.number] != 0).sum()) for e in ticks.episodes}
    worst = max(ticks.episodes, key=lambda e: changed[e.number])
    return [worst, *(e for e in ticks.episodes if e is not worst)][:MOST_TRACED]


def trace_of(page: ControlLogPage, episode: int, element: int) -> ActionTrace:
    """Trace of one action element along one episode."""
    ticks = page.ticks
    here = ticks.episode == episode
    number_of = ticks.tick[here]
    found = counterparts(ticks, page.meaning).get(element)
    measured = None if found is None else ticks.observed(found.key, found.element)[here] / found.factor
    seam = np.append(False, seams(ticks))[here]
    spans = state_spans((ticks.mode[here] != Mode.ACTIVE).astype(np.int64), number_of)
    period_s = ticks.period_s
    return ActionTrace(
        label=f"{ticks.names[element]} in episode {episode}",
        time_s=number_of * period_s,
        policy=ticks.policy[here, element].astype(np.float64),
        sent=ticks.sent[here, element].astype(np.float64),
        measured=measured,
        seams_s=number_of[seam] * period_s,
        off_s=[(span.first * period_s, span.end * period_s) for span in spans if span.state],
        low=float(array_of(ticks.header["low"])[element]),
        high=float(array_of(ticks.header["high"])[element]),
    )


def _unit(page: ControlLogPage, element: int) -> str:
    unit = "" if page.meaning is None else page.meaning.units[element]
    return "" if unit == "1" else unit


def _result(episode: LoggedEpisode) -> str:
    if episode.success is None:
        return "which did not end"
    return f"start {episode.state_id}, {'success' if episode.success else 'failed'}"


def _replay(page: ControlLogPage) -> str:
    if not page.replayed:
        text = "Not made: <code>--bundle BUNDLE</code> computes every tick again and compares."
        return f"<section><h2>Replay</h2><p>{text}</p></section>"
    return f"<section><h2>Replay</h2><p>{esc(page.replayed)}</p></section>"


def _again(page: ControlLogPage) -> str:
    header = page.ticks.header
    settings = {
        "bundle": str(header["bundle_id"]),
        "seed of the sampler": str(header["seed"]),
        "control period": f"{page.ticks.period_s:g} s",
        "limits of the site": "in the log" if header.get("site") else "none",
    }
    return again_section(page.command, settings)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{esc(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{esc(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table class="log"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
