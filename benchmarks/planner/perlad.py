"""Parts of PerlAD: arms, figures and table.

Each arm is trained on a log of the rule-based driver, and drives test starts of `bev/drive` in moderate traffic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.kit.cells import Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head, table_row
from benchmarks.planner.figures import over_seeds, text_of
from benchmarks.planner.settings import REVISION, SIM, arm_cells

ABLATION_EPISODES = 192
"""Test episodes of a cell: 16 starts of each scenario."""
LOGGED = 192
"""Starts of the split `train` that the rule-based driver drives for the log."""


class Arm(NamedTuple):
    """One row of the ablation."""

    label: str
    algo: Mapping[str, Any]
    """Settings that differ from the default of `PerladCfg`."""
    policy: Mapping[str, Any]
    """Settings that differ from the policy of the bench."""


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
"""Numbers of an arm, in words."""


def cells() -> list[Cell]:
    """Cells of all arms and seeds."""
    return arm_cells(ARMS, "perlad_cell", SIM, REVISION)


def figures(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Numbers of each arm."""
    found: dict[str, Figure] = {}
    for name in ARMS:
        rows = [cell["result"] for cell in results if cell["method"] == name]
        if rows:
            found |= {f"{name}_{key}": over_seeds([float(r[key]) for r in rows], note) for key, note in ABLATED.items()}
    return found


def lines(found: Mapping[str, Figure]) -> list[str]:
    """Table: a row for each arm."""
    arms = [name for name in ARMS if f"{name}_driving" in found]
    if not arms:
        return []
    out = table_head(("PerlAD", "driving score", "completion, %", "success, %", "collisions", "seeds"))
    for name in arms:
        columns = [text_of(found[f"{name}_{key}"], scale) for key, scale in zip(ABLATED, (1, 100, 100, 1), strict=True)]
        out.append(table_row((ARMS[name].label, *columns, str(found[f"{name}_driving"].runs))))
    return out
