"""Formatting of numbers and text on the page."""

from __future__ import annotations

import html
import math


def esc(text: object) -> str:
    """Escape text for HTML and quoted attributes."""
    return html.escape(str(text), quote=True)


def percent(rate: float) -> str:
    """A rate as a percentage with one decimal: 0.984 is "98.4 %"; exactly 0 and 1 are "0 %" and "100 %"."""
    return f"{100 * rate:.0f} %" if rate in (0, 1) else f"{100 * rate:.1f} %"


def micros(value: float) -> str:
    """Microseconds in the most readable unit: "85 µs", "1.2 ms", "3 s"."""
    if value >= 1e6:
        return f"{value / 1e6:.3g} s"
    if value >= 1e3:
        return f"{value / 1e3:.3g} ms"
    return f"{value:.3g} µs" if value < 100 else f"{value:.0f} µs"


def seconds(value: float) -> str:
    """Seconds as "8.4 s", "4 min 05 s" or "1 h 12 min"."""
    if value < 60:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count(value: float) -> str:
    """A count as "950", "12.5 k" or "1.25 M"."""
    for size, suffix in ((1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:g}"


def number(value: float) -> str:
    """A figure of any size with its significant digits: "0.981", "63.2", "1,204"."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def small(value: float) -> str:
    """A small number such as an error: "3.1e-07"; zero is "0"."""
    return "0" if value == 0 else f"{value:.2g}" if math.isfinite(value) else str(value)
