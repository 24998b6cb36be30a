"""Learning curves of several arms in one chart, with confidence bands over seeds, as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from robotrl.report.text import count, esc, number, percent

ARM_COLORS = 8
"""Number of colors in the style sheet; further arms repeat them with dashed lines."""


class ArmPoint(NamedTuple):
    """An evaluation of the runs of an arm at one iteration."""

    x: float
    """Env steps or iterations, 0 or more."""
    value: float
    """Mean over runs."""
    low: float | None
    """Lower end of the interval; None if there is none."""
    high: float | None
    runs: int
    """Number of runs behind it."""
    whole: bool
    """True if all runs of the arm that were evaluated at all are behind it."""


class ArmCurve(NamedTuple):
    """Learning curve of an arm."""

    name: str
    points: Sequence[ArmPoint]


def round_ticks(low: float, high: float) -> list[float]:
    """About five round numbers that cover `low` to `high`; the first and last one lie at or beyond these."""
    span = high - low if high > low else max(abs(high), 1.0)
    raw = span / 4
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * k for k in range(first, max(last, first + 1) + 1)]


def arm_class(index: int) -> str:
    """CSS classes of the color of an arm, by its place."""
    return f"arm arm{index % ARM_COLORS}" + (" again" if index >= ARM_COLORS else "")


def arm_curves(
    curves: Sequence[ArmCurve], x_label: str, y_label: str, width: int, css: str = "", is_rate: bool = False
) -> str:
    """Chart of learning curves.

    Bands are intervals; hollow dots are points that some run of the arm is missing from.

    Args:
        curves: one for each arm, in the order of their colors; at least one has a point.
        x_label: title of the horizontal axis.
        y_label: title of the vertical axis, for screen readers.
        width: in CSS pixels; the chart scales, but its text is legible at this width.
        css: extra CSS class of the chart.
        is_rate: values are rates, 0 to 1, shown as percentages.
    """
    every = [point for curve in curves for point in curve.points]
    edges = [edge for p in every for edge in (p.value, p.low, p.high) if edge is not None]
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0] if is_rate else round_ticks(min(edges), max(edges))
    across = round_ticks(0.0, max(point.x for point in every) or 1.0)
    height = 300 if width < 560 else 320
    left, right, top, bottom = 58, width - 16, 12, height - 40
    low, high, end = ticks[0], ticks[-1], across[-1]

    def x(value: float) -> float:
        return left + (right - left) * value / end

    def y(value: float) -> float:
        return bottom - (bottom - top) * (min(max(value, low), high) - low) / (high - low)

    body: list[str] = []
    for tick in ticks:
        text = f"{100 * tick:g} %" if is_rate else f"{tick:,.6g}"
        body.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        body.append(f'<text class="tick" x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{text}</text>')
    for tick in across[:: 2 if width < 560 and len(across) > 4 else 1]:
        anchor = "end" if x(tick) > right - 12 else "middle"
        body.append(
            f'<text class="tick" x="{x(tick):.1f}" y="{bottom + 18}" text-anchor="{anchor}">{count(tick)}</text>'
        )
    body.append(
        f'<text class="axis" x="{(left + right) / 2:.0f}" y="{height - 4}" text-anchor="middle">{esc(x_label)}</text>'
    )
    for index, curve in enumerate(curves):
        body.append(f'<g class="{arm_class(index)}">')
        banded = [(p.x, p.low, p.high) for p in curve.points if p.low is not None and p.high is not None]
        if len(banded) > 1:
            upper = [f"{x(at):.1f},{y(top_):.1f}" for at, _, top_ in banded]
            lower = [f"{x(at):.1f},{y(bottom_):.1f}" for at, bottom_, _ in reversed(banded)]
            body.append(f'<polygon class="arm-band" points="{" ".join(upper + lower)}"/>')
        line = " ".join(f"{x(p.x):.1f},{y(p.value):.1f}" for p in curve.points)
        body.append(f'<polyline class="arm-line" points="{line}"/>')
        for p in curve.points:
            body.append(
                f'<circle class="arm-dot{"" if p.whole else " hollow"}" cx="{x(p.x):.1f}" cy="{y(p.value):.1f}"'
                f' r="{2.6 if len(curve.points) > 40 else 3.4}"><title>'
                f"{esc(_point_text(curve.name, p, x_label, is_rate))}</title></circle>"
            )
        body.append("</g>")
    return (
        f'<svg class="chart {css}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="'
        f'{esc(y_label)} against {esc(x_label)}">{"".join(body)}</svg>'
    )


def _point_text(name: str, point: ArmPoint, x_label: str, is_rate: bool) -> str:
    """Text of a point's tooltip."""
    show = percent if is_rate else number
    span = ""
    if point.low is not None and point.high is not None:
        span = f" ({show(point.low)} to {show(point.high)})"
    return f"{name} at {point.x:,.0f} {x_label}: {show(point.value)}{span}, {point.runs} runs"
