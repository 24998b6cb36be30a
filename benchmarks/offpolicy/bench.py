"""Off-policy learning against Stable-Baselines3's SAC: updates per second, and returns at equal updates.

One cell measures speed (`benchmarks.offpolicy.speed`); the others train one seed each (`benchmarks.offpolicy.learn`),
evaluated as in bench `locomotion`. FQL learns offline from episodes of our SAC, with as many updates.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.kit.cells import OUT, Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head, table_row
from benchmarks.locomotion.bench import compare
from benchmarks.offpolicy.learn import FQL, OURS, PEER, UPDATES
from benchmarks.offpolicy.methods import TASK
from benchmarks.runner import number
from robotrl.fn.stats import bootstrap
from robotrl.utils.installation import install_line

DESCRIPTION = "updates per second of SAC and RLPD, and return after 30,000 updates, beside Stable-Baselines3's SAC"
PEERS = {"stable_baselines3": install_line("sb3")}
SPEED = "speed"
SEEDS = tuple(range(5))
FQL_SEEDS = SEEDS[:3]


def cells(quick: bool) -> list[Cell]:
    """Cells of the table: the speed, and each method on each seed; `quick` is seed 0 only."""
    command = ("python", "-m", "benchmarks.offpolicy.speed", OUT)
    table = [Cell(SPEED, TASK, 0, command, "result.json")]
    for method, seeds in ((PEER, SEEDS), (OURS, SEEDS), (FQL, FQL_SEEDS)):
        for seed in seeds[:1] if quick else seeds:
            words = ("python", "-m", "benchmarks.offpolicy.learn", method, TASK, str(seed), OUT)
            table.append(Cell(method, TASK, seed, words, "result.json"))
    return table


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Figures of the speed cell, and interquartile means of the returns with their intervals."""
    figures: dict[str, Figure] = {}
    for cell in results:
        if cell["method"] == SPEED:
            figures |= {key: Figure.from_json(value) for key, value in cell["result"].items()}
    found = {method: [cell["result"] for cell in results if cell["method"] == method] for method in (OURS, PEER)}
    spans = {m: bootstrap(np.array([float(r["return"]) for r in rows])) for m, rows in found.items() if rows}
    if OURS in spans:
        figures["return"] = _with_updates(compare(spans[OURS], spans.get(PEER)))
    if PEER in spans:
        span = spans[PEER]
        note = "interquartile mean over seeds with its 95 % bootstrap interval; Stable-Baselines3's SAC"
        figures["return_sb3"] = _with_updates(
            Figure(span.value, "return", runs=span.episodes, low=span.low, high=span.high, note=note)
        )
    for method, suffix in ((OURS, ""), (PEER, "_sb3")):
        seconds = [float(row["train_s"]) for row in found[method]]
        if seconds:
            note = "median over seeds, lowest and highest; compiling included; cells may have shared the machine"
            figures[f"train{suffix}"] = Figure(
                statistics.median(seconds), "s", runs=len(seconds), low=min(seconds), high=max(seconds), note=note
            )
    offline = [cell["result"] for cell in results if cell["method"] == FQL]
    for name, key, what in (("return_fql", "return", "FQL"), ("return_fql_data", "data_return", "episodes of our SAC")):
        if offline:
            span = bootstrap(np.array([float(row[key]) for row in offline]))
            note = f"interquartile mean over seeds with its 95 % bootstrap interval; {what}"
            figures[name] = _with_updates(
                Figure(span.value, "return", runs=span.episodes, low=span.low, high=span.high, note=note)
            )
    return figures


def _with_updates(figure: Figure) -> Figure:
    return replace(figure, note=f"{figure.note}; {UPDATES:,} updates of the same size on {TASK}")


def table(document: Mapping[str, Any]) -> str:
    """Markdown table: one row for each of our trainers, then the returns."""
    figures = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    lines: list[str] = []
    speeds = {key: figure for key, figure in figures.items() if key.startswith("updates_per_s_")}
    if speeds:
        lines += table_head(("one torch thread", "ours", "Stable-Baselines3's SAC", "times", "compile"))
    for key, figure in speeds.items():
        name = key.removeprefix("updates_per_s_")
        compiled = figures.get(f"compile_s_{name}")
        method, _, kind = name.partition("_")
        times = ""
        if figure.ratio is not None:
            times = f"{number(figure.ratio)} ({number(figure.ratio_low)} to {number(figure.ratio_high)})"
        seconds = "" if compiled is None else f"{number(compiled.value)} s"
        cells_ = (
            f"{method.upper()}, {kind}",
            f"**{number(figure.value)} {figure.unit}**",
            number(figure.peer_value),
            times,
            seconds,
        )
        lines.append(table_row(cells_))
    ours, peer = figures.get("return"), figures.get("return_sb3")
    if ours is not None or peer is not None:
        lines += ["", *table_head((f"{UPDATES:,} updates", "ours", "Stable-Baselines3's SAC", "seeds"))]
        counts = f"{ours.runs if ours else 0} and {peer.runs if peer else 0}"
        lines.append(table_row((TASK, _span(ours), _span(peer), counts)))
    offline, data = figures.get("return_fql"), figures.get("return_fql_data")
    if offline is not None and data is not None:
        lines += ["", *table_head((f"{UPDATES:,} updates, offline", "FQL", "episodes of our SAC, its data", "seeds"))]
        lines.append(table_row((TASK, _span(offline), _span(data), str(offline.runs))))
    return "\n".join(lines)


def _span(figure: Figure | None) -> str:
    return "" if figure is None else f"{number(figure.value)} ({number(figure.low)} to {number(figure.high)})"
