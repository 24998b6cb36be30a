"""One cell of the table of rewards in words: `python -m benchmarks.rewards.cell METHOD SEED OUT`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.rewards import guidance, language, policies, preferences, scores, service
from benchmarks.rewards.bench import ARMS, BASELINES, CLIP, GUIDANCE, LANGUAGE, LONG_ARMS, PREFERENCES, SERVICE
from robotrl.errors import unknown
from robotrl.utils.files import dump_json, replace_file

CELLS: dict[str, Callable[[str, int, Path, Path], dict[str, Any]]] = {
    SERVICE: service.run,
    CLIP: scores.run,
    **dict.fromkeys((*ARMS, *BASELINES, *LONG_ARMS), policies.run),
    LANGUAGE: language.run,
    **dict.fromkeys(GUIDANCE, lambda method, seed, out, work: guidance.run(method, seed, out)),
    **dict.fromkeys(PREFERENCES, lambda method, seed, out, work: preferences.run(method, seed, out)),
}
"""Functions of method, seed, the cell's folder and the table's folder."""


def main(method: str, seed: int, out: Path) -> None:
    """Run one cell in this process.

    Raises:
        ConfigError: the method is unknown.
    """
    if method not in CELLS:
        raise unknown("method", method, CELLS)
    found = CELLS[method](method, seed, out, out.parents[1])  # WORK/attempt-KEY/out
    replace_file(out / "result.json", dump_json(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]).resolve())
