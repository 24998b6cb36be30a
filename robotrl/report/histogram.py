"""Histograms of episode results as inline SVG, in the colors of the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.report.text import count, esc, number

BINS = 20
"""Approximate number of bins; their width is round."""
ALIKE = 1e-6
"""Relative spread below which values count as equal: labels have six digits."""
SMALLEST = 1e-300
"""Values closer to zero than this count as zero."""
HEIGHT = 210
LEFT, RIGHT, TOP, BOTTOM = 40, 14, 30, 44
"""Margins around the bars, for the axes and their labels."""


class ValueGroup(NamedTuple):
    """Values drawn in one color."""

    label: str
    """Legend label; empty for a single group."""
    css: str
    """CSS class of its bars."""
    values: NDArray[np.float64]


class Bins(NamedTuple):
    """Equally wide bins."""

    low: float
    width: float
    number: int

    def counts(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        """(number,) counts of the values per bin; rounding does not drop any value."""
        place = np.floor((values - self.low) / self.width).clip(0, self.number - 1).astype(np.int64)
        return np.bincount(place, minlength=self.number)


def bins_of(values: NDArray[np.float64], whole: bool) -> Bins:
    """Bins of a round width that contain all values.

    Args:
        values: (n,) finite values, one or more.
        whole: whether they are integers: bins are then at least 1 wide and centered on integers.
    """
    low, high = float(values.min()), float(values.max())
    size = max(abs(low), abs(high))
    if size < SMALLEST:
        # values this close cannot be distinguished in labels of six digits
        low = high = size = 0.0
    span = high - low
    if span <= ALIKE * size:
        # all values are equal: one bin around them, as wide as the distinguishable difference
        span = BINS * 10 ** math.floor(math.log10(size or 1.0) - 2)
    width = _round(span / BINS)
    if whole:
        width = max(math.ceil(width), 1)
    start = math.floor(low / width) * width - (0.5 if whole else 0.0)
    # rounding may put the start above a single value
    return Bins(start, width, max(math.floor((high - start) / width), 0) + 1)


class _Plot(NamedTuple):
    """Mapping of values and counts to positions in the chart."""

    first: float
    last: float
    most: int
    right: int

    floor = HEIGHT - BOTTOM

    def x(self, value: float) -> float:
        return LEFT + (self.right - LEFT) * (value - self.first) / (self.last - self.first)

    def y(self, count: float) -> float:
        return self.floor - (self.floor - TOP) * count / self.most


def histogram(groups: Sequence[ValueGroup], axis: str, width: int, css: str, whole: bool = False) -> str:
    """Stacked histogram of episode results, with the mean of all values marked.

    Args:
        groups: groups with one or more values in total; the first is at the bottom.
        axis: label of the horizontal axis, with its unit.
        width: in CSS pixels; the chart scales, but its text is legible at this width.
        css: extra CSS class of the chart.
        whole: see `bins_of`.
    """
    everything = np.concatenate([group.values for group in groups])
    bins = bins_of(everything, whole)
    counts = [bins.counts(group.values) for group in groups]
    # a single bar as wide as the chart would look like a frame
    spare = max(5 - bins.number, 0) / 2 * bins.width
    most = int(np.sum(counts, axis=0).max())
    plot = _Plot(bins.low - spare, bins.low + bins.number * bins.width + spare, most, width - RIGHT)
    body = [_level(plot, count) for count in ticks(0, most, 4, whole=True)]
    base = np.zeros(bins.number, np.int64)
    for group, heights in zip(groups, counts, strict=True):
        body += [
            _bar(plot, bins, k, int(base[k]), group, int(heights[k]), whole) for k in range(bins.number) if heights[k]
        ]
        base += heights
    body.append(f'<line class="base" x1="{LEFT}" x2="{plot.right}" y1="{plot.floor}" y2="{plot.floor}"/>')
    for value in ticks(plot.first, plot.last, 4 if width < 400 else 6, whole):
        body.append(_text("tick", plot.x(value), plot.floor + 17, short(value)))
    body.append(_mean(plot, float(everything.mean())))
    body.append(_text("axis", (LEFT + plot.right) / 2, HEIGHT - 6, axis))
    middle = (TOP + plot.floor) / 2
    body.append(
        f'<text class="axis" x="12" y="{middle:g}" text-anchor="middle" transform="rotate(-90 12 {middle:g})">'
        "episodes</text>"
    )
    return (
        f'<svg class="chart {css}" viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{esc(axis)}">'
        + "".join(body)
        + "</svg>"
    )


def _level(plot: _Plot, count: float) -> str:
    y = plot.y(count)
    return (
        f'<line class="grid" x1="{LEFT}" x2="{plot.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{count:g}</text>'
    )


def _bar(plot: _Plot, bins: Bins, k: int, below: int, group: ValueGroup, height: int, whole: bool) -> str:
    low, high = bins.low + k * bins.width, bins.low + (k + 1) * bins.width
    left, right, top = plot.x(low) + 0.5, plot.x(high) - 0.5, plot.y(below + height)
    span = f"{low + 0.5:.0f} to {high - 0.5:.0f}" if whole else f"{short(low)} to {short(high)}"
    if whole and bins.width == 1:
        span = f"{low + 0.5:.0f}"
    tooltip = f"{span}: {height} {'episode' if height == 1 else 'episodes'}{group.label and f', {group.label}'}"
    return (
        f'<rect class="{group.css}" x="{left:.1f}" y="{top:.1f}" width="{max(right - left, 1):.1f}"'
        f' height="{plot.y(below) - top:.1f}"><title>{esc(tooltip)}</title></rect>'
    )


def _mean(plot: _Plot, value: float) -> str:
    x = plot.x(value)
    anchor = "start" if x < LEFT + 60 else "end" if x > plot.right - 60 else "middle"
    return f'<line class="middle" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{plot.floor}"/>' + _text(
        "tick", x, TOP - 13, f"mean {number(value)}", anchor
    )


def _text(css: str, x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.0f}" text-anchor="{anchor}">{esc(text)}</text>'


def ticks(low: float, high: float, about: int, whole: bool = False) -> list[float]:
    """Round tick values within `low` to `high`, `about` that many; integers if `whole`."""
    step = _round((high - low) / about)
    if whole:
        step = max(math.ceil(step), 1)
    return [step * k for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """Short text of a round number for an axis: "0.05", "500", "12 k"."""
    return count(value) if abs(value) >= 10_000 else f"{value:.6g}"


def _round(raw: float) -> float:
    """Round up to 1, 2, 2.5 or 5 times a power of ten."""
    size = 10.0 ** math.floor(math.log10(raw))
    return next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw * (1 - 1e-9))
