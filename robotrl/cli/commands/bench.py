"""`robotrl bench`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from robotrl.cli.commands.parsing import parse
from robotrl.errors import ConfigError, unknown


@dataclass(frozen=True)
class Args:
    """Run a benchmark; the peer it compares with runs beside it."""

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = None
    """A name from `robotrl list benches`."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the figures to this file."""
    quick: bool = False
    """A short version for a first look; not what the README shows."""
    cells: Annotated[str | None, tyro.conf.arg(metavar="PATTERNS")] = None
    """For a table of long runs: comma-separated patterns of the cells to fill; "none" shows what is there."""
    work: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where the runs of a table lie; default runs/bench/NAME."""
    list: bool = False
    """Say what each bench measures, and run none."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl bench", argv)
    from robotrl import benchmarks

    if args.list:
        for name, description in benchmarks.descriptions().items():
            print(f"{name:<16}{description}")
        return 0
    if args.name is None:
        raise ConfigError(f"missing: NAME of a bench: known: {', '.join(benchmarks.BENCHES)}")
    if args.name not in benchmarks.BENCHES:
        raise unknown("bench", args.name, benchmarks.BENCHES)
    from robotrl.benchmarks import runner

    return runner.main(args.name, args.json, quick=args.quick, cells=args.cells, work=args.work)
