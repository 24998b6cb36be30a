"""`robotrl inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from robotrl.cli.commands.parsing import parse


@dataclass(frozen=True)
class Args:
    """Describe a bundle, run, checkpoint or dataset, and verify its hashes. Exit code 1 if a part of it is damaged."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """Directory of a bundle, run, checkpoint or dataset."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl inspect", argv)
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from robotrl.api.inspection import describe

    found = describe(args.path)
    console = Console()
    table = Table(title=f"{found.kind} {found.path}", title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for title, text in found.rows.items():
        table.add_row(escape(title), escape(text))
    console.print(table)
    for line in found.damaged:
        console.print(f"damaged: {line}", markup=False, soft_wrap=True)
    return 1 if found.damaged else 0
