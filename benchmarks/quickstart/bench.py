"""The quickstart on ten seeds, and on five of them the clones that reinforcement learning has to beat.

Methods, all on `mujoco/peg-insert`: `quickstart` is `robotrl quickstart` as a user runs it; `clone_converged` clones
the same demonstrations to convergence (3000 gradient steps, the best of six evaluations on other starts counts);
`clone_10x_demos` does the same with ten times as many demonstrations.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kit.cells import EVALUATED, OUT, Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_row
from robotrl.errors import unknown
from robotrl.utils.files import dump_json, replace_file

DESCRIPTION = "success of the quickstart on seeds 0 to 9, beside a converged clone and a clone of ten times the demos"
PEERS: dict[str, str] = {}
TASK = "mujoco/peg-insert"
SEEDS = tuple(range(10))
BASELINE_SEEDS = SEEDS[:5]
"""Seeds of the comparison clones."""
BASELINES = ("clone_converged", "clone_10x_demos")
METHODS = ("quickstart", *BASELINES)
BASELINE_LABELS = {
    "clone_converged": "same demos, trained to convergence",
    "clone_10x_demos": "clone of ten times the demos",
}


def cells(quick: bool) -> list[Cell]:
    """Cells of the table: the quickstart on every seed, the baselines on some; `quick` is seed 0 only."""
    seeds = {method: BASELINE_SEEDS if method in BASELINES else SEEDS for method in METHODS}
    return [_cell(method, seed) for method in METHODS for seed in seeds[method][: 1 if quick else None]]


def _cell(method: str, seed: int) -> Cell:
    if method == "quickstart":
        command = ("robotrl", "quickstart", "--out", f"{OUT}/quickstart", "--seed", str(seed))
        # it trains until two evaluations in a row reach 99 %, and makes a final selection among similar checkpoints
        return Cell(method, TASK, seed, command, "quickstart/summary.json", revision=2, rule=EVALUATED)
    command = ("python", "-m", "benchmarks.quickstart.bench", method, str(seed), OUT)
    return Cell(method, TASK, seed, command, "result.json", rule=EVALUATED)


def _by_seed(results: Sequence[CellResult], method: str, *path: str) -> dict[int, float]:
    """Seed to the value at `path` in each result of a method; results without it are left out."""
    found: dict[int, float] = {}
    for cell in results:
        value: Any = cell["result"]
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if cell["method"] == method and value is not None:
            found[int(cell["seed"])] = float(value)
    return dict(sorted(found.items()))


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Means over the seeds with their range, the worst seed, and the gain over each clone, by seed."""
    figures: dict[str, Figure] = {}
    tuned = _by_seed(results, "quickstart", "rl", "success", "value")
    clone = _by_seed(results, "quickstart", "bc", "success", "value")

    def add(name: str, values: Mapping[int, float], unit: str, note: str = "", peer: str | None = None) -> None:
        if values:
            numbers = list(values.values())
            mean = statistics.fmean(numbers)
            figures[name] = Figure(
                mean, unit, peer=peer, runs=len(numbers), low=min(numbers), high=max(numbers), note=note
            )

    note = "mean over seeds with the lowest and highest; 256 held-out starts each"
    add("clone_success", clone, "success", note)
    if tuned:
        add("finetuned_success", tuned, "success", note, peer="clone it started from")
        figures["finetuned_success"] = _against(figures["finetuned_success"], tuned, clone)
        figures["finetuned_success_worst_seed"] = Figure(
            min(tuned.values()), "success", runs=len(tuned), note="the worst of the seeds"
        )
        add("gain_over_clone", {seed: tuned[seed] - clone[seed] for seed in tuned}, "success", "difference, by seed")
    for method in BASELINES:
        success = _by_seed(results, method, "success", "value")
        add(f"{method}_success", success, "success", note)
        shared = {seed: tuned[seed] - success[seed] for seed in tuned if seed in success}
        add(f"gain_over_{method}", shared, "success", "difference, by seed")
    add("wall", _by_seed(results, "quickstart", "wall_s"), "s", "whole quickstart, without downloads")
    add("peak_memory", _by_seed(results, "quickstart", "peak_memory_mib"), "MiB", "summed over the process tree")
    add("env_steps", _by_seed(results, "quickstart", "env_steps"), "env steps", "of fine-tuning")
    return figures


def _against(figure: Figure, ours: Mapping[int, float], peer: Mapping[int, float]) -> Figure:
    ratios = [ours[seed] / peer[seed] for seed in ours if peer.get(seed)]
    return Figure(
        value=figure.value,
        unit=figure.unit,
        peer=figure.peer,
        peer_value=statistics.fmean(peer[seed] for seed in ours),
        ratio=statistics.fmean(ratios) if ratios else None,
        runs=figure.runs,
        low=figure.low,
        high=figure.high,
        ratio_low=min(ratios, default=None),
        ratio_high=max(ratios, default=None),
        note=figure.note,
    )


def _percent(success: Mapping[str, float] | None) -> str:
    if success is None:
        return ""
    return f"{100 * success['value']:.1f} % ({100 * success['low']:.1f} to {100 * success['high']:.1f})"


def table(document: Mapping[str, Any]) -> str:
    """Markdown table: one row per seed, then the mean over seeds."""
    done = {(cell["method"], int(cell["seed"])): cell["result"] for cell in document["cells"].values()}
    seeds = sorted({seed for _, seed in done})
    lines = [
        "| seed | clone | fine-tuned | " + " | ".join(BASELINE_LABELS[m] for m in BASELINES) + " | time | memory |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for seed in seeds:
        main: dict[str, Any] = done.get(("quickstart", seed), {})
        peers = [done.get((method, seed), {}).get("success") for method in BASELINES]
        row = [
            str(seed),
            _percent(main["bc"]["success"]) if main else "",
            f"**{_percent(main['rl']['success'])}**" if main else "",
            *(_percent(success) for success in peers),
            f"{main['wall_s']:.0f} s" if main else "",
            f"{main['peak_memory_mib']:.0f} MiB" if main else "",
        ]
        lines.append(table_row(row))
    figures = {key: Figure.from_json(value) for key, value in document["figures"].items()}

    def mean(name: str, scale: float, digits: int, unit: str) -> str:
        value = figures[name].value if name in figures else None
        return "" if value is None else f"{scale * value:.{digits}f} {unit}"

    row = [
        "mean",
        mean("clone_success", 100, 1, "%"),
        f"**{mean('finetuned_success', 100, 1, '%')}**" if "finetuned_success" in figures else "",
        *(mean(f"{method}_success", 100, 1, "%") for method in BASELINES),
        mean("wall", 1, 0, "s"),
        mean("peak_memory", 1, 0, "MiB"),
    ]
    lines.append(table_row(row))
    return "\n".join(lines)


def main(method: str, seed: int, out: Path) -> None:
    """Run one baseline cell in this process and write `result.json` in `out`."""
    from robotrl.cli.quickstart import baseline

    if method not in BASELINES:
        raise unknown("method", method, BASELINES)
    replace_file(out / "result.json", dump_json(baseline(method, seed, out)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
