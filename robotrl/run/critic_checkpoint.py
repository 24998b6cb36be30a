"""Storage of a run's critic beside its checkpoints, for later runs that start from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robotrl.errors import DataError
from robotrl.run.checkpoint import MANIFEST, Checkpoint, read_checkpoint, write_checkpoint

CRITIC = "critic"
"""Directory of a run with the checkpoint of its critic, and that checkpoint's kind."""


def critic_directory(path: Path) -> Path:
    """Directory of the critic of a run, or the directory itself if it is a critic's.

    Raises:
        DataError: there is none.
    """
    if (path / MANIFEST).is_file():
        return path
    if (path / CRITIC / MANIFEST).is_file():
        return path / CRITIC
    if not path.is_dir():
        raise DataError(f"critic {path} does not exist: expected a run whose algorithm keeps its critic, such as pa-rl")
    raise DataError(f"run {path} has no critic: expected one of an algorithm that keeps its critic, such as pa-rl")


def write_critic(run: Path, tree: Any, step: int) -> Path:
    """Write the critic of a run, in place of an earlier one; see `write_checkpoint`."""
    return write_checkpoint(run / CRITIC, tree, step=step, kind=CRITIC)


def read_critic(path: Path) -> Checkpoint:
    """Read the critic of a run, every byte verified.

    Raises:
        DataError: there is none, it is damaged, or the directory holds something else.
    """
    found = read_checkpoint(critic_directory(path))
    if found.kind != CRITIC:
        raise DataError(f"{found.path} is a checkpoint of kind {found.kind!r}: expected a critic's")
    return found
