"""Charts as inline SVG. Colors come from the page's style sheet, so that light and dark mode both work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from robotrl.report.data import CurvePoint, Level
from robotrl.report.text import count, esc, micros, percent


class Mark(NamedTuple):
    """A vertical line in a histogram."""

    label: str
    value: float


def _ticks(top: float) -> list[float]:
    """About five round numbers from 0 to `top`."""
    if top <= 0:
        return [0.0]
    raw = top / 5
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw)
    return [step * i for i in range(int(top / step + 1e-9) + 1)]


def _spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move label positions apart, keeping their order, so that neighbors are `gap` apart inside `low` to `high`."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    label_positions = [0.0] * len(positions)
    at = low - gap
    for i in order:
        at = label_positions[i] = max(positions[i], at + gap)
    at = high + gap
    for i in reversed(order):
        at = label_positions[i] = min(label_positions[i], at - gap)
    return label_positions


def _hline(css: str, x1: float, x2: float, y: float) -> str:
    return f'<line class="{css}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _vline(css: str, x: float, y1: float, y2: float) -> str:
    return f'<line class="{css}" x1="{x:.1f}" x2="{x:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def _svg(width: float, height: float, css: str, label: str, body: list[str]) -> str:
    return (
        f'<svg class="chart {css}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{esc(label)}">'
        + "".join(body)
        + "</svg>"
    )


def learning_curve(
    points: Sequence[CurvePoint], levels: Sequence[Level], width: int, css: str = "", tuned_env_steps: int | None = None
) -> str:
    """Learning curve: success against env steps with a confidence band; other levels as labeled horizontal lines.

    Args:
        points: periodic evaluations; may be empty.
        levels: clone, best clone and expert are drawn as lines, the fine-tuned policy as a point with a whisker.
        width: in CSS pixels; the chart scales, but its text is legible at this width.
        css: extra CSS class of the chart.
        tuned_env_steps: horizontal position of that point; None draws it past the right end.
    """
    narrow = width < 560
    height = 300 if narrow else 340
    left, right, top, bottom = 44, width - (118 if narrow else 190), 14, height - 40
    end = max((point.env_steps for point in points), default=1) or 1

    def x(steps: float) -> float:
        return left + (right - left) * steps / end

    def y(rate: float) -> float:
        return bottom - (bottom - top) * min(max(rate, 0.0), 1.0)

    body: list[str] = []
    for rate in (0, 0.25, 0.5, 0.75, 1):
        body.append(_hline("grid", left, right, y(rate)))
        body.append(
            f'<text class="tick" x="{left - 8}" y="{y(rate) + 4:.1f}" text-anchor="end">{100 * rate:g} %</text>'
        )
    ticks = _ticks(end)[:: 2 if narrow else 1]
    for steps in ticks:
        body.append(
            f'<text class="tick" x="{x(steps):.1f}" y="{bottom + 18}" text-anchor="middle">{count(steps)}</text>'
        )
    body.append(
        f'<text class="axis" x="{(left + right) / 2:.0f}" y="{height - 4}" text-anchor="middle">env steps</text>'
    )
    lines = [level for level in levels if level.role in ("clone", "best_clone", "expert")]
    tuned = next((level for level in levels if level.role == "tuned"), None)
    for level in lines:
        body.append(_hline(f"level {level.role}", left, right, y(level.value)))
    if points:
        upper = [f"{x(p.env_steps):.1f},{y(p.high):.1f}" for p in points]
        lower = [f"{x(p.env_steps):.1f},{y(p.low):.1f}" for p in reversed(points)]
        body.append(f'<polygon class="band" points="{" ".join(upper + lower)}"/>')
        line = " ".join(f"{x(p.env_steps):.1f},{y(p.value):.1f}" for p in points)
        body.append(f'<polyline class="curve" points="{line}"/>')
        for p in points:
            tooltip = f"{p.env_steps:,} env steps: {percent(p.value)} ({percent(p.low)} to {percent(p.high)})"
            body.append(
                f'<circle class="dot" cx="{x(p.env_steps):.1f}" cy="{y(p.value):.1f}" r="3.5">'
                f"<title>{tooltip}</title></circle>"
            )
    labeled = [*lines, *([tuned] if tuned else [])]
    at_tuned = right + 8.0 if tuned_env_steps is None else x(min(tuned_env_steps, end))
    if tuned:
        if tuned.low is not None and tuned.high is not None:
            body.append(_vline("whisker tuned", at_tuned, y(tuned.low), y(tuned.high)))
        tooltip = "" if tuned_env_steps is None else f" after {tuned_env_steps:,} env steps"
        body.append(
            f'<circle class="final tuned" cx="{at_tuned:.1f}" cy="{y(tuned.value):.1f}" r="5">'
            f"<title>{esc(tuned.label)}{tooltip}: {percent(tuned.value)}</title></circle>"
        )
    heights = _spread([y(level.value) for level in labeled], 30, top + 4, bottom - 4)
    for level, at in zip(labeled, heights, strict=True):
        start = max(at_tuned + 6, right + 3) if level is tuned else right + 3
        body.append(f'<path class="lead" d="M{start} {y(level.value):.1f} L{right + 22} {at:.1f}"/>')
        name = _short(level, narrow)
        if level is tuned and tuned_env_steps is not None:
            name = f"{'tuned' if narrow else 'fine-tuned'}, at {count(tuned_env_steps)}"
        body.append(
            f'<text class="label {level.role}" x="{right + 26}" y="{at - 2:.1f}"><tspan class="number">'
            f'{percent(level.value)}</tspan><tspan x="{right + 26}" dy="13">{esc(name)}</tspan></text>'
        )
    return _svg(width, height, css, "Success against env steps", body)


def _short(level: Level, narrow: bool) -> str:
    names = {"clone": "clone", "best_clone": "best clone", "expert": "expert", "tuned": "fine-tuned, held out"}
    if narrow:
        return {**names, "tuned": "fine-tuned"}[level.role]
    return level.label if len(level.label) <= 26 else names[level.role]


def interval_bar(level: Level, width: int = 260) -> str:
    """A success rate as a point with a whisker on a scale from 0 to 100 %."""
    height, pad = 18, 6

    def x(rate: float) -> float:
        return pad + (width - 2 * pad) * rate

    body = [_hline("grid", x(0), x(1), 9)]
    body += [_vline("grid", x(r), 6, 12) for r in (0, 0.25, 0.5, 0.75, 1)]
    if level.low is not None and level.high is not None:
        body.append(_hline(f"whisker {level.role}", x(level.low), x(level.high), 9))
    body.append(f'<circle class="final {level.role}" cx="{x(level.value):.1f}" cy="9" r="4.5"/>')
    return _svg(width, height, "interval", f"{level.label}: {percent(level.value)}", body)


def latency_histograms(
    series: Sequence[tuple[str, Sequence[float]]], deadline_us: float | None, width: int, css: str = ""
) -> str:
    """Histograms of latencies, one panel per series on a shared logarithmic axis, with p50, p99 and max marked.

    Args:
        series: (label, samples in microseconds), each with 1 sample or more; below 0.1 us counts as 0.1 us.
        deadline_us: drawn as a line through all panels; None for no line.
        width: in CSS pixels.
        css: extra class of the picture.
    """
    arrays = [(label, np.maximum(np.asarray(samples, dtype=np.float64), 0.1)) for label, samples in series]
    smallest = min(float(samples.min()) for _, samples in arrays)
    largest = max([float(samples.max()) for _, samples in arrays] + ([deadline_us] if deadline_us else []))
    low = 10 ** (math.floor(2 * math.log10(smallest)) / 2)
    high = 10 ** (math.ceil(2 * math.log10(largest) + 0.2) / 2)
    panel, left, right, top = 140, 24, width - 24, 52
    height = len(arrays) * panel + 44

    def x(value: float) -> float:
        return left + (right - left) * math.log(value / low) / math.log(high / low)

    edges = np.geomspace(low, high, max(24, width // 10) + 1)
    body: list[str] = []
    decades = [10.0**d for d in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)]
    floor = len(arrays) * panel
    for value in decades:
        body.append(_vline("grid", x(value), 8, floor))
        body.append(
            f'<text class="tick" x="{x(value):.1f}" y="{floor + 16}" text-anchor="middle">{micros(value)}</text>'
        )
    for row, (label, samples) in enumerate(arrays):
        base = (row + 1) * panel
        shares = np.histogram(samples, edges)[0] / len(samples)
        scale = (panel - top) / max(float(shares.max()), 1e-9)
        for i, share in enumerate(shares):
            if share > 0:
                # One tick in ten thousand must still be visible.
                tall = max(float(share) * scale, 1.5)
                x0, x1 = x(float(edges[i])), x(float(edges[i + 1]))
                body.append(
                    f'<rect class="bar bar{row}" x="{x0 + 0.5:.1f}" y="{base - tall:.1f}" width="{x1 - x0 - 1:.1f}" '
                    f'height="{tall:.1f}"><title>{micros(float(edges[i]))} to {micros(float(edges[i + 1]))}: '
                    f"{percent(float(share))} of ticks</title></rect>"
                )
        body.append(_hline("base", left, right, base))
        body.append(f'<text class="panel" x="{left}" y="{base - panel + 18}">{esc(label)}</text>')
        marks = [
            Mark("p50", float(np.percentile(samples, 50))),
            Mark("p99", float(np.percentile(samples, 99))),
            Mark("max", float(samples.max())),
        ]
        shown = _spread([x(mark.value) for mark in marks], 34, left + 14, right - 14)
        for mark, at in zip(marks, shown, strict=True):
            head = base - panel + 46
            body.append(
                f'<path class="mark-line" d="M{x(mark.value):.1f} {base} V{head + 4} L{at:.1f} {head}"/>'
                f'<text class="tick" x="{at:.1f}" y="{head - 3}" text-anchor="middle">{mark.label}'
                f"<title>{micros(mark.value)}</title></text>"
            )
    if deadline_us:
        at = x(deadline_us)
        body.append(_vline("deadline", at, 8, floor))
        body.append(
            f'<text class="tick deadline-text" x="{at - 5:.1f}" y="16" text-anchor="end">period '
            f"{micros(deadline_us)}</text>"
        )
    body.append(
        f'<text class="axis" x="{width / 2:.0f}" y="{height - 6}" text-anchor="middle">time, logarithmic</text>'
    )
    return _svg(width, height, css, "Latency of the control loop", body)
