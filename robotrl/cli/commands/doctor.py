"""`robotrl doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from robotrl.cli.commands.parsing import parse

if TYPE_CHECKING:
    from robotrl.cli.doctor import Diagnosis


@dataclass(frozen=True)
class Args:
    """Report what works on this machine, and what to install for the rest. Exit code 1 if something is broken."""

    json: bool = False
    """Print JSON instead of tables."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl doctor", argv)
    from robotrl.cli.doctor import diagnose, to_json

    found = diagnose()
    if args.json:
        print(to_json(found))
    else:
        _show(found)
    return 1 if found.problems else 0


def _show(found: Diagnosis) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    facts = Table.grid(padding=(0, 2))
    rows = {
        "robotrl": found.robotrl,
        "Python": f"{found.python} ({found.executable})",
        "platform": found.platform,
        "cores": str(found.cores),
        "GPU": "; ".join(found.gpus) or "none seen",
        "base": ", ".join(f"{name} {version}" for name, version in found.versions.items()),
        "torch": _torch_line(found),
        "threads": ", ".join(f"{name}={value or 'unset'}" for name, value in found.threads.items()),
        "C++ compiler": found.compiler or "none: torch.compile falls back to eager code on a CPU",
    }
    for name, value in rows.items():
        facts.add_row(f"[bold]{name}", escape(value))
    console.print(facts)
    extras = Table(title="extras", title_justify="left")
    for title in ("extra", "usable", "found", "to install or mend"):
        extras.add_column(title, overflow="fold")
    for extra in found.extras:
        extras.add_row(extra.name, "yes" if extra.usable else "no", escape(extra.detail), escape(extra.advice))
    console.print(extras)
    for problem in found.problems:
        console.print(f"problem: {problem}", markup=False, soft_wrap=True)
    if not found.problems:
        train = next(extra for extra in found.extras if extra.name == "train")
        trains = "yes" if train.usable else f"no ({train.advice})"
        console.print(f"no problems found; deploys: yes, trains: {escape(trains)}", soft_wrap=True)


def _torch_line(found: Diagnosis) -> str:
    if found.torch is None:
        return "not installed (the runtime needs none)"
    build = f"CUDA {found.torch['built_for_cuda']} build" if found.torch["built_for_cuda"] else "CPU build"
    return f"{found.torch['version']}, {build}, {found.torch['threads']} threads"
