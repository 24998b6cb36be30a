"""Improvement from a policy's own logged episodes, offline: PA-RL beside cloning the successes, and other methods.

A cell clones a base policy, records its rollouts, failures included, and improves the clone from these alone. All
policies of a cell are judged on the same 256 starts that nothing was trained or chosen on (split `test`). Here stands
one round of PA-RL; `benchmarks.improve.plan` has the other kinds of cells, and `benchmarks.improve.tables` their
tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.improve.plan import EPISODES, SEEDS, further_cells
from benchmarks.improve.tables import TABLES, further_figures
from benchmarks.kit.cells import OUT, Cell, CellResult
from benchmarks.kit.columns import column, percent, spread
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head, table_row

DESCRIPTION = "success of a clone that improves from 400 logged episodes of its own, without further env steps"
PEERS: dict[str, str] = {}
TASKS = ("peg-insert", "pick-place")
METHOD = "pa-rl"
ROLLOUTS = EPISODES
"""Logged episodes of the clone."""
ARMS = {
    "base": "the clone",
    "successes": "clone of its successes",
    "best_of": "best of 16 by the critic",
    "pa_rl": "PA-RL, one round",
}
"""Policies of a cell, with their column titles."""
DETECT = 0.1
"""Difference that a verdict is to detect."""
TARGETS = {"peg-insert": 0.88, "pick-place": 0.68}
"""Success that PA-RL is to reach after one round."""
PARTS = TABLES
"""Tables of the other kinds of cells."""


def cells(quick: bool) -> list[Cell]:
    """One round of PA-RL for each task and seed, then the cells of `benchmarks.improve.plan`; `quick` is the first."""
    found = [_cell(task, seed) for seed in SEEDS for task in TASKS]
    return found[:1] if quick else [*found, *further_cells()]


def _cell(task: str, seed: int) -> Cell:
    command = ("python", "-m", "benchmarks.improve.cell", task, str(seed), OUT)
    return Cell(METHOD, f"mujoco/{task}", seed, command, "result.json")


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """For each task: success of each policy, gains of PA-RL, held-out quality of the critic, seconds; then the rest."""
    figures: dict[str, Figure] = {}
    for task in TASKS:
        sim = f"mujoco/{task}"
        found = {arm: column(results, METHOD, sim, arm, "value") for arm in ARMS}
        if not found["pa_rl"]:
            continue
        for arm, title in ARMS.items():
            figures[f"{task}_{arm}"] = spread(found[arm], "success", title)
        for other in ("base", "successes", "best_of"):
            gain = {seed: value - found[other][seed] for seed, value in found["pa_rl"].items()}
            figures[f"{task}_over_{other}"] = spread(gain, "success", f"PA-RL less {ARMS[other]}, by seed")
        for name, unit in (("heldout_rank", "rank correlation"), ("heldout_auc", "AUC"), ("improve_s", "s")):
            if values := column(results, METHOD, sim, name):
                figures[f"{task}_{name}"] = spread(values, unit, "")
        verdicts = [
            cell["result"]["verdict"]["outcome"] for cell in results if (cell["method"], cell["task"]) == (METHOD, sim)
        ]
        better = sum(outcome == "better" for outcome in verdicts)
        note = "paired verdicts of PA-RL over the clone of successes that say better"
        figures[f"{task}_better"] = Figure(float(better), "seeds", runs=len(verdicts), note=note)
    return figures | further_figures(results)


def table(document: Mapping[str, Any]) -> str:
    """Markdown table: a row for each task."""
    found = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    head = (
        *("task", *ARMS.values(), "target", "over the clone of successes", 'verdicts "better"'),
        *("critic, held out: rank", "AUC", "time to improve"),
    )
    out = table_head(head)
    for task in TASKS:
        if f"{task}_pa_rl" not in found:
            continue
        better, seconds = found[f"{task}_better"], found.get(f"{task}_improve_s")
        cells_of_row = (
            f"`mujoco/{task}`",
            *(percent(found[f"{task}_{arm}"]) for arm in ARMS),
            f"{100 * TARGETS[task]:.0f} %",
            percent(found[f"{task}_over_successes"]),
            f"{better.value or 0:.0f} of {better.runs}",
            *(_number(found.get(f"{task}_{name}")) for name in ("heldout_rank", "heldout_auc")),
            "" if seconds is None or seconds.value is None else f"{seconds.value:.0f} s",
        )
        out.append(table_row(cells_of_row))
    return "\n".join(out) if len(out) > 2 else ""


def _number(figure: Figure | None) -> str:
    return "" if figure is None or figure.value is None else f"{figure.value:.2f}"
