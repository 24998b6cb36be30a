"""Costs of the doors to other programs and processes: what a step takes through them, beside the same step without."""

from __future__ import annotations

from benchmarks.interop import remote, sb3
from benchmarks.kit.figures import Figure
from robotrl.utils.installation import install_line

DESCRIPTION = "sims in other processes beside the same sims in this one; Stable-Baselines3 through our door"
PEERS = {"stable_baselines3": install_line("sb3")}


def run(quick: bool) -> dict[str, Figure]:
    """Measure all doors."""
    return remote.figures(quick) | sb3.figures(quick)
