"""Benchmarks, one module each; every number in the README comes from here.

A bench module has `DESCRIPTION` (one line), `PEERS` (compared module or program, to its installation command), and

- either `run(quick) -> {name: Figure}`, for measurements of minutes,
- or `cells(quick) -> [Cell]` and `aggregate(results) -> {name: Figure}`, for measurements of hours: each cell runs in
  a separate process, and the table can be filled cell by cell (see `benchmarks.kit.cells`).

The README shows the optional `table(document) -> str`; without it, the figures.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from robotrl.errors import unknown

BENCHES = {
    "bev": "bev.bench",
    "carla": "carla.bench",
    "cartpole": "quickstart.cartpole",
    "chain": "chain.bench",
    "delay": "delay.bench",
    "driving": "driving.bench",
    "faults": "faults",
    "finetune": "finetune.bench",
    "gpu": "gpu.bench",
    "improve": "improve.bench",
    "interop": "interop.bench",
    "isaac": "isaac.bench",
    "latency": "latency.bench",
    "locomotion": "locomotion.bench",
    "maps": "maps.bench",
    "offpolicy": "offpolicy.bench",
    "parity": "parity.bench",
    "planner": "planner.bench",
    "ppo": "ppo.bench",
    "quickstart": "quickstart.bench",
    "ray": "cluster.bench",
    "reflex": "reflex.bench",
    "rewards": "rewards.bench",
    "runtime": "runtime.bench",
    "steering": "steering.bench",
    "stepping": "stepping.bench",
    "verdicts": "verdicts.bench",
    "vla": "vla.bench",
}
"""Bench names of `robotrl bench`, with their modules in this package."""


def load(name: str) -> ModuleType:
    """Import the module of a bench.

    Raises:
        ConfigError: there is no such bench; the nearest one is named.
    """
    if name not in BENCHES:
        raise unknown("bench", name, BENCHES)
    return importlib.import_module(f"benchmarks.{BENCHES[name]}")


def descriptions() -> dict[str, str]:
    """One-line descriptions of the benches."""
    return {name: str(load(name).DESCRIPTION) for name in BENCHES}
