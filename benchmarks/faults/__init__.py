"""Fault injection: faulty inputs of many kinds, given to the public interface: `robotrl bench faults`.

A module of this package lists the kinds of one area in `KINDS`. A kind makes an input with one fault, passes it to the
real code, and returns the outcome. Each area is a cell of the table: one process that tries all of its kinds on inputs
drawn from fixed seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults.kind import FAILURES, Outcome
from benchmarks.kit.cells import OUT, Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head, table_row

DESCRIPTION = "faulty inputs by the thousand: what was refused, corrected, warned of or contained, and what was silent"
PEERS: dict[str, str] = {}
AREAS = ("eval", "data", "run", "files", "flags", "gym", "categorical", "deploy", "servo", "serve", "replay", "view")
"""Modules of this package with kinds, in the order of the table."""
RESULT = "faults.json"
QUICK_INPUTS = 3
"""Inputs per kind in a quick run."""


def areas() -> list[str]:
    """Areas whose module exists."""
    here = {path.stem for path in Path(__file__).parent.glob("*.py")}
    return [area for area in AREAS if area in here]


def cells(quick: bool) -> list[Cell]:
    """One cell per area."""
    limit = ("--most", str(QUICK_INPUTS)) if quick else ()
    return [
        Cell(
            "faults",
            area,
            0,
            ("python", "-m", "benchmarks.faults.cell", area, f"{OUT}/{RESULT}", *limit),
            RESULT,
            # the C++ servo's chain, too
            revision=2 if area == "servo" else 1,
        )
        for area in areas()
    ]


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Numbers of kinds, inputs and outcomes over all areas, and of inputs with an unwanted outcome."""
    rows = [row for cell in results for row in cell["result"]["kinds"]]
    inputs = sum(row["inputs"] for row in rows)
    figures = {
        "kinds": Figure(len(rows), "kinds"),
        "inputs": Figure(inputs, "inputs"),
    }
    counts = _outcomes(rows)
    for outcome in Outcome:
        figures[outcome.value] = Figure(counts[outcome.value], "inputs", runs=inputs)
    figures["unwanted"] = Figure(
        sum(_unwanted(row) for row in rows), "inputs", runs=inputs, note="unwanted: another outcome than the kind's"
    )
    return figures


def table(document: Mapping[str, Any]) -> str:
    """Markdown table: one row per kind and a total, and the first input of each kind with an unwanted outcome."""
    lines = table_head(("area", "kind", "inputs", *(outcome.value for outcome in Outcome)))
    everything: list[Mapping[str, Any]] = []
    wrong: list[str] = []
    done = {str(cell["task"]): cell["result"]["kinds"] for cell in document["cells"].values()}
    for area in (area for area in AREAS if area in done):
        for row in done[area]:
            lines.append(table_row((area, row["kind"], f"{row['inputs']:,}", *_counts(row["outcomes"]))))
            everything.append(row)
            if row["failure"] is not None:
                wrong.append(f"{area}: {row['kind']}, input {row['failure']['input']}: {row['failure']['outcome']}")
    total = _outcomes(everything)
    inputs = sum(row["inputs"] for row in everything)
    lines.append(table_row((f"{len(done)} areas", f"{len(everything)} kinds", f"{inputs:,}", *_counts(total))))
    if wrong:
        lines += ["", "Not as wanted:", "", *(f"- {line}" for line in wrong)]
    return "\n".join(lines)


def _counts(outcomes: Mapping[str, int]) -> list[str]:
    """Count of each outcome; failures are shown even if there are none."""
    return [
        f"{outcomes.get(outcome.value, 0):,}" if outcomes.get(outcome.value, 0) or outcome in FAILURES else ""
        for outcome in Outcome
    ]


def _outcomes(rows: Sequence[Mapping[str, Any]]) -> Counter[str]:
    total = Counter[str]()
    for row in rows:
        total.update(row["outcomes"])
    return total


def _unwanted(row: Mapping[str, Any]) -> int:
    return sum(count for outcome, count in row["outcomes"].items() if outcome not in row["wanted"])
