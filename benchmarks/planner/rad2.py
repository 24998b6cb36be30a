"""RAD-2's ablation on `bev/warp`: arms, figures and table.

All arms of a seed share a log of the rule-based driver and a flow planner that is cloned on its clips of the split
`train`; each drives the same starts on clips of the split `test`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.kit.cells import Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head, table_row
from benchmarks.planner.figures import over_seeds, text_of
from benchmarks.planner.settings import arm_cells
from robotrl.spec import Split

SIM = "bev/warp"
REVISION = 1
CLIPS: dict[Split, int] = {"train": 512, "val": 64, "test": 384}
"""Starts of each split that the rule-based driver drives for the log; failed drives are left out."""
EPISODES = 384
"""Test episodes of a cell."""


class Arm(NamedTuple):
    """One row of the ablation."""

    label: str
    flags: str | None
    """Flags of `robotrl train --algo rad2`; None for the cloned planner itself."""


ARMS = {
    "rad2-il": Arm("planner by imitation", None),
    "rad2-ogo": Arm("+ on-policy optimization of the planner", "--algo.train generator --policy.candidates 1"),
    "rad2-discriminator": Arm("+ discriminator", "--algo.train discriminator"),
    "rad2": Arm("+ both", ""),
}
COUNTED = {
    "collisions": "collisions an episode",
    "at_fault": "collisions at fault an episode",
    "cut": "share of the episodes that left the log",
    "progress": "progress over the logged driver's, of episodes that did not leave the log",
    "success": "share of the episodes that ended well",
}
"""Numbers of an arm, in words."""


def cells() -> list[Cell]:
    """Cells of all arms and seeds."""
    return arm_cells(ARMS, "rad2_cell", SIM, REVISION)


def figures(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Numbers of each arm, and its collisions over those of the planner by imitation of the same seed."""
    found: dict[str, Figure] = {}
    of_arm = {name: {r["seed"]: r["result"] for r in results if r["method"] == name} for name in ARMS}
    cloned = of_arm["rad2-il"]
    for name, rows in of_arm.items():
        if not rows:
            continue
        found |= {
            f"{name}_{key}": over_seeds([float(row[key]) for row in rows.values()], note, "")
            for key, note in COUNTED.items()
        }
        pairs = [(rows[seed]["collisions"], cloned[seed]["collisions"]) for seed in rows if seed in cloned]
        if shares := [own / before for own, before in pairs if before > 0]:
            found[f"{name}_share"] = over_seeds(shares, "collisions over those of the planner by imitation", "share")
    return found


def lines(found: Mapping[str, Figure]) -> list[str]:
    """Table: a row for each arm."""
    arms = [name for name in ARMS if f"{name}_collisions" in found]
    if not arms:
        return []
    titles = ("collisions", "at fault", "left the log, %", "progress", "to the end, %", "collisions, % of imitation")
    out = table_head(("RAD-2 on held-out clips", *titles, "seeds"))
    for name in arms:
        scales = zip(COUNTED, (1, 1, 100, 1, 100), (3, 3, 1, 3, 1), strict=True)
        columns = [text_of(found[f"{name}_{key}"], scale, digits) for key, scale, digits in scales]
        share = text_of(found.get(f"{name}_share"), 100.0, 0)
        out.append(table_row((ARMS[name].label, *columns, share, str(found[f"{name}_collisions"].runs))))
    return out
