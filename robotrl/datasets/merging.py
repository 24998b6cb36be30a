"""Datasets written anew from those that are there: several as one, or one with other rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.datasets.layout import ACTION, observation_key
from robotrl.datasets.reader import Dataset
from robotrl.datasets.writer import DatasetWriter
from robotrl.errors import CapabilityError, ConfigError, DataError, short
from robotrl.spec import Spec

LAYOUT_COLUMNS = {"length", "success", "tasks", "episode_index", "dataset_from_index", "dataset_to_index"}
"""Columns of the episodes table that the writer fills; so it does all that have a slash."""


class Merged(NamedTuple):
    """A dataset that was merged."""

    path: Path
    episodes: int
    frames: int
    left_out: tuple[str, ...]
    """Columns of the episodes table that not all datasets have."""
    differing: tuple[str, ...]
    """Parts of the provenance in which they differ, such as `sim_options`, which may change the reward."""


def merge(parts: Sequence[Dataset], out: Path, progress: Callable[[], None] | None = None) -> Merged:
    """Write the episodes of several datasets of one robot as one dataset, in the order given.

    The provenance keeps what all state alike, and lists all of them under `merged`.

    Args:
        parts: two or more, verified, without videos.
        out: directory of the new dataset; absent or empty.
        progress: called after each episode.

    Raises:
        CapabilityError: one of them holds videos.
        ConfigError: fewer than two, one of them twice, or they differ in rate, robot, observations or action.
        DataError: one of them states no specs, or the disk is full.
    """
    check_parts(parts)
    first = parts[0]
    specs, action = stated_specs(first)
    columns = [own_columns(part) for part in parts]
    common = _common_columns(parts)
    stated = [part.provenance for part in parts]
    alike = {key: value for key, value in stated[0].items() if all(one.get(key) == value for one in stated)}
    listed = [{"name": part.root.name, "episodes": part.num_episodes, **part.provenance} for part in parts]
    with DatasetWriter(
        out,
        fps=round(first.fps),
        observation_spec=specs,
        action_spec=action,
        robot_type=first.robot_type,
        provenance={**alike, "merged": listed},
    ) as writer:
        for part in parts:
            copy_episodes(part, writer, common, progress=progress)
        writer.finish()
    left_out = sorted({name for some in columns for name in some} - set(common))
    differing = sorted({key for one in stated for key in one} - set(alike))
    episodes, frames = sum(x.num_episodes for x in parts), sum(x.num_frames for x in parts)
    return Merged(out, episodes, frames, tuple(left_out), tuple(differing))


def copy_episodes(
    dataset: Dataset,
    writer: DatasetWriter,
    columns: Sequence[str],
    rewards: NDArray[np.float32] | None = None,
    progress: Callable[[], None] | None = None,
) -> None:
    """Add all episodes of a dataset to another one.

    Args:
        dataset: verified, without videos.
        writer: writer of the other one, with the same specs.
        columns: names of columns of the episodes table that are kept, of `own_columns`.
        rewards: (F,) rewards instead of its own.
        progress: called after each episode.

    Raises:
        ConfigError: a kept column is of another kind in the other one.
        DataError: the disk is full.
    """
    specs, _ = stated_specs(dataset)
    task = dataset.frames("task_index")
    given = dataset.frames("next.reward").reshape(-1) if rewards is None else rewards
    for episode in range(dataset.num_episodes):
        rows = slice(int(dataset.offsets[episode]), int(dataset.offsets[episode + 1]))
        writer.add_episode(
            {key: dataset.frames(observation_key(key))[rows] for key in specs},
            dataset.frames(ACTION)[rows],
            given[rows],
            success=bool(dataset.episodes["success"][episode]),
            truncated=bool(dataset.frames("next.truncated")[rows][-1]),
            task=dataset.tasks[int(task[rows][0])],
            extra={name: _plain(dataset.episodes[name][episode]) for name in columns},
        )
        if progress is not None:
            progress()


def own_columns(dataset: Dataset) -> list[str]:
    """Columns of the episodes table that are not the layout's, such as `state_id` and `mode`."""
    return [name for name in dataset.episodes if name not in LAYOUT_COLUMNS and "/" not in name]


def stated_specs(dataset: Dataset) -> tuple[dict[str, Spec], Spec]:
    """Specs of the observations and of the action of a dataset.

    Raises:
        DataError: the dataset states none.
    """
    specs, action = dataset.observation_spec, dataset.action_spec
    if specs is None or action is None:
        raise DataError(f"dataset {dataset.root} does not state its observations and units: expected one of robotrl's")
    return specs, action


def check_copied(dataset: Dataset) -> None:
    """Check that a dataset can be written anew without a loss.

    Raises:
        CapabilityError: it holds videos, which would be encoded a second time.
    """
    videos = [name for name, feature in dataset.features.items() if feature.dtype == "video"]
    if videos:
        raise CapabilityError(
            f"dataset {dataset.root} holds {', '.join(videos)} as videos, which would be encoded a second time:"
            " expected pictures as numbers (robotrl demos --pictures numbers)"
        )


def check_parts(parts: Sequence[Dataset]) -> None:
    """Check that datasets can be merged.

    Raises:
        CapabilityError, ConfigError, DataError: see `merge`.
    """
    if len(parts) < 2:
        raise ConfigError(f"{len(parts)} dataset to merge: expected two or more")
    first = parts[0]
    for number, part in enumerate(parts):
        check_copied(part)
        if part.root.resolve() in [other.root.resolve() for other in parts[:number]]:
            raise ConfigError(f"dataset {part.root} is named twice: expected each once")
        _check_alike(part, first)
    for name in _common_columns(parts):
        wanted = _type_name(first.episodes[name])
        for part in parts:
            if (found := _type_name(part.episodes[name])) != wanted:
                raise ConfigError(
                    f"dataset {part.root}: column {name!r} of its episodes is {found}: expected {wanted} as of"
                    f" {first.root}"
                )


def _common_columns(parts: Sequence[Dataset]) -> list[str]:
    """Columns of the episodes table that all have, of `own_columns`."""
    return [name for name in own_columns(parts[0]) if all(name in own_columns(part) for part in parts)]


def _check_alike(part: Dataset, first: Dataset) -> None:
    """Check that a dataset is of the same robot as the first one.

    Raises:
        ConfigError: it is not.
        DataError: it states no specs.
    """
    specs, action = stated_specs(part)
    wanted, wanted_action = stated_specs(first)
    facts: list[tuple[str, Any, Any]] = [
        ("rate, Hz,", part.fps, first.fps),
        ("robot type", part.robot_type, first.robot_type),
        ("observations", sorted(specs), sorted(wanted)),
        *((f"observation {key!r}", specs.get(key), spec) for key, spec in wanted.items()),
        ("action", action, wanted_action),
    ]
    for name, found, expected in facts:
        if found != expected:
            where, differing = name, (found, expected)
            if isinstance(found, Spec) and isinstance(expected, Spec):
                field = next(key for key, value in vars(found).items() if value != vars(expected)[key])
                where, differing = f"{name}, {field},", (vars(found)[field], vars(expected)[field])
            raise ConfigError(
                f"dataset {part.root}: {where} {short(repr(differing[0]))}: expected {short(repr(differing[1]))} as of"
                f" {first.root}"
            )


def _type_name(column: np.ndarray) -> str:
    return "text" if column.dtype.kind in "OU" else column.dtype.name


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
