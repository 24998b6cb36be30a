"""`robotrl bench NAME`: runs a bench, prints its figures with their spread, and writes them as JSON."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import benchmarks
from benchmarks.kit.cells import Cell, CellResult, fill, finished, outdated, select
from benchmarks.kit.figures import Figure, as_figure, have
from benchmarks.kit.machine import busy, machine_info, package_versions
from robotrl.errors import ConfigError
from robotrl.utils.files import dump_json, read_json, replace_file

SCHEMA_VERSION = 1
NO_CELLS = "none"
"""Value of `cells` that runs nothing and shows existing results."""
SHOWN = 6
"""Number of missing cells that are named."""


def main(
    name: str, json_path: Path | None = None, quick: bool = False, cells: str | None = None, work: Path | None = None
) -> int:
    """Run a bench; returns the exit code (0, 1 when a cell failed, 130 when a signal stopped a table).

    Args:
        name: a row of `robotrl bench --list`.
        json_path: file for the figures. The default for a table of cells is `benchmarks/results/NAME.json` in a
            checkout, else the work folder; its existing results count as done.
        quick: short version with fewer rounds or cells; its figures are not those of the README.
        cells: for a table of cells: comma-separated patterns of cells to run ("quickstart--*--0"), "none" for none,
            None for all.
        work: folder of a table's cells, by default `runs/bench/NAME`.

    Raises:
        ConfigError: unknown bench or cell, `cells` for a bench without cells, or a missing folder of the JSON file.
    """
    module = benchmarks.load(name)
    if json_path is not None and not json_path.absolute().parent.is_dir():
        raise ConfigError(f"json {str(json_path)!r}: expected a file in a folder that exists")
    machine = machine_info()
    for line in (busy(machine), *missing_peers(module)):
        if line:
            print(f"note: {line}", file=sys.stderr)
    if hasattr(module, "cells"):
        return _table(name, module, machine, json_path, quick, cells, work or Path("runs/bench") / name)
    if cells is not None:
        raise ConfigError(f"cells {cells!r}: bench {name!r} has no cells")
    figures = {key: as_figure(figure) for key, figure in module.run(quick).items()}
    show(name, figures)
    if json_path is not None:
        command = _command(name, quick, json_path)
        replace_file(json_path, dump_json(document(name, machine, command, quick, figures)))
        print(f"wrote {json_path}")
    return 0


def document(
    name: str,
    machine: Mapping[str, Any],
    command: str,
    quick: bool,
    figures: Mapping[str, Figure],
    cells: Mapping[str, CellResult] | None = None,
) -> dict[str, Any]:
    """Content of the JSON file: the figures, and for a table every cell's result, command, versions and time."""
    out: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "bench": name,
        "quick": quick,
        "command": command,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": dict(machine),
        "versions": package_versions(),
        "figures": {key: figure.to_json() for key, figure in figures.items()},
    }
    if cells is not None:
        out["cells"] = dict(cells)
    return out


def of_other_methods(older: Mapping[str, CellResult], results: Mapping[str, CellResult]) -> dict[str, CellResult]:
    """Cells of an earlier revision that are still shown: those of methods without a cell of today's."""
    methods = {cell["method"] for cell in results.values()}
    return {key: cell for key, cell in older.items() if cell["method"] not in methods}


def missing_peers(module: ModuleType) -> list[str]:
    """One line for each peer that is not installed; its figures stay empty."""
    peers: Mapping[str, str] = module.PEERS
    return [
        f"{peer} is not installed, its figures are left empty: {install}"
        for peer, install in peers.items()
        if not have(peer)
    ]


def _command(name: str, quick: bool, json_path: Path | None) -> str:
    words = ["robotrl", "bench", name, *(["--quick"] if quick else [])]
    return shlex.join([*words, *(["--json", json_path.name] if json_path else [])])


def _table(
    name: str,
    module: ModuleType,
    machine: dict[str, Any],
    json_path: Path | None,
    quick: bool,
    patterns: str | None,
    work: Path,
) -> int:
    table: list[Cell] = module.cells(quick)
    path = json_path or _results_path(name, work)
    known: dict[str, CellResult] = {}
    older: dict[str, CellResult] = {}
    if path.is_file():
        before = read_json(path, "bench results", SCHEMA_VERSION)
        known, older = before.get("cells", {}), before.get("older_cells", {})
    older |= outdated(table, known)

    def write(results: Mapping[str, CellResult]) -> None:
        shown = {**results, **of_other_methods(older, results)}
        figures = {key: as_figure(figure) for key, figure in module.aggregate(list(shown.values())).items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        out = document(name, machine, _command(name, quick, None), quick, figures, shown)
        kept = {key: older[key] for key in older if key not in shown}
        replace_file(path, dump_json(out | ({"older_cells": kept} if kept else {})))

    failed: tuple[str, ...] = ()
    stopped = False
    if patterns == NO_CELLS:
        results = finished(table, work, known)
        if results:
            write(results)
    else:
        chosen = select(table, patterns)
        results, failed, stopped = fill(table, chosen, work, known, write)
        if results:
            write(results)
    if results:
        show(name, {key: as_figure(figure) for key, figure in module.aggregate(list(results.values())).items()})
    missing = [cell.key for cell in table if cell.key not in results]
    print(f"{len(results)} of {len(table)} cells done{f'; {path}' if results else ''}")
    if missing:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        print(f"missing: {', '.join(missing[:SHOWN])}{more}")
    return 130 if stopped else 1 if failed else 0


def _results_path(name: str, work: Path) -> Path:
    """`benchmarks/results` of a checkout (a folder beside pyproject.toml), else the work folder."""
    here = Path(__file__).resolve().parent
    return (here / "results" if (here.parent / "pyproject.toml").is_file() else work) / f"{name}.json"


def number(value: float | None) -> str:
    """A number with three or four significant digits; a dash if it was not measured."""
    if value is None:
        return "-"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if size >= 100 else f"{value:.3g}"


def rows(figures: Mapping[str, Figure]) -> list[tuple[str, ...]]:
    """Figures as text rows: name, value and unit, spread, peer, its value, ratio with its spread, runs."""
    out: list[tuple[str, ...]] = []
    for key, figure in figures.items():
        spread = "" if figure.low is None else f"{number(figure.low)} to {number(figure.high)}"
        ratio = "" if figure.peer is None else number(figure.ratio)
        if figure.ratio_low is not None:
            ratio += f" ({number(figure.ratio_low)} to {number(figure.ratio_high)})"
        peer_value = "" if figure.peer is None else number(figure.peer_value)
        value = f"{number(figure.value)} {figure.unit}"
        out.append((key, value, spread, figure.peer or "", peer_value, ratio, str(figure.runs)))
    return out


def show(name: str, figures: Mapping[str, Figure]) -> None:
    """Print the figures as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"robotrl bench {name}", title_justify="left")
    for column in ("figure", "ours", "lowest to highest", "peer", "peer's", "ratio, above 1 ours is better", "runs"):
        table.add_column(column)
    for row in rows(figures):
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    for note in dict.fromkeys(figure.note for figure in figures.values() if figure.note):
        console.print(note, style="dim", markup=False)
