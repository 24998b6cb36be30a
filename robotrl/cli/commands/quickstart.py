"""`robotrl quickstart`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from robotrl.cli.commands.parsing import check_seed, parse
from robotrl.cli.outputs import makeable


@dataclass(frozen=True)
class Args:
    """Run the whole workflow on mujoco/peg-insert: demonstrations, cloned flow policy, fine-tuning, export, control.

    Writes report.html and summary.json.
    """

    out: Path = Path("quickstart")
    """Directory of all results."""
    seed: int = 0
    """Seeds every random stream."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl quickstart", argv)
    check_seed(args.seed)
    makeable("--out", args.out)
    from robotrl.cli.quickstart import run_quickstart

    run_quickstart(args.out, args.seed)
    return 0
