"""Driving scores of planners among populations of traffic, most of which they were not trained with; parts of PerlAD.

A cell is one planner and seed. It is trained with moderate traffic, then drives the same starts of the split `test`,
whose road layouts are used neither in training nor in selection, once in each population. Cells of PerlAD's ablation
are trained on a log of the rule-based driver, and drive the first of those starts in moderate traffic.
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
POPULATIONS = (TRAINED, "timid", "aggressive", "erratic", "cloned", "rift", "self-play")
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

ABLATION_EPISODES = 192
"""Test episodes of a cell of the ablation: 16 starts of each scenario."""
LOGGED = 192
"""Starts of the split `train` that the rule-based driver drives for the log."""


class Arm(NamedTuple):
    """One row of PerlAD's ablation."""

    label: str
    algo: Mapping[str, Any]
    """Settings that differ from the default of `PerladCfg`."""
    policy: Mapping[str, Any]
    """Settings that differ from the policy of the bench."""


REVISION = 2
"""Of the cells: 1 were driven before cars kept behind those who turn off, and before `self-play` and `cloned`."""
UPDATES = 5000
"""Updates of the policy in each arm."""
ARMS = {
    "perlad-il": Arm("paths and speeds by imitation", {"imitation_updates": UPDATES, "updates": 0}, {}),
    "perlad-rl": Arm("+ speeds by reinforcement", {"predicted": 0.0}, {"aligned": False}),
    "perlad-aligned": Arm("+ speeds for the path that is driven", {"predicted": 0.0}, {}),
    "perlad": Arm("+ road users that react, in the last third", {}, {}),
}
"""Each arm has all that the arms before it have."""
ABLATED = {
    "driving": "driving score, CARLA leaderboard 2.0, 0 to 100",
    "completion": "fraction of the routes that was driven",
    "success": "fraction of routes that were completed without an event",
    "collisions": "collisions",
}
"""Numbers of an arm, and what they are."""


def cells(quick: bool) -> list[Cell]:
    """Cells of both tables; `quick` is the rule-based driver alone."""
    planners = [
        Cell(
            name, SIM, seed, ("python", "-m", "benchmarks.planner.cell", name, str(seed), OUT), "result.json", REVISION
        )
        for seed in SEEDS
        for name, planner in PLANNERS.items()
        # without training there is no seed
        if (seed == SEEDS[0] if planner.preset is None else not quick)
    ]
    arms = [
        Cell(
            name,
            SIM,
            seed,
            ("python", "-m", "benchmarks.planner.perlad_cell", name, str(seed), OUT),
            "result.json",
            REVISION,
        )
        for seed in SEEDS
        for name in ARMS
    ]
    return planners if quick else planners + arms


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Driving score of each planner in each population, and its difference from moderate traffic; scores of arms."""
    figures: dict[str, Figure] = {}
    for name in dict.fromkeys(cell["method"] for cell in results):
        if name in ARMS:
            found = [cell["result"] for cell in results if cell["method"] == name]
            for key, note in ABLATED.items():
                figures[f"{name}_{key}"] = _figure([float(one[key]) for one in found], note)
            continue
        found = [cell["result"]["populations"] for cell in results if cell["method"] == name]
        for population in POPULATIONS:
            # older cells have fewer populations
            driven = [one for one in found if population in one]
            if not driven:
                continue
            scores = [float(one[population]["driving"]) for one in driven]
            figures[f"{name}_{population}"] = _figure(scores, "driving score, CARLA leaderboard 2.0, 0 to 100")
            if population != TRAINED:
                lost = [float(one[TRAINED]["driving"]) - score for one, score in zip(driven, scores, strict=True)]
                figures[f"{name}_{population}_lost"] = _figure(lost, "points lost from moderate traffic")
    return figures


def _figure(values: Sequence[float], note: str) -> Figure:
    span = bootstrap(np.array(values))
    caption = f"{note}; interquartile mean over seeds with its 95 % bootstrap interval"
    return Figure(span.value, "score", runs=len(values), low=span.low, high=span.high, note=caption)


def table(document: Mapping[str, Any]) -> str:
    """Markdown tables: a row for each planner, a column for each population; a row for each arm of PerlAD."""
    figures = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    # older documents have fewer populations
    driven = [one for one in POPULATIONS if any(f"{name}_{one}" in figures for name in PLANNERS)]
    lines = table_head(("planner", *driven, "seeds"))
    for name, planner in PLANNERS.items():
        if f"{name}_{TRAINED}" in figures:
            found = [figures.get(f"{name}_{population}") for population in driven]
            columns = ["-" if figure is None else _text(figure) for figure in found]
            runs = figures[f"{name}_{TRAINED}"].runs
            lines.append(f"| {planner.label} | {' | '.join(columns)} | {runs} |")
    arms = [name for name in ARMS if f"{name}_driving" in figures]
    if arms:
        lines += ["", *table_head(("PerlAD", "driving score", "completion, %", "success, %", "collisions", "seeds"))]
    for name in arms:
        shares = (_text(figures[f"{name}_{key}"], scale) for key, scale in zip(ABLATED, (1, 100, 100, 1), strict=True))
        lines.append(f"| {ARMS[name].label} | {' | '.join(shares)} | {figures[f'{name}_driving'].runs} |")
    return "\n".join(lines)


def _text(figure: Figure, scale: float = 1.0) -> str:
    value = f"{scale * (figure.value or 0.0):.1f}"
    # one run has no spread
    if figure.low is None or figure.high is None or figure.runs < 2:
        return value
    return f"{value} ({scale * figure.low:.1f} to {scale * figure.high:.1f})"
