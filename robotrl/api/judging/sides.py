"""Sides of a verdict: one policy, or the same training with several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from robotrl.api.evaluation import refuse_dataset, run_of
from robotrl.errors import ConfigError
from robotrl.registry import sim_options
from robotrl.spec.sim_options import changed_fields


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


def notes_on_training(sim: str, options: Mapping[str, Any], sides: Sequence[Side]) -> list[str]:
    """A sentence for each policy that was trained on another sim, or with other options of it, than it is judged on."""
    out: list[str] = []
    here = sim_options(sim, options)
    for path in (path for side in sides for path in side.policies):
        run = run_of(path)
        trained: Mapping[str, Any] = {} if run is None else run.config.get("sim", {})
        if trained.get("name", sim) != sim:
            out.append(f"{path} was trained on {trained['name']}, and is judged on {sim}")
            continue
        had = sim_options(sim, trained.get("options")) if trained else here
        if other := sorted(changed_fields(had, here)):
            out.append(f"{path} was trained with other options of the sim than it is judged with: {', '.join(other)}")
    return out


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
