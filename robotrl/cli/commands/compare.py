"""`robotrl compare`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from robotrl.cli.commands.parsing import parse
from robotrl.cli.outputs import writable
from robotrl.errors import ConfigError


@dataclass(frozen=True)
class Args:
    """Compare training runs, finished or not: runs that differ in nothing but the seed are one arm."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
    """Directories of runs."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.html")] = None
    """Write a page with learning curves, scores, differences in config and rollouts; it is self-contained."""
    ignore: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FIELD ...")] = ()
    """Config fields that do not divide runs into arms, beside the seed: init_from dataset."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl compare", argv)
    if not args.runs:
        raise ConfigError("missing: RUN, the directories of one or more runs")
    if args.out is not None:
        writable("--out", args.out, (".html", ".htm"), inputs=list(args.runs))
    from robotrl.api.comparing import compare_runs
    from robotrl.utils.files import replace_file

    found = compare_runs(args.runs, args.ignore)
    for line in found.lines():
        print(line)
    if args.out is not None:
        replace_file(args.out, found.page(shlex.join(["robotrl", "compare", *argv])).encode())
        print(f"wrote {args.out}")
    return 0
