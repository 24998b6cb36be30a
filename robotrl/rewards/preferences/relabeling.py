"""Datasets with the rewards of learned preferences in the place of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.datasets.merging import copy_episodes, own_columns, stated_specs
from robotrl.datasets.reader import Dataset
from robotrl.datasets.writer import DatasetWriter
from robotrl.errors import ConfigError
from robotrl.rewards.preferences.ensemble import LearnedPreferences
from robotrl.rewards.preferences.segments import dataset_pool
from robotrl.utils.progress import track


def relabeled_rewards(
    dataset: Dataset, learned: LearnedPreferences, pessimism: float, offset: float
) -> NDArray[np.float32]:
    """Rewards (F,) of the steps of a dataset by learned preferences.

    Raises:
        ConfigError: the dataset lacks an observation that they read, or has it in another form.
    """
    specs, _ = stated_specs(dataset)
    for key, spec in learned.ensemble.observation_spec.items():
        if key not in specs or (specs[key].shape, specs[key].names) != (spec.shape, spec.names):
            has = "not there" if key not in specs else f"{specs[key].shape} of {', '.join(specs[key].names)}"
            raise ConfigError(
                f"the preferences were trained on observation {key!r}, {spec.shape} of {', '.join(spec.names)}: in"
                f" dataset {dataset.root} it is {has}"
            )
    pool = dataset_pool(dataset, list(learned.ensemble.observation_spec))
    return (learned.rewards(pool.obs, pool.action, pessimism) + offset).numpy().astype(np.float32)


def write_relabeled(dataset: Dataset, rewards: NDArray[np.float32], out: Path, note: dict[str, Any]) -> None:
    """Write a dataset with other rewards; all else stays as it is.

    Args:
        dataset: verified, without videos.
        rewards: (F,).
        out: directory of the new dataset.
        note: JSON values on the new rewards, for the provenance.

    Raises:
        DataError: it states no specs, or the disk is full.
    """
    specs, action = stated_specs(dataset)
    with (
        DatasetWriter(
            out,
            fps=round(dataset.fps),
            observation_spec=specs,
            action_spec=action,
            robot_type=dataset.robot_type,
            provenance={**dataset.provenance, "relabeled": note},
        ) as writer,
        track(dataset.num_episodes, "writing", "episodes") as bar,
    ):
        copy_episodes(dataset, writer, own_columns(dataset), rewards, bar.advance)
        writer.finish()
