"""Charts of a run's learned reward beside the sim's truth, for pages of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from robotrl.report.compare.curves import round_ticks
from robotrl.report.text import count, esc

MOST_POINTS = 200
"""Maximum number of points of a chart; longer runs are averaged."""


class RewardTruth(NamedTuple):
    """A run's reward and truth over its iterations."""

    name: str
    """Display name of the run."""
    x: Sequence[float]
    """(n,) env steps or iterations, rising."""
    x_label: str
    reward: Sequence[float]
    """(n,) finite: what the run learns from."""
    truth: Sequence[float]
    """(n,) finite: what it should achieve."""
    truth_label: str
    diverged: float | None
    """Place on the horizontal axis at which the reward was first seen to rise while the truth fell; None for never."""


def reward_truth_section(runs: Sequence[RewardTruth]) -> str:
    """Section with two charts for each run; empty without runs."""
    shown = [run for run in runs if len(run.x)]
    if not shown:
        return ""
    parts: list[str] = []
    for run in shown:
        remark = (
            "The reward was not seen to rise while the truth fell."
            if run.diverged is None
            else f"From {run.diverged:,.0f} {run.x_label} on the reward rose while the truth fell: the policy may"
            " exploit the reward."
        )
        mark = '<b class="mark over fail">diverges</b> ' if run.diverged is not None else ""
        charts = "".join(
            f"<div><h3>{esc(label)}</h3>{_chart(run, values, label, role)}</div>"
            for values, label, role in ((run.reward, "reward", "tuned"), (run.truth, run.truth_label, "deployed"))
        )
        parts.append(f'<p>{mark}{esc(f"{run.name}: {remark}")}</p><div class="split even">{charts}</div>')
    return (
        "<section><h2>Reward and truth</h2><p>Means of the rollouts of each iteration: what the run learns from, and "
        f"what it should achieve.</p>{''.join(parts)}</section>"
    )


def _chart(run: RewardTruth, values: Sequence[float], label: str, role: str) -> str:
    at, shown = _thinned(run.x), _thinned(values)
    ticks, across = round_ticks(min(shown), max(shown)), round_ticks(0.0, max(at) or 1.0)
    width, height, left, top = 460, 190, 58, 10
    right, bottom = width - 16, height - 38

    def x(value: float) -> float:
        return left + (right - left) * value / across[-1]

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value - ticks[0]) / (ticks[-1] - ticks[0])

    body = [f'<line class="grid" x1="{left}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>' for tick in ticks]
    for tick in ticks:
        body.append(f'<text class="tick" x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:,.6g}</text>')
    for tick in across[::2]:
        anchor = "end" if x(tick) > right - 12 else "middle"
        body.append(
            f'<text class="tick" x="{x(tick):.1f}" y="{bottom + 16}" text-anchor="{anchor}">{count(tick)}</text>'
        )
    middle = (left + right) / 2
    body.append(f'<text class="axis" x="{middle:.0f}" y="{height - 4}" text-anchor="middle">{esc(run.x_label)}</text>')
    if run.diverged is not None:
        place = x(run.diverged)
        body.append(f'<line class="deadline" x1="{place:.1f}" x2="{place:.1f}" y1="{top}" y2="{bottom}"/>')
    line = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(at, shown, strict=True))
    body.append(f'<polyline class="{role}" fill="none" stroke-width="2.2" points="{line}"/>')
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{esc(label)} against '
        f'{esc(run.x_label)}">{"".join(body)}</svg>'
    )


def _thinned(values: Sequence[float]) -> list[float]:
    """Means of at most `MOST_POINTS` neighboring groups."""
    groups = np.array_split(np.asarray(values, np.float64), min(len(values), MOST_POINTS))
    return [float(group.mean()) for group in groups]
