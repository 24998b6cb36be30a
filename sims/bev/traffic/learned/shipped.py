"""Traffic networks that come with the package: names for `--sim.traffic` without any training."""

from __future__ import annotations

from pathlib import Path

NETWORKS = Path(__file__).resolve().parent / "networks"


def cloned() -> Path:
    """Cars of a network that imitates moderate and aggressive drivers."""
    return NETWORKS / "cloned"


def rift() -> Path:
    """Cars of that network, fine-tuned by RIFT to drive assertively."""
    return NETWORKS / "rift"


def self_play() -> Path:
    """Cars of a network that learned among its like, without demonstrations."""
    return NETWORKS / "self-play"
