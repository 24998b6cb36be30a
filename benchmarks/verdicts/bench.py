"""Verdicts on planted pairs: how often `robotrl compare --detect` errs, what it finds, how many starts it needs.

A cell has a clone of a task, driven twice on the same starts with other noise, and the scripted expert. Pairs are drawn
from these outcomes. Of a pair without a difference both sides are the clone, with other noise. Of a pair with one, the
expert drives as many starts of the better side as raise its success by ten points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.kit.cells import OUT, Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head, table_row

DESCRIPTION = "planted pairs of policies: false and found differences of `robotrl compare --detect`, and starts needed"
PEERS: dict[str, str] = {}
TASKS = ("peg-insert", "pick-place", "push")
SEEDS = (0, 1, 2)
POINTS = 10
"""The difference to detect, and the planted one."""
KINDS = {"same": "no difference", "better": "candidate better by 10 points", "worse": "candidate worse by 10 points"}
OUTCOMES = ("better", "worse", "not better", "open")
PLANS = {
    "of_plan": "mean starts over those of a fixed paired plan that knows how many starts differ",
    "of_plan_before": "mean starts over those of a fixed plan made beforehand, in which half of the starts differ",
}
FALSE_TARGET, FOUND_TARGET, STARTS_TARGET = 0.05, 0.8, 0.5


def cells(quick: bool) -> list[Cell]:
    """A cell for each task and seed; `quick` is the first."""
    found = [_cell(task, seed) for seed in SEEDS for task in TASKS]
    return found[:1] if quick else found


def _cell(task: str, seed: int) -> Cell:
    command = ("python", "-m", "benchmarks.verdicts.cell", task, str(seed), OUT)
    return Cell("verdicts", f"mujoco/{task}", seed, command, "result.json")


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Shares of the outcomes over all pairs of a task, and of all tasks; and starts over those of fixed plans."""
    found: dict[str, Figure] = {}
    for name in ("all", *TASKS):
        rows = [cell["result"] for cell in results if name == "all" or cell["task"] == f"mujoco/{name}"]
        if not rows:
            continue
        for kind in KINDS:
            for outcome in OUTCOMES:
                shares = [row["kinds"][kind]["shares"][outcome] for row in rows]
                found[f"{name}_{kind}_{outcome}"] = _over_cells(shares, f"{KINDS[kind]}: share found {outcome}")
        found[f"{name}_naive"] = _over_cells(
            [row["kinds"]["same"]["naive"] for row in rows],
            "no difference: share found better by an ordinary test that is looked at after every 32 starts",
        )
        for plan, note in PLANS.items():
            means = [_mean([row["kinds"][kind][plan] for kind in ("same", "better")]) for row in rows]
            found[f"{name}_{plan}"] = _over_cells(means, note)
        found[f"{name}_pairs"] = Figure(float(sum(row["pairs"] for row in rows)), "pairs of each kind", runs=len(rows))
        found[f"{name}_clone"] = _over_cells([row["clone"] for row in rows], "success of the clone")
        found[f"{name}_differing"] = _over_cells(
            [row["kinds"]["same"]["differing"] for row in rows], "share of the starts with other outcomes"
        )
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _over_cells(values: Sequence[float], note: str) -> Figure:
    return Figure(_mean(values), "share", runs=len(values), low=min(values), high=max(values), note=note)


def table(document: Mapping[str, Any]) -> str:
    """Markdown table: a row for each task, and one for all of them."""
    found = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    titles = ("clone, %", "starts that differ, %", "false better, %", "false worse, %", "looked at early, %")
    more = ("10 points found, %", "missed, %", "starts, % of a plan", "of a plan made before", "pairs of each kind")
    out = table_head(("planted pairs", *titles, *more))
    columns = (
        *("clone", "differing", "same_better", "same_worse", "naive"),
        *("better_better", "better_not better", "of_plan", "of_plan_before"),
    )
    for name in (*TASKS, "all"):
        if f"{name}_pairs" not in found:
            continue
        pairs = found[f"{name}_pairs"].value or 0.0
        cells_of_row = [_percent(found[f"{name}_{column}"]) for column in columns]
        out.append(table_row((name if name == "all" else f"`mujoco/{name}`", *cells_of_row, f"{pairs:,.0f}")))
    return "\n".join(out) if len(out) > 2 else ""


def _percent(figure: Figure) -> str:
    low, high = figure.low or 0.0, figure.high or 0.0
    spread = f" ({100 * low:.1f} to {100 * high:.1f})" if figure.runs > 1 else ""
    return f"{100 * (figure.value or 0.0):.1f}{spread}"
