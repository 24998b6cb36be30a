"""Demonstrations as replay steps."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from robotrl.datasets.agreement.agree import agree
from robotrl.datasets.agreement.flags import flags
from robotrl.datasets.layout import ACTION, observation_key
from robotrl.datasets.reader import Dataset
from robotrl.replay.layout import ReplayLayout
from robotrl.replay.types import StepRecord

REWARD, DONE, TRUNCATED = "next.reward", "next.done", "next.truncated"


def read_demos(dataset: Dataset, layout: ReplayLayout, accept: bool = False) -> StepRecord:
    """All frames of a dataset, in order, as "demo" steps.

    An episode's last frame is truncated if `next.truncated` is set or `next.done` is not; otherwise it is terminated. A
    dataset does not hold the observation after the last frame. After a truncation, where it is needed for
    bootstrapping, the frame's own observation is used, and a warning says how often.

    Args:
        dataset: with `next.reward` and `next.done`.
        layout: layout of the replay buffer.
        accept: whether the user has accepted doubtful data, or was already warned.

    Raises:
        ConfigError: a column is missing, or the dataset contradicts the replay's specs; see `agree`.
        DataError: the dataset is doubtful, or a flag is neither 0 nor 1.
    """
    dataset = agree(dataset, layout.observation_spec, layout.action_spec, layout.control_dt_s, accept=accept)
    last = dataset.offsets[1:] - 1
    done = flags(dataset, DONE)[last]
    cut = flags(dataset, TRUNCATED)[last] if TRUNCATED in dataset.features else ~done
    terminated, truncated = (np.zeros(dataset.num_frames, np.bool_) for _ in range(2))
    truncated[last] = cut | ~done
    terminated[last] = ~truncated[last]
    if truncated.any():
        warnings.warn(
            f"dataset {dataset.root}: {int(truncated.sum())} of {dataset.num_episodes} episodes were cut off: "
            "they are valued by their last observation but one, the last is not recorded",
            stacklevel=3,
        )
    obs = {
        key: torch.from_numpy(_shaped(dataset.frames(observation_key(key)), spec.shape).astype(spec.dtype, copy=False))
        for key, spec in layout.observation_spec.items()
    }
    action = _shaped(dataset.frames(ACTION), layout.action_spec.shape).astype(np.float32)
    ids = torch.from_numpy(last)
    return StepRecord(
        obs,
        torch.from_numpy(action),
        torch.from_numpy(dataset.frames(REWARD).astype(np.float32)),
        torch.from_numpy(terminated),
        torch.from_numpy(truncated),
        {key: values[ids] for key, values in obs.items()},
        ids,
        "demo",
    )


def _shaped(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return values.reshape(len(values), *shape)
