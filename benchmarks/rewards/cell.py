"""One cell of the table of rewards in words: `python -m benchmarks.rewards.cell METHOD SEED OUT`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.rewards import policies, preferences, scores, service
from benchmarks.rewards.bench import ARMS, CLIP, PREFERENCES, SERVICE
from robotrl.errors import unknown
from robotrl.utils.files import dump_json, replace_file

CELLS: dict[str, Callable[[str, int, Path], dict[str, Any]]] = {
    SERVICE: service.run,
    CLIP: scores.run,
    **dict.fromkeys(ARMS, policies.run),
    **dict.fromkeys(PREFERENCES, preferences.run),
}


def main(method: str, seed: int, out: Path) -> None:
    """Run one cell in this process.

    Raises:
        ConfigError: the method is unknown.
    """
    if method not in CELLS:
        raise unknown("method", method, CELLS)
    replace_file(out / "result.json", dump_json(CELLS[method](method, seed, out)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
