"""RIFT: traffic that is fine-tuned towards a style. Arms, figures and table.

All arms of a seed share a clone of the rule-based traffic. Each is measured on test starts, beside the rule-based
traffic, which is the reference of realism.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.kit.cells import Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head, table_row
from benchmarks.planner.figures import over_seeds, text_of
from benchmarks.planner.settings import SIM, arm_cells

REVISION = 1
REFERENCE = ("moderate", "aggressive")
"""Populations that are cloned, and the reference of realism."""
ARMS = {
    "rift-rules": "rules, the reference",
    "rift-cloned": "cloned",
    "rift-assertive": "fine-tuned, style `assertive`",
    "rift-cautious": "fine-tuned, style `cautious`",
}
MEASURED = {
    "realism": ("overlap of distributions with the reference's, 0 to 1", 1.0, 3),
    "pace": ("mean speed over the limit", 1.0, 3),
    "headway_s": ("median headway, s", 1.0, 2),
    "hard_braking": ("share of decelerations above 3 m/s^2", 100.0, 1),
    "overlaps_per_mille": ("cars that overlap another road user, per 1,000", 1.0, 1),
}
"""Numbers of an arm: in words, and their scale and decimals in the table."""


def cells() -> list[Cell]:
    """Cells of all arms and seeds."""
    return arm_cells(ARMS, "rift_cell", SIM, REVISION)


def figures(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Numbers of each arm, and their ratios to the clone of the same seed."""
    found: dict[str, Figure] = {}
    of_arm = {name: {r["seed"]: r["result"] for r in results if r["method"] == name} for name in ARMS}
    cloned = of_arm["rift-cloned"]
    for name, rows in of_arm.items():
        for key, (note, _, _) in MEASURED.items() if rows else ():
            found[f"{name}_{key}"] = over_seeds([float(row[key]) for row in rows.values()], note, "")
            if ratios := [rows[seed][key] / cloned[seed][key] for seed in rows if seed in cloned and cloned[seed][key]]:
                found[f"{name}_{key}_ratio"] = over_seeds(ratios, f"{note}, over the clone's", "ratio")
    return found


def lines(found: Mapping[str, Figure]) -> list[str]:
    """Table: a row for each traffic."""
    arms = [name for name in ARMS if f"{name}_realism" in found]
    if not arms:
        return []
    titles = ("realism", "pace", "headway, s", "hard braking, %", "overlaps, per 1,000")
    out = table_head(("traffic", *titles, "realism, % of the clone's", "seeds"))
    for name in arms:
        columns = [text_of(found[f"{name}_{key}"], scale, digits) for key, (_, scale, digits) in MEASURED.items()]
        ratio = text_of(found.get(f"{name}_realism_ratio"), 100.0)
        out.append(table_row((ARMS[name], *columns, ratio, str(found[f"{name}_realism"].runs))))
    return out
