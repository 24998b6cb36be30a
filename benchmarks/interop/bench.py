"""Costs of the doors to other programs and processes: what a step takes through them, beside the same step without."""

from __future__ import annotations

from benchmarks.interop import remote
from benchmarks.kit.figures import Figure

DESCRIPTION = "sims in other processes beside the same sims in this one: time and overhead of a step"
PEERS: dict[str, str] = {}


def run(quick: bool) -> dict[str, Figure]:
    """Measure all doors."""
    return remote.figures(quick)
