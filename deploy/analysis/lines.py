"""Numbers of a control log as aligned text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robotrl.deploy.analysis.summary import ActionElement, LogSummary
from robotrl.deploy.analysis.ticks import ControlTicks
from robotrl.deploy.control.log import array_of
from robotrl.deploy.control.replay import ReplayedTick, ReplayReport, frames_of, largest_difference, observation_of
from robotrl.deploy.control.safety import Mode, Reason

MOST_NUMBERS = 64
"""Larger observations, e.g. images, are shown by shape and range."""


_STARTS = {
    "servo": "the servo moved the robot there, through the safety chain",
    "driver": "the driver moved the robot there, which the safety chain did not see",
}


def summary_lines(ticks: ControlTicks, summary: LogSummary) -> list[str]:
    """Summary of a log."""
    return [
        *_head(ticks, summary),
        "",
        *_times(summary),
        "",
        *_interventions(summary),
        "",
        *_elements(summary),
        *_tracking(summary),
    ]


def replay_line(report: ReplayReport) -> str:
    """Result of a replay in one sentence."""
    text = f"{report.ticks:,} ticks and {report.decisions:,} chunks computed again: "
    if not (report.policy_max_abs or report.sent_max_abs or report.verdicts_differ):
        return text + "all actions, modes and reasons are those of the log, bit for bit"
    policy, sent = _worst(report.policy_max_abs, report.policy_at), _worst(report.sent_max_abs, report.sent_at)
    verdicts = f"mode or reasons differ at {report.verdicts_differ:,} ticks"
    return text + f"largest difference of the policy's action {policy}, of the sent action {sent}; {verdicts}"


def logged_tick_lines(ticks: ControlTicks, index: int) -> list[str]:
    """One tick as the log has it.

    Args:
        ticks: the log.
        index: its place among all ticks.
    """
    record = ticks.records[index]
    sent, policy = array_of(record["sent"]), record["policy"]
    rows = [
        (name, "none" if policy is None else _exact(array_of(policy)[i]), _exact(sent[i]))
        for i, name in enumerate(ticks.names)
    ]
    return [
        *_tick_head(ticks, index),
        "",
        *_observation(ticks, index),
        "",
        *_table(("action", "policy", "sent"), rows),
        "",
        f"mode and reasons: {_verdict(int(record['mode']), int(record['reason']))}",
        "--bundle BUNDLE computes this tick again",
    ]


def replayed_tick_lines(ticks: ControlTicks, index: int, again: ReplayedTick) -> list[str]:
    """One tick as the log has it, beside what its bundle computes now.

    Args:
        ticks: the log.
        index: its place among all ticks.
        again: the tick, computed again.
    """
    record = ticks.records[index]
    sent = array_of(record["sent"])
    lines = [*_tick_head(ticks, index), "", *_observation(ticks, index), ""]
    if again.chunk is not None and again.action is not None:
        cursor = int(record["cursor"])
        lines += [f"chunk of decision {record['decision']}, computed again; this tick sends action {cursor}"]
        heads = ("", *(f"{'>' if i + 1 == cursor else ''}{i + 1}" for i in range(len(again.chunk))))
        rows = [(name, *(f"{value:.5g}" for value in again.chunk[:, i])) for i, name in enumerate(ticks.names)]
        logged = array_of(record["policy"])
        lines += [*_table(heads, rows), "", *_comparison("policy", ticks.names, logged, again.action), ""]
    else:
        lines += ["the policy gave no action", ""]
    lines += [*_comparison("sent", ticks.names, sent, again.verdict.action), ""]
    logged_verdict = _verdict(int(record["mode"]), int(record["reason"]))
    lines += [f"mode and reasons, logged:   {logged_verdict}"]
    lines += [f"mode and reasons, computed: {_verdict(int(again.verdict.mode), int(again.verdict.reason))}"]
    same = [
        "policy's action " + _sameness(None if again.action is None else array_of(record["policy"]), again.action),
        "sent action " + _sameness(sent, again.verdict.action),
        f"mode and reasons {'equal' if again.same_verdict else 'differ'}",
    ]
    return [*lines, f"bit for bit: {', '.join(same)}"]


def _head(ticks: ControlTicks, summary: LogSummary) -> list[str]:
    header = ticks.header
    active = summary.ticks - summary.held - summary.damped
    rate = f"{1 / ticks.period_s:g} Hz"
    lines = [
        f"robot      {header['robot']}, bundle {str(header['bundle_id'])[:12]}, {rate}"
        + (", dry run: no command was sent" if header.get("dry_run") else ""),
        f"episodes   {summary.episodes:,}, of them {summary.successes:,} succeeded"
        + (f", {summary.episodes - summary.ended:,} did not end" if summary.ended < summary.episodes else ""),
        f"ticks      {summary.ticks:,} in {summary.duration_s:.1f} s: {active:,} active, {summary.held:,} held, "
        f"{summary.damped:,} damped; {summary.missed:,} control periods missed",
    ]
    # older logs do not say it, and a simulation is not moved
    if (starts := _STARTS.get(header.get("started_by", ""))) is not None:
        moved = summary.start_motions
        counted = f": {moved.ticks:,} ticks, {moved.held:,} held, {moved.missed:,} control periods missed"
        lines.append(f"starts     {starts}{counted if moved.ticks else ''}")
    if ticks.fault is not None:
        lines.append(f"ended by   {ticks.fault}")
    if ticks.cut:
        lines.append("note       the log ends in the middle of a line, which is left out")
    return lines


def _times(summary: LogSummary) -> list[str]:
    rows = [
        (row.name, *(f"{value:,.0f}" for value in (row.p50, row.p99, row.p999, row.max)), f"{row.count:,}")
        for row in summary.times
    ]
    return _table(("times, us", "p50", "p99", "p99.9", "max", "samples"), rows)


def _interventions(summary: LogSummary) -> list[str]:
    if not summary.interventions:
        return ["interventions: none, every action of the policy was sent as it was"]
    rows = [
        (
            row.reason,
            f"{row.ticks:,}",
            f"{100 * row.share:.2f} %",
            f"{row.first[0]}:{row.first[1]}",
            f"{row.longest:,}",
            "action not used" if row.bad else "action changed",
        )
        for row in summary.interventions
    ]
    return _table(("interventions", "ticks", "share", "first at", "in a row", ""), rows)


def _elements(summary: LogSummary) -> list[str]:
    rows = [
        (
            _with_unit(element.name, element.unit),
            f"{100 * element.clamped:.2f} %",
            f"{100 * element.rate_limited:.2f} %",
            *_steps(element),
        )
        for element in summary.elements
    ]
    heads = ("action", "clamped", "rate limited", "step p99", "seam p99", "seam max")
    count = max((e.seams.count for e in summary.elements if e.seams is not None), default=0)
    note = f"step: inside a chunk; seam: jump of the policy's action where a new chunk takes over ({count:,} seams)"
    return [*_table(heads, rows), f"  {note}"]


def _steps(element: ActionElement) -> tuple[str, str, str]:
    inside = "none" if element.inside is None else f"{element.inside.p99:.4g}"
    if element.seams is None:
        return inside, "none", "none"
    return inside, f"{element.seams.p99:.4g}", f"{element.seams.max:.4g}"


def _tracking(summary: LogSummary) -> list[str]:
    if summary.untracked:
        return ["", f"tracking: the log holds no measured counterpart ({summary.untracked})"]
    rows = [
        (
            element.name,
            found.measured,
            found.unit,
            f"{found.mean:.4g}",
            f"{found.rms:.4g}",
            f"{found.p99_abs:.4g}",
            f"{found.max_abs:.4g}",
        )
        for element in summary.elements
        if (found := element.tracking) is not None
    ]
    heads = ("tracking", "measured by", "unit", "mean", "rms", "p99", "max")
    return ["", *_table(heads, rows, left=3), "  error: measured one control period after the target, minus the target"]


def _tick_head(ticks: ControlTicks, index: int) -> list[str]:
    record = ticks.records[index]
    times = {
        "late": record["lateness_ns"],
        "observation's age": record["age_ns"],
        "busy": record["busy_ns"],
        "inference": record["inference_ns"],
    }
    measured = ", ".join(f"{name} {ns * 1e-3:,.0f} us" for name, ns in times.items())
    deadline = f"deadline {record['deadline_ns'] * 1e-9:.6f} s"
    return [f"tick {record['episode']}:{record['tick']}, {deadline}: {measured}"]


def _observation(ticks: ControlTicks, index: int) -> list[str]:
    rows: list[tuple[str, str]] = []
    for key, array in observation_of(ticks.records[index]).items():
        names = ticks.header["observations"][key]
        if ticks.records[index]["obs"][key] is None:
            rows.append((key, "none"))
        elif array.shape == (len(names),) and len(names) <= MOST_NUMBERS:
            rows += [(f"{key}/{name}", _exact(value)) for name, value in zip(names, array, strict=True)]
        else:
            rows.append((key, f"{array.shape}, {array.min():.5g} to {array.max():.5g}"))
    for key, frame in frames_of(ticks.records[index]).items():
        rows.append((key, f"frame {frame['number']}, checksum {frame['checksum']}"))
    return _table(("observation", "value"), rows)


def _comparison(what: str, names: Sequence[str], logged: np.ndarray, computed: np.ndarray) -> list[str]:
    rows = [
        (
            name,
            _exact(logged[i]),
            _exact(computed[i]),
            f"{largest_difference(logged[i : i + 1], computed[i : i + 1]):g}",
        )
        for i, name in enumerate(names)
    ]
    return _table((what, "logged", "computed", "difference"), rows)


def _sameness(logged: np.ndarray | None, computed: np.ndarray | None) -> str:
    if logged is None or computed is None:
        return "absent"
    return "equal" if logged.tobytes() == computed.astype(np.float32).tobytes() else "differs"


def _verdict(mode: int, reason: int) -> str:
    names = [str(found.name).lower() for found in Reason(reason)]
    return f"{Mode(mode).name.lower()}, {', '.join(names) or 'no reason'}"


def _worst(error: float, at: tuple[int, int] | None) -> str:
    return "0" if at is None else f"{error:.3g} (tick {at[0]}:{at[1]})"


def _exact(value: np.floating) -> str:
    """Shortest text that reads back as the same float32."""
    return str(np.float32(value))


def _with_unit(name: str, unit: str) -> str:
    return name if unit in ("", "1") else f"{name}, {unit}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Aligned columns; the first `left` begin at their left edge, the others end at their right edge."""
    widths = [max(len(line[i]) for line in (heads, *rows)) for i in range(len(heads))]
    widths[0] += 2
    texts: list[str] = []
    for n, row in enumerate((heads, *rows)):
        cells = [f"{'  ' if n else ''}{row[0]}", *row[1:]]
        pairs = enumerate(zip(cells, widths, strict=True))
        texts.append("  ".join(f"{c:<{w}}" if i < left else f"{c:>{w}}" for i, (c, w) in pairs).rstrip())
    return texts
