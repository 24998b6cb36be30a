"""`robotrl bench`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated

import tyro

import robotrl
from robotrl.cli.commands.parsing import parse
from robotrl.errors import ConfigError, unknown
from robotrl.utils.installation import checkout


@dataclass(frozen=True)
class Args:
    """Run a benchmark; the peer it compares with runs beside it."""

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = None
    """A name from `robotrl list benches`."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the figures to this file."""
    quick: bool = False
    """Short version for a first look; its figures are not those of the README."""
    cells: Annotated[str | None, tyro.conf.arg(metavar="PATTERNS")] = None
    """For a table of long runs: comma-separated patterns of the cells to run; "none" shows existing results."""
    work: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Directory for the runs of a table; default runs/bench/NAME."""
    list: bool = False
    """Describe each benchmark, without running any."""


def benches() -> ModuleType:
    """Make the package `benchmarks` of the checkout importable in this process and its children.

    Raises:
        ConfigError: robotrl is not installed from a checkout.
    """
    root = checkout()
    if root is None:
        raise ConfigError("benches run from a checkout, and this robotrl has none: expected pip install -e CHECKOUT")
    # before all else: other packages bring a `benchmarks` too; the folder that robotrl was found in has all its parts
    first = list(dict.fromkeys([str(Path(robotrl.__file__).parents[1]), str(root)]))
    if sys.path[: len(first)] != first:
        sys.path[:0] = first
        os.environ["PYTHONPATH"] = os.pathsep.join([*first, *filter(None, [os.environ.get("PYTHONPATH")])])
    return importlib.import_module("benchmarks")


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl bench", argv)
    found = benches()
    if args.list:
        for name, description in found.descriptions().items():
            print(f"{name:<16}{description}")
        return 0
    if args.name is None:
        raise ConfigError(f"missing: NAME of a bench: known: {', '.join(found.BENCHES)}")
    if args.name not in found.BENCHES:
        raise unknown("bench", args.name, found.BENCHES)
    runner = importlib.import_module("benchmarks.runner")
    return runner.main(args.name, args.json, quick=args.quick, cells=args.cells, work=args.work)
