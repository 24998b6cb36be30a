"""Violations of a contact-force limit: the same risk critic at the servo's rate, at the policy's rate, and none.

A policy at 20 Hz is cloned from the scripted expert of `mujoco/press`, a risk critic is trained beside it on the ticks
of a 200 Hz servo, and all arms drive the same held-out starts. Each rate has the threshold that has the fewest
violations on validation starts among those that keep the success of the policy alone, within `MARGIN`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.kit.cells import OUT, Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head
from robotrl.fn.stats import bootstrap

DESCRIPTION = "violations of a contact-force limit: a risk critic at the servo's rate, at the policy's rate, none"
PEERS: dict[str, str] = {}
TASK = "mujoco/press"
SEEDS = (0, 1, 2)
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
MARGIN = 0.02
"""Success that a reflex may cost on validation starts."""
ARMS = {
    "none": "no reflex",
    "policy": "critic at the policy's rate, 20 Hz",
    "policy_same": "the same, at the servo's threshold",
    "servo": "critic at the servo's rate, 200 Hz",
}
NUMBERS = ("violations", "violated", "peak", "success", "length_s", "fired", "threshold")
"""Results of an arm: violations per episode, share of episodes with one, 95th percentile of the episodes' peak force
(N), share of episodes solved, their mean length, share of ticks with the recovery, and the threshold."""


def cells(quick: bool) -> list[Cell]:
    """One cell for each seed; `quick` is the first."""
    return [
        Cell("reflex", TASK, seed, ("python", "-m", "benchmarks.reflex.cell", str(seed), OUT), "result.json")
        for seed in (SEEDS[:1] if quick else SEEDS)
    ]


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Numbers of each arm over seeds, and the servo's violations as a part of the policy rate's."""
    figures: dict[str, Figure] = {}
    if not results:
        return figures
    for arm in ARMS:
        for name in NUMBERS:
            figures[f"{arm}_{name}"] = _figure([float(one["result"][arm][name]) for one in results], name)
    for other in ("policy", "none"):
        parts = [
            float(one["result"]["servo"]["violations"]) / max(float(one["result"][other]["violations"]), 1e-9)
            for one in results
        ]
        figures[f"servo_of_{other}"] = _figure(parts, f"violations with the servo's rate over those with {other}")
    return figures


def _figure(values: Sequence[float], note: str) -> Figure:
    span = bootstrap(np.array(values))
    caption = f"{note}; interquartile mean over seeds with its 95 % bootstrap interval"
    return Figure(span.value, "", runs=len(values), low=span.low, high=span.high, note=caption)


def table(document: Mapping[str, Any]) -> str:
    """Markdown: a row for each arm."""
    figures = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    if not figures:
        return ""
    head = (
        f"`{TASK}`",
        *("violations per episode", "episodes with one, %", "peak force, p95, N", "success, %"),
        *("length, s", "recovery, % of ticks", "threshold", "seeds"),
    )
    lines = table_head(head)
    scales = (1.0, 100.0, 1.0, 100.0, 1.0, 100.0, 1.0)
    digits = (2, 1, 1, 1, 2, 1, 2)
    for arm, label in ARMS.items():
        found = [figures[f"{arm}_{name}"] for name in NUMBERS]
        texts = [_text(*one) for one in zip(found, scales, digits, strict=True)]
        lines.append(f"| {' | '.join([label, *texts])} | {found[0].runs} |")
    return "\n".join(lines)


def _text(figure: Figure, scale: float, digits: int) -> str:
    value = f"{scale * (figure.value or 0.0):.{digits}f}"
    if figure.low is None or figure.high is None or figure.runs < 2:
        return value
    return f"{value} ({scale * figure.low:.{digits}f} to {scale * figure.high:.{digits}f})"
