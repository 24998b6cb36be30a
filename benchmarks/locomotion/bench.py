"""PPO at equal env steps: ours against Stable-Baselines3 with its published settings; and the quadruped.

A run is evaluated with its last weights and the mean action in Gymnasium's own environments, on starts not used in
training (`benchmarks.locomotion.referee`); both methods by the same code.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.kit.cells import OUT, Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head, table_row
from benchmarks.runner import number
from robotrl.errors import unknown
from robotrl.fn.stats import Interval, bootstrap
from robotrl.utils.files import dump_json, replace_file
from robotrl.utils.installation import install_line

DESCRIPTION = "return after 1,000,000 steps of halfcheetah and hopper on 8 seeds, beside Stable-Baselines3; quadruped"
PEERS = {"stable_baselines3": install_line("sb3")}
TASKS = ("mujoco/hopper", "mujoco/halfcheetah")
PRESETS = {"mujoco/hopper": "hopper-ppo", "mujoco/halfcheetah": "halfcheetah-ppo"}
SEEDS = tuple(range(8))
STEPS = 1_000_000
EPISODES = 32
"""Episodes of the evaluation of each run."""
OURS, PEER = "robotrl", "sb3"
LABELS = {OURS: "robotrl", PEER: "Stable-Baselines3"}
FEWEST = 3
"""Minimum number of seeds on both sides for a comparison."""

QUADRUPED = "mujoco/quadruped-velocity"
QUADRUPED_SEEDS = (0, 1, 2)
QUADRUPED_UNITS = {
    "error_mps": "m/s",
    "mean_error_mps": "m/s",
    "no_fall": "share of episodes",
    "wall_s": "s",
    "env_steps_per_s": "env steps/s",
}
"""Results of a quadruped cell and their units, see `benchmarks.locomotion.quadruped`."""


def cells(quick: bool) -> list[Cell]:
    """Cells of the table: each method on each task and seed, and the quadruped; `quick` is seed 0 only."""
    seeds = SEEDS[:1] if quick else SEEDS
    table = [make(task, seed) for make in (_sb3, _ours) for seed in seeds for task in TASKS]
    return [*table, *(_quadruped(seed) for seed in (QUADRUPED_SEEDS[:1] if quick else QUADRUPED_SEEDS))]


def _sb3(task: str, seed: int) -> Cell:
    command = ("python", "-m", "benchmarks.locomotion.sb3_zoo", task, str(seed), OUT)
    return Cell(PEER, task, seed, command, "result.json")


def _ours(task: str, seed: int) -> Cell:
    command = ("python", "-m", "benchmarks.locomotion.bench", task, str(seed), OUT)
    return Cell(OURS, task, seed, command, "result.json")


def _quadruped(seed: int) -> Cell:
    command = ("python", "-m", "benchmarks.locomotion.quadruped", str(seed), OUT)
    return Cell(OURS, QUADRUPED, seed, command, "result.json")


# from cells to figures


def _values(results: Sequence[CellResult], method: str, task: str, name: str) -> list[float]:
    """A value of each finished seed, by seed; for an interval its center value."""
    found: dict[int, float] = {}
    for cell in results:
        if cell["method"] == method and cell["task"] == task:
            value = cell["result"][name]
            found[int(cell["seed"])] = float(value["value"] if isinstance(value, Mapping) else value)
    return [found[seed] for seed in sorted(found)]


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Interquartile means with intervals, the comparison with Stable-Baselines3, and the quadruped's means.

    An incomplete table gives the available figures, with the number of seeds behind each.
    """
    figures: dict[str, Figure] = {}
    for task in TASKS:
        short = task.partition("/")[2]
        returns = {method: _values(results, method, task, "return") for method in LABELS}
        spans = {method: bootstrap(np.array(values)) for method, values in returns.items() if values}
        if OURS in spans:
            figures[f"{short}_return"] = compare(spans[OURS], spans.get(PEER))
        if PEER in spans:
            figures[f"{short}_return_sb3"] = _spanned(spans[PEER], f"{LABELS[PEER]} with its published settings")
        for method, suffix in ((OURS, ""), (PEER, "_sb3")):
            seconds = _values(results, method, task, "train_s")
            if seconds:
                note = "median over seeds; cells may have shared the machine: bench ppo measures speed"
                figures[f"{short}_train{suffix}"] = _over_seeds(seconds, statistics.median(seconds), "s", note)
        compiling = _values(results, OURS, task, "compile_s")
        if compiling:
            note = "median over seeds; within the training time"
            figures[f"{short}_compile"] = _over_seeds(compiling, statistics.median(compiling), "s", note)
    for name, unit in QUADRUPED_UNITS.items():
        values = _values(results, OURS, QUADRUPED, name)
        if values:
            figures[f"quadruped_{name}"] = _over_seeds(values, statistics.fmean(values), unit, "mean over seeds")
    return figures


def compare(ours: Interval, peer: Interval | None) -> Figure:
    """Our interquartile mean against the lower end of the peer's 95 % interval, if both have enough seeds.

    Args:
        ours: results of our seeds.
        peer: results of the peer's seeds; None if it has none.
    """
    theirs = 0 if peer is None else peer.episodes
    counts = f"{ours.episodes} seeds of ours, {theirs} of {LABELS[PEER]}"
    figure = _spanned(ours, f"{counts}; nothing is compared with fewer than {FEWEST} seeds each")
    figure = replace(figure, peer=f"lower 95 % bound of {LABELS[PEER]}")
    if peer is None or min(ours.episodes, theirs) < FEWEST:
        return figure
    verdict = "at least" if ours.value >= peer.low else "below"
    note = f"{counts}; our interquartile mean is {verdict} the lower end of theirs"
    # a ratio of returns is meaningful only if both are positive
    ratio = ours.value / peer.low if min(ours.value, peer.low) > 0 else None
    return replace(figure, peer_value=peer.low, ratio=ratio, note=note)


