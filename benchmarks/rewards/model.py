"""The small model of the driving sim that all cells use, by the documented command, and its sentences."""

from __future__ import annotations

from pathlib import Path

from robotrl.cli.main import main
from robotrl.errors import RobotrlError
from robotrl.sims.bev.captions import COLLISION

CLEAR, *DANGERS = COLLISION.classes
GOOD = CLEAR.test
"""Sentences that the model was not trained on, of a clear road."""
BAD = tuple(sentence for one in DANGERS for sentence in one.test[:1])
"""One sentence for each direction that danger comes from."""


def trained(out: Path, seed: int, *flags: str) -> Path:
    """Directory of a model, trained there unless it is there.

    Raises:
        RobotrlError: the command failed.
    """
    path = out / "clip"
    if not path.exists():
        code = main(["reward", "train", "clip", "bev/drive", "--out", str(path), "--seed", str(seed), *flags])
        if code:
            raise RobotrlError(f"robotrl reward train clip ended with code {code}")
    return path
