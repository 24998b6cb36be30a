"""One module a bench: every number that the README claims comes from here.

A bench module has `DESCRIPTION` (one line), `PEERS` (module or program that it compares with, to what to install), and

- either `run(quick) -> {name: Figure}`, for what is measured in minutes,
- or `cells(quick) -> [Cell]` and `aggregate(results) -> {name: Figure}`, for evidence that takes hours: each cell is a
  process of its own, and the table can be filled piece by piece (see `robotrl.benchmarks.kit.cells`).

`table(document) -> str`, where a bench has it, is what the README shows; without it, the README shows the figures.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from robotrl.errors import unknown

if __name__ != "robotrl.benchmarks":
    raise ImportError(f"import this package as robotrl.benchmarks, not as {__name__}")

BENCHES = (
    "bev",
    "cartpole",
    "chain",
    "driving",
    "faults",
    "finetune",
    "gpu",
    "latency",
    "locomotion",
    "offpolicy",
    "ppo",
    "quickstart",
    "stepping",
    "vla",
)
"""Names that `robotrl bench` knows: each a module of this package."""


def load(name: str) -> ModuleType:
    """The module of a bench.

    Raises:
        ConfigError: there is no such bench; the nearest one is named.
    """
    if name not in BENCHES:
        raise unknown("bench", name, BENCHES)
    return importlib.import_module(f"robotrl.benchmarks.{name}")


def descriptions() -> dict[str, str]:
    """One line about each bench."""
    return {name: str(load(name).DESCRIPTION) for name in BENCHES}
