"""Action chunks for behavior cloning: the observation at t, and the actions t to t + H - 1 of the same episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from robotrl.datasets.layout import ACTION, observation_key
from robotrl.datasets.reader import Dataset
from robotrl.errors import ConfigError, unknown


class ChunkIndices(NamedTuple):
    """Frame indices of the chunk that starts at each frame."""

    frame: np.ndarray
    """(F, H) int64 frame indices; past an episode's end, its last frame is repeated."""
    valid: np.ndarray
    """(F, H) bool: False past the episode's end."""


class ChunkData(NamedTuple):
    """Observations and action chunks of all frames; index the first axis to get a minibatch."""

    obs: dict[str, np.ndarray]
    """Observations by the sim's keys: (F, D) float32 each, and images (F, h, w, channels) uint8."""
    chunks: np.ndarray
    """(F, H, A) float32; the last action is repeated where not valid."""
    valid: np.ndarray
    """(F, H) bool: False past the episode's end; mask such elements out of the loss."""


def chunk_indices(offsets: np.ndarray, horizon: int) -> ChunkIndices:
    """Indices of chunks of `horizon` frames that start at every frame; none crosses an episode's end.

    Args:
        offsets: (E + 1,) first frame of each episode, and the number of frames.
        horizon: H, 1 or more.

    Raises:
        ConfigError: `horizon` is below 1, or `offsets` does not rise from 0.
    """
    if horizon < 1:
        raise ConfigError(f"horizon is {horizon!r}: expected 1 or more")
    starts = np.asarray(offsets, np.int64)
    lengths = np.diff(starts)
    if len(starts) < 2 or starts[0] != 0 or (lengths < 1).any():
        raise ConfigError(f"offsets is {starts.tolist()}: expected to rise from 0, one entry more than episodes")
    last = np.repeat(starts[1:] - 1, lengths)[:, None]
    index = np.arange(starts[-1])[:, None] + np.arange(horizon)
    return ChunkIndices(np.minimum(index, last), index <= last)


def load_chunks(dataset: Dataset, obs_keys: Sequence[str], horizon: int) -> ChunkData:
    """Load observations and action chunks of a dataset.

    Args:
        dataset: a dataset from `read_dataset`.
        obs_keys: the sim's observation keys, e.g. ["state"].
        horizon: H, 1 or more.

    Raises:
        ConfigError: the dataset has no such observation, or `horizon` is below 1.
    """
    known = [name.removeprefix("observation.") for name in dataset.features if name.startswith("observation.")]
    obs: dict[str, np.ndarray] = {}
    for key in obs_keys:
        if key not in known:
            raise unknown("observation", key, known)
        obs[key] = _array(dataset.frames(observation_key(key)))
    frame, valid = chunk_indices(dataset.offsets, horizon)
    return ChunkData(obs, _matrix(dataset.frames(ACTION))[frame], valid)


def _array(values: np.ndarray) -> np.ndarray:
    return values if values.ndim > 2 else _matrix(values)


def _matrix(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.reshape(len(values), -1), np.float32)
