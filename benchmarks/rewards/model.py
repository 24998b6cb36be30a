"""The small models that all cells of a seed use, by the documented command, and sentences about driving."""

from __future__ import annotations

import hashlib
from pathlib import Path

from benchmarks.rewards.bench import SEEN, TABLE_SEEN
from benchmarks.rewards.bench import SIM as DRIVE
from robotrl.cli.commands.rewards.clip import ClipArgs
from robotrl.cli.main import main
from robotrl.errors import RobotrlError
from robotrl.rewards.vlm.small_clip import SmallClipCfg
from robotrl.sims.driving.captions import COLLISION

CLEAR, *DANGERS = COLLISION.classes
GOOD = CLEAR.test
"""Sentences that the model was not trained on, of a clear road."""
BAD = tuple(sentence for one in DANGERS for sentence in one.test[:1])
"""One sentence for each direction that danger comes from."""
BASELINE = "the road"
"""Sentence of VLM-RM's baseline."""
ACTIONS = "--actions"


def model_folder(work: Path, seed: int, *flags: str, sim: str = DRIVE) -> Path:
    """Folder of the model of a seed: cells of one table share it, as long as the command's defaults are the same.

    Args:
        work: folder of the table's work.
        seed: seed of the model.
        flags: further flags of the command that trains it.
        sim: name of the sim.
    """
    settings = repr(
        (ClipArgs("", work).__dict__ | {"out": ""}, SmallClipCfg(), flags, SEEN if sim == DRIVE else TABLE_SEEN)
    )
    name = "clip" if sim == DRIVE else f"clip-{sim.replace('/', '-')}"
    return work / "models" / f"{name}-{seed}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"


def trained(path: Path, seed: int, *flags: str, sim: str = DRIVE) -> Path:
    """Train a model, unless it is there; returns `path`.

    Raises:
        RobotrlError: the command failed.
    """
    if not path.exists():
        code = main(["reward", "train", "clip", sim, "--out", str(path), "--seed", str(seed), *flags])
        if code:
            raise RobotrlError(f"robotrl reward train clip ended with code {code}")
    return path
