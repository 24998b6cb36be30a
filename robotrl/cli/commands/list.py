"""`robotrl list`."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, get_args

import tyro

from robotrl.cli.commands.parsing import parse
from robotrl.utils.source_texts import module_tree

Kind = Literal[
    "all", "sims", "policies", "algorithms", "rewards", "presets", "robots", "encoders", "traffic", "benches"
]
BY_MODULE = ("policies", "algorithms", "benches")
"""Kinds whose rows are described by the first line of their module, all others by that of the function."""
MARGIN = 2
NARROWEST = 40
"""Columns of a description, however narrow the terminal is."""


class Row(NamedTuple):
    """A name and its meaning."""

    target: str
    """ "module:attribute", or "module"."""
    description: str
    """First line of its docstring; "" where its package cannot be found."""


@dataclass(frozen=True)
class Args:
    """List the names that other commands take, with a description of each."""

    kind: Annotated[Kind, tyro.conf.Positional] = "all"
    """Names to list."""
    json: bool = False
    """Print JSON: kind, name, description and import path."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl list", argv)
    kinds: Sequence[str] = get_args(Kind)[1:] if args.kind == "all" else [args.kind]
    tables = {kind: rows(kind) for kind in kinds}
    if args.json:
        found = {kind: {name: row._asdict() for name, row in table.items()} for kind, table in tables.items()}
        print(json.dumps({"schema_version": 1, **found}, indent=1))
        return 0
    width = shutil.get_terminal_size((120, 24)).columns
    for kind, table in tables.items():
        if len(tables) > 1:
            print(f"{kind}:")
        indent = " " * MARGIN if len(tables) > 1 else ""
        column = max(map(len, table), default=0) + MARGIN
        for name, row in sorted(table.items()):
            print(f"{indent}{name:<{column}}{_cut(row.description, width - len(indent) - column)}".rstrip())
    return 0


def rows(kind: str) -> dict[str, Row]:
    """Name to row of one kind; nothing is imported but the packages' own `__init__`."""
    from robotrl.cli.commands.bench import benches
    from robotrl.registry import ALGORITHMS, ENCODERS, POLICIES, PRESETS, REWARDS, ROBOTS, SIMS, TRAFFIC
    from robotrl.utils.installation import checkout

    if kind == "benches":
        targets = {} if checkout() is None else {n: f"benchmarks.{m}" for n, m in benches().BENCHES.items()}
    else:
        tables = {
            "sims": SIMS,
            "policies": POLICIES,
            "algorithms": ALGORITHMS,
            "rewards": REWARDS,
            "presets": PRESETS,
            "encoders": ENCODERS,
            "traffic": TRAFFIC,
            "robots": ROBOTS,
        }
        table = tables[kind]
        targets = {**table.rows(), **{f"{start}{f.rest}": f.target for start, f in table.families.items()}}
    return {name: Row(target, describe(target, kind in BY_MODULE)) for name, target in targets.items()}


def describe(target: str, by_module: bool) -> str:
    """First line of the docstring of "module:attribute", read from the source; "" where there is none.

    Args:
        target: a row of a registry table.
        by_module: take the module's docstring, without a name that it begins with ("`gym/ID`: ...").
    """
    module, _, attribute = target.partition(":")
    tree, found = module_tree(module), None
    if tree is not None and by_module:
        found = ast.get_docstring(tree)
    elif tree is not None:
        named = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
        found = next((ast.get_docstring(node) for node in named if node.name == attribute), None)
    line = (found or "").partition("\n")[0]
    if line.startswith("`") and "`: " in line:
        line = line.partition("`: ")[2]
    return line[:1].upper() + line[1:]


def _cut(text: str, width: int) -> str:
    width = max(width, NARROWEST)
    return text if len(text) <= width else text[: width - 3].rsplit(" ", 1)[0].rstrip(",;:") + " ..."
