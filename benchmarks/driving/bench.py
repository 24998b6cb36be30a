"""Comparison of driving planners, and CaRL's study of minibatch sizes, evaluated on unseen maps.

A planner is trained with a seed and evaluated on starts of the split `test`, whose road layouts are used neither in
training nor in selection, by the formulas of the CARLA leaderboard; the table includes the rule-based driver and a
clone of it. The study trains with CaRL's simple reward and with Roach's shaped one at three minibatch sizes (Jaeger et
al. 2025, section 4: larger ones favor the simple reward and harm the shaped one).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.kit.cells import OUT, Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head
from robotrl.fn.stats import bootstrap

DESCRIPTION = "driving scores of planners on unseen maps, and what the minibatch does to two rewards; three seeds each"
PEERS: dict[str, str] = {}
SIM = "bev/drive"
SEEDS = (0, 1, 2)
RC_TARGET, DS_TARGET = 0.95, 75.0
MINIBATCHES = (256, 2048, 16384)
REWARDS = ("carl", "roach")
STUDY_STEPS = 5_000_000
REVISION = 2
"""Of the cells: 1 were scored before the speed term compared with traffic that the ego meets, in an earlier world."""


class Planner(NamedTuple):
    """One row of the table."""

    label: str
    preset: str | None
    """Preset for training; None for the rule-based driver, which is not trained."""


PLANNERS = {
    "planner": Planner("PPO, Beta policy, CaRL's reward, vectors", "drive-ppo"),
    "planner_raster": Planner("the same, raster with a CNN", "drive-ppo-raster"),
    "driver": Planner("rule-based: IDM on the route", None),
    "clone": Planner(
        "clone of the rule-based driver, vectors",
        "--sim bev/drive --sim.polylines 0 --algo bc --algo.updates 6000 --policy gaussian --policy.hidden 256 256",
    ),
}


def study_name(reward: str, minibatch: int) -> str:
    """Method name of a cell of the study."""
    return f"{reward}_{minibatch}"


def cells(quick: bool) -> list[Cell]:
    """Cells of the table, planners first; `quick` is seed 0 of the planner and of the rule-based driver."""
    names = [*PLANNERS, *(study_name(reward, size) for size in MINIBATCHES for reward in REWARDS)]
    if quick:
        names = ["planner", "driver"]
    return [
        Cell(
            name,
            SIM,
            seed,
            ("python", "-m", "benchmarks.driving.cell", name, str(seed), OUT),
            "result.json",
            revision=REVISION,
        )
        for seed in (SEEDS[:1] if quick else SEEDS)
        for name in names
        # without training there is no seed
        if seed == SEEDS[0] or name not in PLANNERS or PLANNERS[name].preset is not None
    ]


# from cells to figures

MEASURES = (
    ("completion", "share of the route", "mean route completion, 0 to 1"),
    ("driving", "score", "mean driving score, CARLA leaderboard 2.0, 0 to 100"),
    ("driving_map_speed", "score", "the same, speeds over those of all cars on the map, as it was before"),
    ("driving_2_1", "score", "mean driving score, CARLA leaderboard 2.1, 0 to 100"),
    ("success", "share of the routes", "driven to the end without an infraction"),
    ("strict_success", "share of the routes", "and never more slowly than the traffic"),
    ("train_s", "s", "training, compiling included"),
    ("env_steps_per_s", "env steps/s", "of training, end to end"),
)


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Scores of each method over the seeds, with intervals."""
    figures: dict[str, Figure] = {}
    for name in dict.fromkeys(cell["method"] for cell in results):
        for measure, unit, note in MEASURES:
            values = [
                float(cell["result"][measure])
                for cell in results
                if cell["method"] == name and cell["result"].get(measure) is not None
            ]
            if values:
                span = bootstrap(np.array(values))
                caption = f"{note}; interquartile mean over seeds with its 95 % bootstrap interval"
                figures[f"{name}_{measure}"] = Figure(
                    span.value, unit, runs=len(values), low=span.low, high=span.high, note=caption
                )
    return figures


def table(document: Mapping[str, Any]) -> str:
    """Markdown tables: the planners, then the study."""
    figures = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    lines = [
        "| planner | route completion | driving score (2.0) | score (2.1) | success | strict | trained in | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, planner in PLANNERS.items():
        if f"{name}_driving" in figures:
            lines.append(_row(figures, name, planner.label))
    study = [
        _study_row(figures, list(document["cells"].values()), reward, measure, label, scale)
        for measure, label, scale in (("driving", "driving score (2.0)", 1.0), ("completion", "completion, %", 100.0))
        for reward in REWARDS
        if any(f"{study_name(reward, m)}_driving" in figures for m in MINIBATCHES)
    ]
    if study:
        head = ("reward, 5 million samples", *(f"minibatch {size:,}" for size in MINIBATCHES), "largest less smallest")
        lines += ["", *table_head(head), *study]
    return "\n".join(lines)


def _row(figures: Mapping[str, Figure], name: str, label: str) -> str:
    def span(measure: str, scale: float, digits: int) -> str:
        figure = figures.get(f"{name}_{measure}")
        return "-" if figure is None else _span(figure, scale, digits)

    trained = figures.get(f"{name}_train_s")
    minutes = "-" if trained is None or trained.value is None else f"{trained.value / 60:.0f} min"
    return (
        f"| {label} | {span('completion', 100, 1)} % | {span('driving', 1, 1)} | {span('driving_2_1', 1, 1)} |"
        f" {span('success', 100, 0)} % | {span('strict_success', 100, 0)} % |"
        f" {minutes} | {figures[f'{name}_driving'].runs} |"
    )


def _study_row(
    figures: Mapping[str, Figure], results: Sequence[CellResult], reward: str, measure: str, label: str, scale: float
) -> str:
    found = [figures.get(f"{study_name(reward, size)}_{measure}") for size in MINIBATCHES]
    texts = ["-" if f is None else _span(f, scale, 1) for f in found]
    change = trend(results, reward, measure)
    texts.append("-" if change is None else f"{change * scale:+.1f}")
    return f"| {reward}, {label} | " + " | ".join(texts) + " |"


def _span(figure: Figure, scale: float, digits: int) -> str:
    value = f"{(figure.value or 0.0) * scale:.{digits}f}"
    # one run has no spread
    if figure.low is None or figure.high is None or figure.runs < 2:
        return value
    return f"{value} ({figure.low * scale:.{digits}f} to {figure.high * scale:.{digits}f})"


def trend(results: Sequence[CellResult], reward: str, measure: str) -> float | None:
    """Mean of a measure at the largest minibatch minus that at the smallest; None if cells are missing."""
    ends = [
        [float(c["result"][measure]) for c in results if c["method"] == study_name(reward, size)]
        for size in (MINIBATCHES[0], MINIBATCHES[-1])
    ]
    return statistics.fmean(ends[1]) - statistics.fmean(ends[0]) if all(ends) else None
