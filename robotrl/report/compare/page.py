"""HTML page that compares training runs, grouped into arms: one file that needs no server and no other file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from robotrl.report.compare.curves import ArmCurve, arm_class, arm_curves
from robotrl.report.compare.scoring_table import ScoringRow, scoring_section
from robotrl.report.compare.workers_section import ClusterRow, workers_section
from robotrl.report.document import document
from robotrl.report.reward_truth import RewardTruth, reward_truth_section
from robotrl.report.text import esc, number, percent

STYLES = ("style.css", "compare.css")


class ScoreSpan(NamedTuple):
    """A score with its interval."""

    value: float
    low: float
    """Equal to the value, as `high` is, of a single run, which has no interval."""
    high: float
    runs: int


class RunRow(NamedTuple):
    """A run in the table of runs; texts are ready for display."""

    arm: int
    """Place of its arm."""
    name: str
    seed: str
    state: str
    """State of the run: in training, ended, or never evaluated."""
    progress: str
    """Iterations and env steps of its last record."""
    success: str
    """Success of its last evaluation, with the interval over episodes."""
    ret: str
    """Mean return of its last evaluation."""
    best: str
    """Best evaluation by the run's own score."""
    learn: str
    """Training time without evaluations."""


class ArmRow(NamedTuple):
    """An arm: runs that differ in nothing but the seed."""

    name: str
    """Short name: "A", "B", ..."""
    about: str
    """Settings in which it differs from other arms."""
    seeds: str
    success: ScoreSpan | None
    """Mean over runs of the last evaluation's success, 0 to 1; None if no run counts."""
    ret: ScoreSpan | None
    note: str
    """Number of runs behind the numbers, and the runs left out."""


class FieldRow(NamedTuple):
    """A config field that differs between arms."""

    field: str
    values: tuple[str, ...]
    """One for each arm."""


class ArmPicture(NamedTuple):
    """Rollouts of a run of an arm."""

    arm: int
    caption: str
    source: str
    """Picture as a data URL; empty if there is none, which the caption explains."""


@dataclass(frozen=True)
class ComparePage:
    """Content of the page.

    Args:
        title: title of the page.
        verdict: main result in one sentence.
        lede: what was compared.
        warnings: reasons why scores of different arms are not comparable; usually none.
        arms: the arms.
        success: learning curves by success, one for each arm.
        returns: learning curves by return, one for each arm.
        x_label: horizontal axis of both.
        method: how intervals were computed.
        fields: config fields that differ.
        runs: all runs.
        pictures: rollouts, one for each arm.
        command: command that makes the page again.
        reward_truth: reward and truth of the runs that learn from reward sources.
        scoring: reward sources that score beside the sim.
        workers: workers of runs on a cluster.
    """

    title: str
    verdict: str
    lede: str
    warnings: Sequence[str]
    arms: Sequence[ArmRow]
    success: Sequence[ArmCurve]
    returns: Sequence[ArmCurve]
    x_label: str
    method: str
    fields: Sequence[FieldRow]
    runs: Sequence[RunRow]
    pictures: Sequence[ArmPicture]
    command: str = ""
    reward_truth: Sequence[RewardTruth] = ()
    scoring: Sequence[ScoringRow] = ()
    workers: Sequence[ClusterRow] = ()


def render_comparison(page: ComparePage) -> str:
    """Render the page as text."""
    parts = [
        _warnings(page.warnings),
        _scores(page),
        _curves(page, page.success, "Success during training", "success", True),
        _curves(page, page.returns, "Return during training", "return", False),
        reward_truth_section(page.reward_truth),
        scoring_section(page.scoring),
        workers_section(page.workers),
        _fields(page),
        _pictures(page),
        _runs(page),
        f"<section><h2>Make it again</h2><pre>{esc(page.command)}</pre></section>" if page.command else "",
    ]
    return document(page.title, STYLES, page.verdict, page.lede, parts)


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{esc(text)}</li>" for text in warnings)
    return f'<section class="warning" role="alert"><h2>Not comparable as they are</h2><ul>{items}</ul></section>'


def _key(arm: int) -> str:
    return f'<span class="key {arm_class(arm)}"></span>'


