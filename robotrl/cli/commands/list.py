"""`robotrl list`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from robotrl.cli.commands.parsing import parse

Kind = Literal["all", "sims", "presets", "robots", "encoders", "benches"]


@dataclass(frozen=True)
class Args:
    """List the names that the other commands accept."""

    kind: Annotated[Kind, tyro.conf.Positional] = "all"
    """Kind of names to list."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl list", argv)
    tables = rows()
    for kind in tables if args.kind == "all" else [args.kind]:
        if args.kind == "all":
            print(f"{kind}:")
        indent = "  " if args.kind == "all" else ""
        for name, what in sorted(tables[kind].items()):
            print(f"{indent}{name:<28}{what}".rstrip())
    return 0


def rows() -> dict[str, dict[str, str]]:
    """For each kind: name to its origin."""
    from robotrl.cli.commands.bench import benches, checkout
    from robotrl.registry import ENCODERS, PRESETS, ROBOTS, SIMS, Table

    def named(table: Table) -> dict[str, str]:
        return {**table.rows(), **{f"{start}{family.rest}": family.target for start, family in table.families.items()}}

    return {
        "sims": named(SIMS),
        "encoders": named(ENCODERS),
        "presets": named(PRESETS),
        "robots": named(ROBOTS),
        "benches": {} if checkout() is None else {n: f"benchmarks.{m}" for n, m in benches().BENCHES.items()},
    }
