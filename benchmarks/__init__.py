"""One module a bench: every number that the README claims comes from here.

A bench module has `DESCRIPTION` (one line), `PEERS` (module or program that it compares with, to what to install), and

- either `run(quick) -> {name: Figure}`, for what is measured in minutes,
- or `cells(quick) -> [Cell]` and `aggregate(results) -> {name: Figure}`, for evidence that takes hours: each cell is a
  process of its own, and the table can be filled piece by piece (see `benchmarks.kit.cells`).

`table(document) -> str`, where a bench has it, is what the README shows; without it, the README shows the figures.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from robotrl.errors import unknown

BENCHES = {
    "bev": "bev.bench",
    "cartpole": "quickstart.cartpole",
    "chain": "chain.bench",
    "driving": "driving.bench",
    "faults": "faults",
    "finetune": "finetune.bench",
    "gpu": "gpu.bench",
    "latency": "latency.bench",
    "locomotion": "locomotion.bench",
    "offpolicy": "offpolicy.bench",
    "ppo": "ppo.bench",
    "quickstart": "quickstart.bench",
    "stepping": "stepping.bench",
    "vla": "vla.bench",
}
"""Names that `robotrl bench` knows, each with its module in this package."""


def load(name: str) -> ModuleType:
    """The module of a bench.

    Raises:
        ConfigError: there is no such bench; the nearest one is named.
    """
    if name not in BENCHES:
        raise unknown("bench", name, BENCHES)
    return importlib.import_module(f"benchmarks.{BENCHES[name]}")


def descriptions() -> dict[str, str]:
    """One line about each bench."""
    return {name: str(load(name).DESCRIPTION) for name in BENCHES}
