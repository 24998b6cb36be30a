"""`robotrl dataset`: what is done with datasets that are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from robotrl.cli.commands.parsing import parse, run_action
from robotrl.cli.outputs import fresh_folder

USAGE = """usage: robotrl dataset ACTION [options]

  merge    write several datasets of one robot as one, e.g. demonstrations and logs of other drivers

robotrl dataset ACTION --help shows the options. `robotrl demos` records a dataset, `robotrl inspect` describes one."""
ACTIONS = ("merge",)


@dataclass(frozen=True)
class MergeArgs:
    """Write the episodes of several datasets of one robot as one dataset, in the order given."""

    datasets: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]
    """Directories of the datasets, two or more, without videos."""
    out: Path
    """Directory of the new dataset; must not exist."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    return run_action(argv, USAGE, {"merge": _merge})


def _merge(argv: Sequence[str]) -> int:
    args = parse(MergeArgs, "robotrl dataset merge", argv)
    from robotrl.datasets.layout import MANIFEST
    from robotrl.datasets.merging import check_parts, merge
    from robotrl.datasets.reader import read_dataset
    from robotrl.utils.progress import track

    with fresh_folder("--out", args.out, inputs=args.datasets):
        parts = [read_dataset(path) for path in args.datasets]
        check_parts(parts)  # before a bar is shown
        with track(sum(part.num_episodes for part in parts), "writing", "episodes") as bar:
            merged = merge(parts, args.out, bar.advance)
    print(f"{merged.path}: {merged.episodes:,} episodes, {merged.frames:,} frames of {len(parts)} datasets")
    if merged.left_out:
        print(f"left out: {', '.join(merged.left_out)}, which not all of them state of their episodes")
    if merged.differing:
        print(f"they differ in {', '.join(merged.differing)}: see `merged` in {merged.path / MANIFEST}")
    return 0
