"""Learning curves as SVG: success against cost, a bold line per method and a thin one per seed."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6bb1", "#7f7f7f")
"""Color-blind-safe colors (Okabe and Ito 2008, and two more)."""
MARKERS = "os^vDPX*h"
PANEL_IN = (4.6, 3.4)
"""Width and height of a panel, inches."""

LEGEND_ROW_IN, LEGEND_COLUMNS = 0.22, 3
LETTER_IN, HANDLE_IN = 0.056, 0.55
"""Widths of a legend letter, and of a legend line with its gaps, inches."""
BESIDE = "the other methods"

Curve = Sequence[tuple[float, float]]
"""Points (cost, success from 0 to 1), in order of cost."""


class Panel(NamedTuple):
    """One pair of axes."""

    title: str
    cost: str
    """Label of the cost axis, with its unit."""
    lines: Mapping[str, Sequence[Curve]]
    """Method label to its curves, one per seed."""
    starts: int
    """Held-out starts of each evaluation."""
    base: float | None
    """Initial success of the methods, drawn as a dotted line."""
    beside: Sequence[Sequence[Curve]] = ()
    """Background curves of other methods: a faint gray line with the mean of each."""


def by_cost(
    title: str,
    curves: Mapping[str, Sequence[Sequence[Mapping[str, float]]]],
    time: str,
    starts: int,
    base: float | None = None,
) -> list[Panel]:
    """Two panels of the same runs: success against env steps, and against training time.

    Args:
        title: title of both panels.
        curves: method label to its runs' evaluations, each with "env_steps", "train_s" and "success".
        time: label of the time axis.
        starts: see `Panel`.
        base: see `Panel`.
    """
    return [
        Panel(
            title,
            cost,
            {label: [[(p[axis], p["success"]) for p in curve] for curve in found] for label, found in curves.items()},
            starts,
            base,
        )
        for axis, cost in (("env_steps", "env steps"), ("train_s", time))
    ]


def mean_curve(curves: Sequence[Curve]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean of several curves over their common range, with linear interpolation.

    Args:
        curves: one or more, none empty.
    """
    first = max(curve[0][0] for curve in curves)
    last = min(curve[-1][0] for curve in curves)
    x = np.unique([cost for curve in curves for cost, _ in curve if first <= cost <= last])
    each = [np.interp(x, *np.array(curve, np.float64).T) for curve in curves]
    return x, np.mean(each, axis=0)


def svg(panels: Sequence[Sequence[Panel]]) -> bytes:
    """Rows of panels as an SVG file; the same numbers give the same bytes.

    Args:
        panels: rows of equal length.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    every = [panel for row in panels for panel in row]
    labels = list(dict.fromkeys(label for panel in every for label in panel.lines))
    legend = [*labels, BESIDE] if any(panel.beside for panel in every) else labels
    # without a fixed salt the file's ids are random
    with mpl.rc_context({"svg.hashsalt": "robotrl", "svg.fonttype": "none", "font.family": "sans-serif"}):
        width, height = PANEL_IN
        columns = len(panels[0])
        beside = legend_columns(legend, width * columns)
        below = LEGEND_ROW_IN * math.ceil(len(legend) / beside)
        figure = Figure(figsize=(width * columns, height * len(panels) + below))
        axes: Any = figure.subplots(len(panels), columns, squeeze=False)
        for row, row_axes in zip(panels, axes, strict=True):
            for panel, one in zip(row, row_axes, strict=True):
                _draw(one, panel, labels)
        handles = {
            label: line for one in axes.flat for line, label in zip(*one.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            [handles[label] for label in legend],
            legend,
            loc="lower center",
            ncols=beside,
            frameon=False,
            fontsize=8,
        )
        figure.tight_layout(rect=(0, below / figure.get_figheight(), 1, 1))
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def legend_columns(labels: Sequence[str], width_in: float) -> int:
    """Number of legend labels per row, by the longest label; at least one."""
    widest = HANDLE_IN + LETTER_IN * max(map(len, labels), default=0)
    return max(1, min(LEGEND_COLUMNS, int(width_in / widest)))


def _short(value: float, _: int) -> str:
    return next((f"{value / size:g}{name}" for size, name in ((1e6, "M"), (1e3, "k")) if value >= size), f"{value:g}")


def _draw(axes: Any, panel: Panel, labels: Sequence[str]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for curves in panel.beside:
        axes.plot(*mean_curve(curves), color="#bbbbbb", linewidth=1, label=BESIDE)
    for label, curves in panel.lines.items():
        again, place = divmod(labels.index(label), len(COLORS))
        line_color = COLORS[place]
        for curve in curves:
            axes.plot(*np.array(curve, np.float64).T, color=line_color, alpha=0.3, linewidth=0.8)
        x, y = mean_curve(curves)
        bold = {"color": line_color, "linewidth": 2, "linestyle": ("-", "--")[again % 2]}
        axes.plot(x, y, marker=MARKERS[place], markersize=4, markevery=0.15, label=label, **bold)
    if panel.base is not None:
        axes.axhline(panel.base, color="#555555", linestyle=":", linewidth=1.2)
        axes.text(0.99, panel.base + 0.01, "clone", transform=axes.get_yaxis_transform(), ha="right", fontsize=8)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(0, 1.02)
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.cost, fontsize=9)
    axes.set_ylabel(f"success, {panel.starts} held-out starts", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