def _spanned(span: Interval, note: str) -> Figure:
    note = f"interquartile mean over seeds with its 95 % bootstrap interval; {note}"
    return Figure(span.value, "return", runs=span.episodes, low=span.low, high=span.high, note=note)


def _over_seeds(values: Sequence[float], value: float, unit: str, note: str) -> Figure:
    return Figure(value, unit, runs=len(values), low=min(values), high=max(values), note=f"{note}, lowest and highest")


def table(document: Mapping[str, Any]) -> str:
    """Markdown table: one row for each task with results, then one for the quadruped."""
    figures = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    head = (f"{STEPS:,} steps", *LABELS.values(), "ours at least its lower bound", "seeds", "training, one seed")
    lines = table_head(head)
    for task in sorted(TASKS):
        short = task.partition("/")[2]
        ours, peer = figures.get(f"{short}_return"), figures.get(f"{short}_return_sb3")
        if ours is None and peer is None:
            continue
        cells = [
            task,
            f"**{_span(ours)}**" if ours else "",
            _span(peer),
            _verdict(ours),
            f"{ours.runs if ours else 0} and {peer.runs if peer else 0}",
            " and ".join(_seconds(figures.get(f"{short}_train{suffix}")) for suffix in ("", "_sb3")),
        ]
        lines.append(table_row(cells))
    return "\n".join([*lines, *_quadruped_table(figures)])


def _quadruped_table(figures: Mapping[str, Figure]) -> list[str]:
    found = {name: figures[f"quadruped_{name}"] for name in QUADRUPED_UNITS if f"quadruped_{name}" in figures}
    if len(found) < len(QUADRUPED_UNITS):
        return []
    error, stands, wall, speed = (found[name] for name in ("error_mps", "no_fall", "wall_s", "env_steps_per_s"))
    row = [
        QUADRUPED,
        f"**{number(error.value)} m/s** ({number(error.low)} to {number(error.high)})",
        f"**{_percent(stands.value)} %** ({_percent(stands.low)} to {_percent(stands.high)})",
        f"{(wall.value or 0) / 60:.0f} min",
        number(speed.value),
        str(error.runs),
    ]
    return [
        "",
        "| task | error of the commanded velocity | episodes without a fall | training | env steps/s | seeds |",
        "| --- | --- | --- | --- | --- | --- |",
        table_row(row),
    ]


def _span(figure: Figure | None) -> str:
    return "" if figure is None else f"{number(figure.value)} ({number(figure.low)} to {number(figure.high)})"


def _verdict(figure: Figure | None) -> str:
    if figure is None or figure.peer_value is None or figure.value is None:
        return ""
    reached = "yes" if figure.value >= figure.peer_value else "**no**"
    return f"{reached} ({number(figure.value)} against {number(figure.peer_value)})"


def _seconds(figure: Figure | None) -> str:
    return "-" if figure is None else f"{number(figure.value)} s"


def _percent(share: float | None) -> str:
    return f"{100 * (share or 0):.1f}"


# one of our cells


def main(task: str, seed: int, out: Path) -> None:
    """Train one seed of our preset and evaluate it; writes `result.json` in `out`.

    Raises:
        ConfigError: there is no preset for the task.
    """
    from robotrl import registry

    if task not in PRESETS:
        raise unknown("task", task, PRESETS)
    cfg = registry.PRESETS.load(PRESETS[task])()
    cfg = replace(cfg, seed=seed, algo=replace(cfg.algo, env_steps=STEPS, engine="compiled"))
    replace_file(out / "result.json", dump_json(train_and_judge(cfg, out / "run")))


def train_and_judge(cfg: Any, run: Path, episodes: int = EPISODES) -> dict[str, Any]:
    """Train and evaluate one run; returns the evaluation of its last weights, and the training cost.

    Args:
        cfg: a `TrainCfg` on a task of `benchmarks.locomotion.referee`.
        run: the run's directory, absent or empty.
        episodes: number of evaluation episodes.
    """
    import torch

    from benchmarks.locomotion.referee import returns
    from robotrl.run.logs import read_scalars
    from robotrl.run.policy_checkpoint import load_policy
    from robotrl.training import train

    began = time.perf_counter()
    train(cfg, run)
    train_s = time.perf_counter() - began
    policy = load_policy(run, "latest")
    (key,) = policy.observation_spec

    @torch.no_grad()
    def act(obs: NDArray[np.float64]) -> NDArray[np.float32]:
        rows = {key: torch.from_numpy(obs.astype(np.float32))}
        return policy.act(rows, mode="mean").chunk[:, 0].numpy()

    found = returns(cfg.sim.name, act, episodes)
    log = read_scalars(run / "scalars.jsonl")
    recent = [row["rollout_return"] for row in log if "rollout_return" in row]
    env_steps = int(log[-1]["env_steps"])
    return {
        "return": float(found.mean()),
        "returns": found.tolist(),
        "training_return": recent[-1] if recent else None,
        "env_steps": env_steps,
        "train_s": train_s,
        "env_steps_per_s": env_steps / train_s,
        "compile_s": log[-1].get("compile_s", 0.0),
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
