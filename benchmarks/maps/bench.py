"""Drives of the rule-based driver on a map of each kind, and on the same map with its roads cut at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.kit.cells import OUT, Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head, table_row
from benchmarks.maps.kinds import KINDS

DESCRIPTION = "drives on maps of each kind, whole and cut at random: ends, scores, lights passed on red, overlaps"
PEERS: dict[str, str] = {}
METHOD = "driver"
SEEDS = (0, 1, 2)
"""Seeds of the cut; each drives other starts."""
EPISODES = 16
REVISION = 1


def cells(quick: bool) -> list[Cell]:
    """A cell for each kind and seed; `quick` is one seed."""
    return [
        Cell(
            METHOD,
            kind,
            seed,
            ("python", "-m", "benchmarks.maps.cell", kind, str(seed), OUT),
            "result.json",
            REVISION,
        )
        for kind in KINDS
        for seed in (SEEDS[:1] if quick else SEEDS)
    ]


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Figures of each kind over its seeds: sums of episodes and events, mean score, and cuts that changed nothing."""
    found: dict[str, Figure] = {}
    for kind in dict.fromkeys(cell["task"] for cell in results):
        rows = [cell["result"] for cell in results if cell["task"] == kind]
        whole, runs = [row["whole"] for row in rows], len(rows)
        driven = [*whole, *(row["cut"] for row in rows if not row["same"])]
        found |= {
            f"{kind}_episodes": Figure(sum(one["episodes"] for one in whole), "episodes", runs=runs),
            f"{kind}_finished": Figure(sum(one["ends"].get("finished", 0) for one in whole), "episodes", runs=runs),
            f"{kind}_score": Figure(sum(one["score"] for one in whole) / runs, "score", runs=runs),
            f"{kind}_reds": Figure(sum(one["reds"] for one in driven), "lines", runs=runs),
            f"{kind}_passed": Figure(sum(one["passed"] for one in driven), "lines", runs=runs),
            f"{kind}_overlaps": Figure(sum(one["overlaps"] for one in driven), "episodes", runs=runs),
            f"{kind}_same": Figure(sum(row["same"] for row in rows), "cuts", runs=runs),
        }
    return found


def table(document: Mapping[str, Any]) -> str:
    """Markdown: a row for each kind."""
    found = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    titles = ("kind", "finished", "score", "lights passed on red", "overlaps", "cuts with the same figures")
    lines = table_head(titles)
    for kind in KINDS:
        if f"{kind}_episodes" not in found:
            continue
        value = {name: found[f"{kind}_{name}"].value or 0.0 for name in ("episodes", "finished", "score", "same")}
        reds, passed, overlaps = (found[f"{kind}_{name}"].value or 0 for name in ("reds", "passed", "overlaps"))
        row = (
            f"`{kind}`",
            f"{value['finished']:.0f} of {value['episodes']:.0f}",
            f"{value['score']:.1f}",
            f"{reds:.0f} of {passed:.0f}" if passed else "",
            f"{overlaps:.0f}",
            f"{value['same']:.0f} of {found[f'{kind}_same'].runs}",
        )
        lines.append(table_row(row))
    return "\n".join(lines)
