"""What a GPU gives: tokens, updates, the driving world, and whether memory is what its estimate says.

Each part is a cell, so that one that a card is too small for leaves the others alone; all need a CUDA GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from robotrl.benchmarks.cells import OUT, Cell, CellResult
from robotrl.benchmarks.figures import Figure

DESCRIPTION = "on a CUDA GPU: tokens against transformers.generate, updates, the driving world, memory and its estimate"
PEERS: dict[str, str] = {}
REVISION = 1


class Held(NamedTuple):
    """A policy of published size, and how it learns."""

    policy: str
    """As `robotrl memory` knows it."""
    rows: int
    """Whose gradient is taken at once."""
    rank: int
    """Of adapters on a base in 16 bits; 0 lets all learn."""
    steps: int
    """Denoising steps that learn at once."""


MEMORY = {
    "openvla_card_24": Held("openvla", 4, 32, 1),
    "openvla_card_80": Held("openvla", 16, 32, 1),
    "pi0_card_24": Held("pi0", 4, 32, 1),
    "smolvla_whole": Held("smolvla", 16, 0, 1),
}
"""The first three as profiles have it."""
UPDATES = ("reinflow", "dppo")
PARTS = ("decode", *(f"updates_{name}" for name in UPDATES), "drive", *(f"memory_{name}" for name in MEMORY))


def cells(quick: bool) -> list[Cell]:
    """The table: every part once; `quick` leaves out the policies of published size."""
    parts = [part for part in PARTS if not quick or not part.startswith("memory")]
    return [
        Cell(part, "cuda", 0, ("python", "-m", "robotrl.benchmarks.gpu_cell", part, OUT), "result.json", REVISION)
        for part in parts
    ]


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """The figures of all parts."""
    return {key: Figure.from_json(value) for cell in results for key, value in cell["result"].items()}
