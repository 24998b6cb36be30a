"""Success of cloned policies whose actions are executed late, by how their chunks are joined.

Two clones of a task and seed learn from the same demonstrations: a plain one, and one that knows its committed actions
(real-time chunking in training). Both give chunks of 16 actions. Each is driven on held-out starts with a delay of 0 to
8 control periods. The plain one is joined in four ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.kit.cells import OUT, Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head
from robotrl.fn.stats import bootstrap

DESCRIPTION = "success of cloned policies whose actions are executed late: plain, averaged, guided, trained for it"
PEERS: dict[str, str] = {}
TASKS = {"mujoco/push": 0.1, "mujoco/pick-place": 0.15, "mujoco/peg-insert": 0.25}
"""Tasks, and the noise of the demonstrator's actions, as of the bench `finetune`. A clone of demonstrations without any
is lost once it is off the demonstrated way: it succeeds too rarely to lose anything by a delay."""
REVISION = 1
"""Of the cells: 0 had demonstrations without noise."""
SEEDS = (0, 1, 2)
HORIZON, OVERLAP = 16, 8
DELAYS = (0, 1, 2, 4, 6, 8)
"""Control periods from an observation to the first action that is decided on it."""
ARMS = {
    "late": "plain: whole chunks, late",
    "aligned": "plain: each action at its time, 8 of 16",
    "averaged": "averaged where chunks overlap",
    "guided": "guided real-time chunking",
    "trained": "real-time chunking in training",
}
CLONES = {"plain": ("late", "aligned", "averaged", "guided"), "trained": ("trained",)}
"""Cells of a task and seed, and the ways in which their clone is driven."""


def cells(quick: bool) -> list[Cell]:
    """Two clones of each task and seed; `quick` is one seed of the first task."""
    return [
        Cell(
            clone,
            task,
            seed,
            ("python", "-m", "benchmarks.delay.cell", clone, task, str(seed), OUT),
            "result.json",
            revision=REVISION,
        )
        for seed in (SEEDS[:1] if quick else SEEDS)
        for task in (list(TASKS)[:1] if quick else TASKS)
        for clone in CLONES
    ]


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Success by task, arm and delay, its loss to the arm's own success without delay, and jumps at the seams."""
    figures: dict[str, Figure] = {}
    for task in dict.fromkeys(cell["task"] for cell in results):
        for arm in ARMS:
            found = [c["result"][arm] for c in results if c["task"] == task and arm in c["result"]]
            if not found:
                continue
            name = f"{task.split('/')[-1]}_{arm}"
            for delay in DELAYS:
                shares = [float(one[str(delay)]["success"]) for one in found]
                figures[f"{name}_{delay}"] = _figure(shares, "share of held-out starts")
            for key in ("seam", "inside"):
                values = [float(one[str(DELAYS[-1])][key]) for one in found]
                figures[f"{name}_{key}"] = _figure(values, "change of an action, of its range, at the longest delay")
    return figures


def _figure(values: Sequence[float], note: str) -> Figure:
    span = bootstrap(np.array(values))
    caption = f"{note}; interquartile mean over seeds with its 95 % bootstrap interval"
    return Figure(span.value, "", runs=len(values), low=span.low, high=span.high, note=caption)


def table(document: Mapping[str, Any]) -> str:
    """Markdown: one table for each task, a row for each arm, a column for each delay."""
    figures = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    lines: list[str] = []
    for task in TASKS:
        name = task.split("/")[-1]
        rows = [arm for arm in ARMS if f"{name}_{arm}_0" in figures]
        if not rows:
            continue
        head = (f"`{task}`: success, %", *(f"delay {delay}" for delay in DELAYS), "seams, p95", "inside, p99", "seeds")
        lines += ["", *table_head(head)] if lines else table_head(head)
        for arm in rows:
            shares = [_text(figures[f"{name}_{arm}_{delay}"], 100, 0) for delay in DELAYS]
            jumps = [_text(figures[f"{name}_{arm}_{key}"], 1, 2) for key in ("seam", "inside")]
            lines.append(f"| {' | '.join([ARMS[arm], *shares, *jumps])} | {figures[f'{name}_{arm}_0'].runs} |")
    return "\n".join(lines)


def _text(figure: Figure, scale: float, digits: int) -> str:
    value = f"{scale * (figure.value or 0.0):.{digits}f}"
    if figure.low is None or figure.high is None or figure.runs < 2:
        return value
    return f"{value} ({scale * figure.low:.{digits}f} to {scale * figure.high:.{digits}f})"
