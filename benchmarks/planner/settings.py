"""Settings that all parts of the bench share."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.kit.cells import OUT, Cell

SIM = "bev/drive"
SEEDS = (0, 1, 2)
TRAINED = "moderate"
"""Population that planners are trained with."""
REVISION = 2
"""Of the cells: 1 were driven before cars kept behind those who turn off, and before `self-play` and `cloned`."""


def arm_cells(arms: Iterable[str], module: str, sim: str, revision: int) -> list[Cell]:
    """Cells of all arms and seeds of an ablation.

    Args:
        arms: names of the arms.
        module: module of this package that runs a cell.
        sim: name of the sim.
        revision: revision of the cells.
    """
    command = ("python", "-m", f"benchmarks.planner.{module}")
    names = list(arms)
    return [
        Cell(name, sim, seed, (*command, name, str(seed), OUT), "result.json", revision)
        for seed in SEEDS
        for name in names
    ]
