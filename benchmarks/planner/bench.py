"""Planners among traffic that they were not trained with, with faults, and the parts of RAD-2, PerlAD and RIFT.

Each part has a module of its cells, figures and tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.kit.cells import Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.planner import perlad, populations, rad2, rift

DESCRIPTION = "driving scores of planners among traffic that they were not trained with; RAD-2, PerlAD, RIFT in parts"
PEERS: dict[str, str] = {}


def cells(quick: bool) -> list[Cell]:
    """Cells of all parts; `quick` is the rule-based driver alone."""
    if quick:
        return populations.cells(True)
    return [*populations.cells(False), *perlad.cells(), *rad2.cells(), *rift.cells()]


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Figures of all parts."""
    return {key: value for part in (populations, perlad, rad2, rift) for key, value in part.figures(results).items()}


def table(document: Mapping[str, Any]) -> str:
    """Markdown tables of all parts."""
    found = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    parts = [part.lines(found) for part in (populations, perlad, rad2, rift)]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)
