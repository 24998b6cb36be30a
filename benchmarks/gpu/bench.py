"""GPU measurements: decoding speed of action tokens, accuracy of the memory estimate, driving world, MuJoCo Warp.

Each measurement is a cell, so that one that needs a larger GPU does not affect the others; all need CUDA.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.kit.cells import OUT, Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head, table_row
from benchmarks.runner import number
from benchmarks.vla.bench import speed_rows

DESCRIPTION = (
    "on a CUDA GPU: tokens per second, memory against its estimate, driving world and MuJoCo against the processor"
)
PEERS: dict[str, str] = {}
REVISION = 1
DECODE, MEMORY, DRIVE, LEARN, MUJOCO = "decode", "memory_", "drive_", "learn_drive", "mujoco_"
"""Prefixes of the figures' names."""


class Held(NamedTuple):
    """A policy of published size with fine-tuning settings."""

    policy: str
    """Name in `robotrl memory`."""
    rows: int
    """Rows per backward pass."""
    rank: int
    """Rank of adapters on a bf16 base; 0 trains all weights."""


HELD = {
    "openvla_card_24": Held("openvla", 4, 32),
    "openvla_card_80": Held("openvla", 16, 32),
    "pi0_card_24": Held("pi0", 4, 32),
    "smolvla_whole": Held("smolvla", 16, 0),
}
"""The first three are as in the profiles."""
NAMES = (DECODE, *(MEMORY + name for name in HELD), f"{DRIVE}steps", LEARN, f"{MUJOCO}steps")
"""Names of the measurements."""


def cells(quick: bool) -> list[Cell]:
    """Cells of the table: every measurement once; `quick` leaves out the policies of published size."""
    return [
        Cell(name, "cuda", 0, ("python", "-m", "benchmarks.gpu.cell", name, OUT), "result.json", REVISION)
        for name in (NAMES[:1] if quick else NAMES)
    ]


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Figures of all cells."""
    return {key: Figure.from_json(value) for cell in results for key, value in cell["result"].items()}


def speeds(document: Mapping[str, Any]) -> str:
    """Markdown table: decoding speed, and the GPU."""
    return "\n".join([*speed_rows(_figures(document, DECODE)), "", _where(document, DECODE)])


def memories(document: Mapping[str, Any]) -> str:
    """Markdown table: measured and estimated memory of updates, and the GPU."""
    lines = table_head(("an update of", "GiB at its peak", "estimated"))
    for figure in _figures(document, MEMORY):
        lines.append(table_row((figure.note, number(figure.value), number(figure.peer_value))))
    return "\n".join([*lines, "", _where(document, MEMORY)])


def driving(document: Mapping[str, Any]) -> str:
    """Markdown table: the driving world on the GPU and on the processor of the same machine."""
    figures = (*_figures(document, DRIVE), *_figures(document, LEARN))
    return "\n".join([*_against("driving world", figures), "", _where(document, DRIVE)])


def mujoco(document: Mapping[str, Any]) -> str:
    """Markdown table: MuJoCo Warp on the GPU and the native engine on the processor of the same machine."""
    return "\n".join([*_against("MuJoCo", _figures(document, MUJOCO)), "", _where(document, MUJOCO)])


def _against(subject: str, figures: Sequence[Figure]) -> list[str]:
    lines = table_head((subject, "GPU", "processor", "times"))
    for figure in figures:
        peer = "" if figure.peer_value is None else f"{number(figure.peer_value)} ({figure.peer})"
        ratio = "" if figure.ratio is None else number(figure.ratio)
        if figure.ratio_low is not None and figure.ratio_high is not None:
            ratio += f" ({number(figure.ratio_low)} to {number(figure.ratio_high)})"
        unit = "" if figure.unit == "success" else f" {figure.unit}"
        lines.append(table_row((figure.note, f"{number(figure.value)}{unit}", peer, ratio)))
    return lines


def _figures(document: Mapping[str, Any], begin: str) -> list[Figure]:
    return [Figure.from_json(value) for key, value in document["figures"].items() if key.startswith(begin)]


def _where(document: Mapping[str, Any], begin: str) -> str:
    """GPUs and torch versions of the cells."""
    made = [cell for cell in document["cells"].values() if cell["method"].startswith(begin)]
    cards = sorted({gpu for cell in made for gpu in cell["machine"]["gpus"]})
    torches = sorted({cell["versions"]["torch"] for cell in made})
    return f"`robotrl bench gpu`, {document['date']}; {', '.join(cards)}, torch {', '.join(torches)}."


PARTS = {"decode": speeds, "memory": memories, "drive": driving, "mujoco": mujoco}
"""Tables by part name; see `benchmarks.readme`."""
