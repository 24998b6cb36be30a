"""Traces of one action element along an episode as inline SVG, with limits and chunk seams marked."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from robotrl.report.histogram import short, ticks
from robotrl.report.text import esc

_TOP, _BOTTOM, _SEAM = 12, 32, 6


class ActionTrace(NamedTuple):
    """One action element along an episode of n ticks."""

    label: str
    time_s: np.ndarray
    """(n,) time of each tick, from the start of the episode."""
    policy: np.ndarray
    """(n,) action of the policy; NaN for none."""
    sent: np.ndarray
    """(n,) action that was sent."""
    measured: np.ndarray | None
    """(n,) measured counterpart in the action's unit; None for none."""
    seams_s: np.ndarray
    """Times at which a new chunk takes over."""
    off_s: list[tuple[float, float]]
    """Spans in which the policy's action was not used."""
    low: float
    high: float


def trace_range(trace: ActionTrace) -> tuple[float, float]:
    """Lowest and highest value of the vertical axis: those of the lines, and a limit that is near them."""
    lines = [trace.policy, trace.sent, *(() if trace.measured is None else (trace.measured,))]
    values = np.concatenate(lines)
    values = values[np.isfinite(values)]
    low, high = float(values.min()), float(values.max())
    span = high - low
    for limit in (trace.low, trace.high):
        if low - 0.25 * span <= limit <= high + 0.25 * span:
            low, high = min(low, limit), max(high, limit)
    spare = 0.06 * (high - low) or max(abs(high), 1.0) * 0.05
    return low - spare, high + spare


def action_trace(trace: ActionTrace, width: int, css: str) -> str:
    """Draw a trace.

    Args:
        trace: the trace.
        width: in CSS pixels; the chart scales, but its text is legible at this width.
        css: extra CSS class of the chart.
    """
    height, left, right = 150, 52, width - 12
    floor = height - _BOTTOM
    low, high = trace_range(trace)
    seconds = float(trace.time_s[-1]) or 1.0

    def x(at_s: float) -> float:
        return left + (right - left) * at_s / seconds

    def y(value: float) -> float:
        return floor - (floor - _TOP) * (min(max(value, low), high) - low) / (high - low)

    body: list[str] = []
    for value in ticks(low, high, 3):
        body.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        body.append(
            f'<text class="tick" x="{left - 7}" y="{y(value) + 4:.1f}" text-anchor="end">{esc(short(value))}</text>'
        )
    for value in ticks(0.0, seconds, 4 if width < 560 else 8):
        body.append(
            f'<text class="tick" x="{x(value):.1f}" y="{floor + 18}" text-anchor="middle">{esc(short(value))} s</text>'
        )
    for first, end in trace.off_s:
        wide = max(x(min(end, seconds)) - x(first), 2.0)
        body.append(f'<rect class="off" x="{x(first):.1f}" y="{_TOP}" width="{wide:.1f}" height="{floor - _TOP}"/>')
    for limit in (trace.low, trace.high):
        if low <= limit <= high:
            body.append(f'<line class="limit" x1="{left}" x2="{right}" y1="{y(limit):.1f}" y2="{y(limit):.1f}"/>')
    body += [
        f'<line class="seam" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{floor}" y2="{floor - _SEAM}"/>'
        for at in trace.seams_s.tolist()
    ]
    body.append(f'<line class="base" x1="{left}" x2="{right}" y1="{floor}" y2="{floor}"/>')
    # the sent action covers the policy's where they are equal
    lines = (("measured", trace.measured), ("policy", trace.policy), ("sent", trace.sent))
    for name, values in lines:
        if values is not None:
            body += [
                f'<polyline class="trace {name}" points="{points}"/>'
                for points in _pieces([(x(t), y(v)) for t, v in zip(trace.time_s, values, strict=True)], values)
            ]
    return (
        f'<svg class="chart {css}" viewBox="0 0 {width} {height}" role="img" aria-label="{esc(trace.label)}">'
        + "".join(body)
        + "</svg>"
    )


def _pieces(points: list[tuple[float, float]], values: np.ndarray) -> list[str]:
    """Point lists of a line that is interrupted where there is no finite value."""
    finite = np.isfinite(values)
    cuts = np.flatnonzero(np.diff(finite)) + 1
    parts = np.split(np.arange(len(values)), cuts)
    return [" ".join(f"{points[i][0]:.1f},{points[i][1]:.1f}" for i in part) for part in parts if finite[part[0]]]
