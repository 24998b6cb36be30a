"""Learning at equal steps: our PPO beside Stable-Baselines3's with its own published settings, 8 seeds each."""

from __future__ import annotations

from collections.abc import Sequence

from robotrl.benchmarks.cells import OUT, Cell, CellResult
from robotrl.benchmarks.figures import Figure

DESCRIPTION = "return after 1,000,000 steps of halfcheetah and hopper on 8 seeds, beside Stable-Baselines3"
PEERS = {"stable_baselines3": "pip install 'robotrl[sb3]'"}
TASKS = ("mujoco/hopper", "mujoco/halfcheetah")
SEEDS = tuple(range(8))


def cells(quick: bool) -> list[Cell]:
    """The table: each method on each task and seed; `quick` is seed 0 alone."""
    return [_sb3(task, seed) for seed in (SEEDS[:1] if quick else SEEDS) for task in TASKS]


def _sb3(task: str, seed: int) -> Cell:
    command = ("python", "-m", "robotrl.benchmarks.sb3_zoo", task, str(seed), OUT)
    return Cell("sb3", task, seed, command, "result.json")


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Nothing yet."""
    return {}
