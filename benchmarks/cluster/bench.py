"""Training on Ray workers: speed of collection, overhead, learning from rollouts of an older policy, random kills.

Speed and overhead are those of whole rollouts of `mujoco/halfcheetah`, whose length is chosen so that a worker needs
20, 50 or 100 ms. Routes alternate in one process. The overhead is that of one Ray worker against the same shard in this
process; the speed-up is that of two workers, with one physics thread each, against one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.cluster import costs, kills
from benchmarks.kit.cells import EVALUATED, OUT, Cell, CellResult
from benchmarks.kit.figures import Figure, spread
from benchmarks.kit.markdown import table_head
from robotrl.fn.stats import bootstrap

DESCRIPTION = "Ray workers: speed of two against one, overhead of rollouts, learning with staleness 2, random kills"
PEERS = {"ray": "pip install -e '.[ray]'"}
TASK, LEARNED = "mujoco/halfcheetah", "mujoco/peg-insert"
MILLISECONDS = (20, 50, 100)
"""Lengths of a worker's rollout."""
SEEDS = (0, 1, 2)
STALENESS = {"sync": 0, "async-2": 2}
"""Learning cells, and their `cluster.max_staleness`."""


def cells(quick: bool) -> list[Cell]:
    """Speed, constants of the cost model, learning with and without staleness, kills; `quick` has the first two."""
    base = ("python", "-m", "benchmarks.cluster.cell")
    speed = Cell("speed", TASK, 0, (*base, "speed", "3" if quick else "21", OUT), "result.json")
    learning = [
        Cell(name, LEARNED, seed, (*base, name, str(seed), OUT), "result.json", rule=EVALUATED)
        for seed in SEEDS
        for name in STALENESS
    ]
    constants = Cell("costs", TASK, 0, (*base, "costs", "3" if quick else "21", OUT), "result.json")
    faults = [
        Cell("kills", kills.REACH, 0, (*base, "kills", "0", OUT), "result.json"),
        Cell("sweep-kill", kills.CARTPOLE, 0, (*base, "sweep-kill", "0", OUT), "result.json"),
    ]
    return [speed, constants] if quick else [speed, constants, *learning, *faults]


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Speed-up and overhead by length of rollouts; success and env steps with and without staleness."""
    figures: dict[str, Figure] = {}
    for cell in results:
        if cell["method"] == "speed":
            for length, found in cell["result"].items():
                for name, samples in found["ratios"].items():
                    middle = spread(samples)
                    figures[f"{name}_{length}ms"] = Figure(
                        middle.median, "", runs=len(samples), low=middle.low, high=middle.high, note=NOTES[name]
                    )
                speeds = spread(found["env_steps_per_s"])
                figures[f"speed_{length}ms"] = Figure(
                    speeds.median, "env steps/s", runs=len(found["env_steps_per_s"]), low=speeds.low, high=speeds.high
                )
    for cell in results:
        if cell["method"] == "costs":
            figures |= costs.figures(cell["result"])
        elif cell["method"] in ("kills", "sweep-kill"):
            figures |= kills.figures(cell["method"], cell["result"])
    for name in STALENESS:
        found = [cell["result"] for cell in results if cell["method"] == name]
        for key in ("success", "env_steps") if found else ():
            span = bootstrap(np.array([float(one[key]) for one in found]))
            figures[f"{name}_{key}"] = Figure(
                span.value, "", runs=len(found), low=span.low, high=span.high, note="interquartile mean over seeds"
            )
    return figures


NOTES = {
    "speedup": "env steps per second of two Ray workers, as a multiple of one",
    "overhead": "time of a rollout of one Ray worker, as a multiple of the same shard in this process",
}


def table(document: Mapping[str, Any]) -> str:
    """Markdown: a row for each length of rollouts, and one for each way of learning."""
    figures = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    rows = [
        f"| {length} ms | {_cells(figures, length)} |" for length in MILLISECONDS if f"speedup_{length}ms" in figures
    ]
    lines = [*table_head(("rollout", "two workers against one", "overhead", "env steps/s of two"))] if rows else []
    lines += rows
    if constants := costs.rows(figures):
        lines += ["", *table_head(("constant of the [cost model](../clusters/cost.md)", "")), *constants]
    learned = [name for name in STALENESS if f"{name}_success" in figures]
    if learned:
        lines += ["", *table_head((f"`{LEARNED}`", "success, %", "env steps", "seeds"))]
        lines += [
            f"| {name} | {100 * (figures[f'{name}_success'].value or 0):.0f} |"
            f" {figures[f'{name}_env_steps'].value or 0:,.0f} | {figures[f'{name}_success'].runs} |"
            for name in learned
        ]
    if killed := kills.rows(figures):
        lines += ["", *table_head(("processes killed at random moments", "")), *killed]
    return "\n".join(lines)


def _cells(figures: Mapping[str, Figure], length: int) -> str:
    speedup, overhead, speed = (figures[f"{name}_{length}ms"] for name in ("speedup", "overhead", "speed"))
    return " | ".join(
        (
            f"{speedup.value:.2f} ({speedup.low:.2f} to {speedup.high:.2f})",
            f"{100 * ((overhead.value or 1) - 1):+.1f} % ({100 * ((overhead.low or 1) - 1):+.1f} to"
            f" {100 * ((overhead.high or 1) - 1):+.1f})",
            f"{speed.value:,.0f}",
        )
    )
