"""Driving scores of planners among populations of traffic, most of which they were not trained with.

A cell is one planner and seed. It is trained with moderate traffic, then drives the same starts of the split `test`,
whose road layouts are used neither in training nor in selection, once in each population.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.kit.cells import OUT, Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head
from robotrl.fn.stats import bootstrap

DESCRIPTION = "driving scores of planners among populations of traffic that they were not trained with"
PEERS: dict[str, str] = {}
SIM = "bev/drive"
SEEDS = (0, 1, 2)
TRAINED = "moderate"
"""Population that planners are trained with."""
POPULATIONS = (TRAINED, "timid", "aggressive", "erratic")
COST_TARGET, LOSS_TARGET = 5.0, 5.0
"""Points that a population costs the rule-based driver at least, and the best planner at most."""


class Planner(NamedTuple):
    """One row of the table."""

    label: str
    preset: str | None
    """Preset for training; None for the rule-based driver, which is not trained."""
    base: str | None = None
    """Clone that it starts from, by its name in this table."""


PLANNERS = {
    "driver": Planner("rule-based: IDM on the route", None),
    "ppo": Planner("PPO, Beta policy, CaRL's reward, vectors", "drive-ppo"),
    "flow": Planner("flow planner, cloned from the rule-based driver", "drive-bc-flow"),
    "diffusion": Planner("diffusion planner, cloned", "drive-bc-diffusion"),
    "reinflow": Planner("flow planner, ReinFlow", "drive-reinflow", "flow"),
    "flow-grpo": Planner("flow planner, Flow-GRPO", "drive-flow-grpo", "flow"),
    "dsrl": Planner("flow planner, DSRL", "drive-dsrl", "flow"),
    "dppo": Planner("diffusion planner, DPPO", "drive-dppo", "diffusion"),
}
CLONES = ("flow", "diffusion")
"""Planners that are cloned from recorded drives."""


def cells(quick: bool) -> list[Cell]:
    """Cells of the table; `quick` is the rule-based driver alone."""
    return [
        Cell(name, SIM, seed, ("python", "-m", "benchmarks.planner.cell", name, str(seed), OUT), "result.json")
        for seed in SEEDS
        for name, planner in PLANNERS.items()
        # without training there is no seed
        if (seed == SEEDS[0] if planner.preset is None else not quick)
    ]


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Driving score of each planner in each population, and its difference from moderate traffic."""
    figures: dict[str, Figure] = {}
    for name in dict.fromkeys(cell["method"] for cell in results):
        found = [cell["result"]["populations"] for cell in results if cell["method"] == name]
        for population in POPULATIONS:
            scores = [float(one[population]["driving"]) for one in found]
            figures[f"{name}_{population}"] = _figure(scores, "driving score, CARLA leaderboard 2.0, 0 to 100")
            if population != TRAINED:
                lost = [float(one[TRAINED]["driving"]) - score for one, score in zip(found, scores, strict=True)]
                figures[f"{name}_{population}_lost"] = _figure(lost, "points lost from moderate traffic")
    return figures


def _figure(values: Sequence[float], note: str) -> Figure:
    span = bootstrap(np.array(values))
    caption = f"{note}; interquartile mean over seeds with its 95 % bootstrap interval"
    return Figure(span.value, "score", runs=len(values), low=span.low, high=span.high, note=caption)


def table(document: Mapping[str, Any]) -> str:
    """Markdown table: a row for each planner, a column for each population."""
    figures = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    lines = table_head(("planner", *POPULATIONS, "seeds"))
    for name, planner in PLANNERS.items():
        if f"{name}_{TRAINED}" in figures:
            columns = [_text(figures[f"{name}_{population}"]) for population in POPULATIONS]
            runs = figures[f"{name}_{TRAINED}"].runs
            lines.append(f"| {planner.label} | {' | '.join(columns)} | {runs} |")
    return "\n".join(lines)


def _text(figure: Figure) -> str:
    value = f"{figure.value or 0.0:.1f}"
    # one run has no spread
    if figure.low is None or figure.high is None or figure.runs < 2:
        return value
    return f"{value} ({figure.low:.1f} to {figure.high:.1f})"