def _table(heads: Sequence[str], rows: Sequence[str], css: str = "") -> str:
    head = "".join(f"<th>{esc(name)}</th>" for name in heads)
    return (
        f'<div class="scroll"><table class="{css}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _scores(page: ComparePage) -> str:
    rows: list[str] = []
    returns = [edge for arm in page.arms if arm.ret for edge in (arm.ret.low, arm.ret.high)]
    span = (min(returns, default=0.0), max(returns, default=1.0))
    for index, arm in enumerate(page.arms):
        rows.append(
            f"<tr><td class='arm-name'>{_key(index)}<b>{esc(arm.name)}</b></td><td class='about'>{esc(arm.about)}</td>"
            f'<td class="n">{esc(arm.seeds)}</td><td class="n score">{_interval(arm.success, True)}'
            f"{_bar(arm.success, (0.0, 1.0), index)}</td>"
            f'<td class="n score">{_interval(arm.ret, False)}{_bar(arm.ret, span, index)}</td>'
            f"<td class='soft note'>{esc(arm.note)}</td></tr>"
        )
    return (
        f"<section><h2>Final scores</h2><p>{esc(page.method)}</p>"
        + _table(("arm", "settings that differ", "seeds", "success", "return", "runs behind it"), rows, "scores")
        + "</section>"
    )


def _interval(interval: ScoreSpan | None, is_rate: bool) -> str:
    if interval is None:
        return '<span class="soft">none</span>'
    show = percent if is_rate else number
    if interval.runs == 1:
        return f"<b>{show(interval.value)}</b>"
    return f"<b>{show(interval.value)}</b> <small>{show(interval.low)} to {show(interval.high)}</small>"


def _bar(interval: ScoreSpan | None, span: tuple[float, float], arm: int) -> str:
    """The interval on a common scale."""
    if interval is None or span[1] <= span[0]:
        return ""

    def x(value: float) -> float:
        return 6 + 188 * (min(max(value, span[0]), span[1]) - span[0]) / (span[1] - span[0])

    whisker = f'<line class="arm-whisker" x1="{x(interval.low):.1f}" x2="{x(interval.high):.1f}" y1="8" y2="8"/>'
    return (
        f'<svg class="chart whiskers {arm_class(arm)}" viewBox="0 0 200 16" aria-hidden="true">'
        f'<line class="grid" x1="6" x2="194" y1="8" y2="8"/>{whisker}'
        f'<circle class="arm-final" cx="{x(interval.value):.1f}" cy="8" r="4.5"/></svg>'
    )


def _curves(page: ComparePage, curves: Sequence[ArmCurve], title: str, label: str, is_rate: bool) -> str:
    without = [curve.name for curve in curves if not curve.points]
    if len(without) == len(curves):
        return f'<section><h2>{title}</h2><p class="soft">No run was evaluated yet: there is no curve.</p></section>'
    charts = "".join(
        arm_curves(curves, page.x_label, label, width, css, is_rate) for width, css in ((920, "wide"), (360, "narrow"))
    )
    legend = "".join(f"<li>{_key(index)}{esc(arm.name)}: {esc(arm.about)}</li>" for index, arm in enumerate(page.arms))
    missing = f" Without an evaluation: {', '.join(without)}." if without else ""
    hollow = any(not point.whole for curve in curves for point in curve.points)
    note = " Hollow dots: some seeds of the arm have no evaluation there." if hollow else ""
    note_html = f"<p>{esc((missing + note).strip())}</p>" if missing or note else ""
    return f'<section><h2>{title}</h2>{note_html}<ul class="legend arms">{legend}</ul>{charts}</section>'


def _fields(page: ComparePage) -> str:
    if len(page.arms) < 2:
        return ""
    heads = ("field", *(arm.name for arm in page.arms))
    rows = [
        f"<tr><td><code>{esc(row.field)}</code></td>"
        + "".join(
            f'<td class="{"odd-one" if value != row.values[0] else ""}">{esc(value)}</td>' for value in row.values
        )
        + "</tr>"
        for row in page.fields
    ]
    return (
        "<section><h2>Differences in config</h2><p>Only fields that differ; what differs from the first arm is "
        "marked.</p>" + _table(heads, rows, "fields") + "</section>"
    )


def _pictures(page: ComparePage) -> str:
    if not page.pictures:
        return ""
    figures = ""
    for picture in page.pictures:
        name = page.arms[picture.arm].name
        image = (
            f'<img src="{picture.source}" alt="rollouts of arm {esc(name)}">'
            if picture.source
            else '<div class="no-picture">no pictures</div>'
        )
        figures += (
            f"<figure>{image}<figcaption>{_key(picture.arm)}<b>{esc(name)}</b> {esc(picture.caption)}"
            "</figcaption></figure>"
        )
    return (
        "<section><h2>Rollouts</h2><p>As each run filmed its newest evaluation: the first starts of split val, the "
        f'same for arms of one sim.</p><div class="rollouts">{figures}</div></section>'
    )


def _runs(page: ComparePage) -> str:
    heads = ("run", "arm", "seed", "state", "progress", "success", "return", "best", "learning time")
    rows = [
        f"<tr><td>{_key(row.arm)}{esc(row.name)}</td><td>{esc(page.arms[row.arm].name)}</td>"
        + "".join(
            f'<td class="n">{esc(text)}</td>'
            for text in (row.seed, row.state, row.progress, row.success, row.ret, row.best, row.learn)
        )
        + "</tr>"
        for row in page.runs
    ]
    return (
        "<section><h2>Runs</h2><p>Success and return are those of the last evaluation during training, with Wilson's "
        "95 % interval over its episodes; the best of many evaluations flatters.</p>"
        + _table(heads, rows, "runs")
        + "</section>"
    )
