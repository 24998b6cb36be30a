"""Section about the workers of a run on a cluster, for pages of runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from robotrl.report.compare.curves import ArmCurve, ArmPoint, arm_class, arm_curves
from robotrl.report.text import esc, number, percent

SPEED, SECONDS = "cluster/env_steps_per_s/", "cluster/rollout_s/"
STAGES = (("learn", "learning"), ("publish", "sending weights"), ("wait", "waiting for workers"))
"""Stages of an iteration, by the last word of their scalars."""
SHOWN_POINTS = 200
"""Points of a curve; of a longer run, each is the median of several iterations."""


class WorkerLine(NamedTuple):
    """A worker over a run."""

    name: str
    speeds: tuple[tuple[float, float], ...]
    """(iteration, env steps per second)."""
    rollout_s: float
    """Median time of a rollout; NaN if it was not logged."""


class ClusterRow(NamedTuple):
    """The workers of a run, and where its time went."""

    run: str
    workers: tuple[WorkerLine, ...]
    slowest: Mapping[str, float]
    """Share of the iterations in which a worker was the slowest, by its name."""
    shares: Mapping[str, float]
    """Median share of each stage in an iteration, by the word of `STAGES`."""
    staleness: float
    """Mean number of updates between the policy that acted and the one that learned."""
    restarts: float
    lost_rollouts: float
    weights_mb: float
    """Weights sent so far, summed over workers."""
    slowest_ratio: float
    """Median over iterations: time of the slowest worker, as a multiple of the median worker's."""


def cluster_row(run: str, records: Sequence[Mapping[str, float]]) -> ClusterRow | None:
    """The row of a run, from its scalars; None for a run without workers.

    Counts are those since the start of the process that trained last.
    """
    rows = [row for row in records if "cluster/version" in row]
    if not rows:
        return None
    names = list(dict.fromkeys(key.removeprefix(SPEED) for row in rows for key in row if key.startswith(SPEED)))
    slowest = [f"worker_{int(row['cluster/slowest_worker'])}" for row in rows if "cluster/slowest_worker" in row]
    return ClusterRow(
        run,
        tuple(
            WorkerLine(
                name,
                tuple((row["step"], row[SPEED + name]) for row in rows if SPEED + name in row),
                _median(rows, SECONDS + name),
            )
            for name in names
        ),
        {name: slowest.count(name) / max(len(slowest), 1) for name in names},
        {key: _median(rows, f"cluster/share_{key}") for key, _ in STAGES},
        statistics.fmean(row.get("cluster/staleness", 0.0) for row in rows),
        rows[-1]["cluster/restarts"],
        rows[-1]["cluster/lost_rollouts"],
        rows[-1]["cluster/weights_mb"],
        _median(rows, "cluster/slowest_ratio"),
    )


def _median(rows: Sequence[Mapping[str, float]], key: str) -> float:
    found = [row[key] for row in rows if math.isfinite(row.get(key, math.nan))]
    return statistics.median(found) if found else math.nan


def workers_section(rows: Sequence[ClusterRow]) -> str:
    """Section with a chart and a table for each run; empty without rows."""
    return "".join(map(_section, rows))


def _section(row: ClusterRow) -> str:
    shares = ", ".join(
        f"{name} {percent(row.shares[key])}" for key, name in STAGES if math.isfinite(row.shares.get(key, math.nan))
    )
    facts = [
        f"Time of an iteration: {shares}." if shares else "",
        f"Mean staleness {number(row.staleness)} updates.",
        f"Weights sent: {number(row.weights_mb)} MB.",
        f"Workers replaced: {row.restarts:,.0f}; rollouts lost with them: {row.lost_rollouts:,.0f}.",
        f"The slowest worker takes {number(row.slowest_ratio)} times as long as the median one."
        if math.isfinite(row.slowest_ratio)
        else "",
    ]
    body = "".join(
        f'<tr><td><span class="key {arm_class(index)}"></span>{esc(line.name)}</td>'
        f'<td class="n">{_speed(line)}</td><td class="n">{_seconds(line.rollout_s)}</td>'
        f'<td class="n">{percent(row.slowest.get(line.name, 0.0))}</td></tr>'
        for index, line in enumerate(row.workers)
    )
    heads = ("worker", "env steps/s, median", "rollout, median", "slowest in")
    head = "".join(f"<th>{esc(text)}</th>" for text in heads)
    return (
        f"<section><h2>Workers of {esc(row.run)}</h2><p>{esc(' '.join(filter(None, facts)))}</p>{_chart(row)}"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></section>'
    )


def _speed(line: WorkerLine) -> str:
    return number(statistics.median(speed for _, speed in line.speeds)) if line.speeds else "-"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if math.isfinite(seconds) else "-"


def _chart(row: ClusterRow) -> str:
    curves = [ArmCurve(line.name, _points(line.speeds)) for line in row.workers]
    if not any(curve.points for curve in curves):
        return ""
    return "".join(
        arm_curves(curves, "iterations", "env steps per second", width, css)
        for width, css in ((920, "wide"), (360, "narrow"))
    )


def _points(speeds: Sequence[tuple[float, float]]) -> list[ArmPoint]:
    size = math.ceil(len(speeds) / SHOWN_POINTS)
    parts = [speeds[first : first + size] for first in range(0, len(speeds), size or 1)]
    return [
        ArmPoint(part[-1][0], statistics.median(speed for _, speed in part), None, None, len(part), True)
        for part in parts
    ]
