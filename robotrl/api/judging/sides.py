"""Sides of a verdict: one policy, or the same training with several seeds."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from robotrl.api.evaluation import refuse_dataset
from robotrl.errors import ConfigError


class Side(NamedTuple):
    """One side of a verdict."""

    path: Path
    """Path as given."""
    policies: tuple[Path, ...]
    """A run, checkpoint or bundle for each seed."""


def read_side(path: Path) -> Side:
    """The side at a path: a run, checkpoint or bundle, or a folder of runs `seed-N` as `--seeds` makes them.

    Raises:
        ConfigError: it is a dataset.
        DataError: nothing readable is there.
    """
    seeds = sorted(path.glob("seed-[0-9]*"), key=lambda found: int(found.name[5:])) if path.is_dir() else []
    policies = tuple(seeds) or (path,)
    for policy in policies:
        refuse_dataset(policy)
    return Side(path, policies)


def check_pairs(baseline: Side, candidate: Side) -> None:
    """Check that each policy of the candidate has one of the baseline beside it.

    Raises:
        ConfigError: the baseline has several policies, and not as many as the candidate.
    """
    had, has = len(baseline.policies), len(candidate.policies)
    if had not in (1, has):
        raise ConfigError(
            f"{baseline.path} has {had} seeds and {candidate.path} has {has}: expected as many, or one baseline for all"
        )
