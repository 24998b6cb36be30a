"""Segments of behavior: short runs of steps, from a dataset or from the steps of a training run, compared in pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.datasets.layout import ACTION, observation_key
from robotrl.datasets.reader import Dataset
from robotrl.errors import ConfigError
from robotrl.rewards.scoring.cache import KEY_BYTES
from robotrl.spec import Arrays

Ints = NDArray[np.int64]


class StepPool(NamedTuple):
    """F steps of episodes in the order of time, from which segments are taken."""

    obs: Arrays
    """(F, ...) each: observations before the steps."""
    action: Tensor
    """(F, A) in the sim's units."""
    reward: Tensor
    """(F,) the sim's own; 0 where a dataset has none."""
    end: Tensor
    """(F,) int64: one past the last step of the episode that a step belongs to."""
    terminated: Tensor
    """(F,) bool: the episode that a step belongs to was ended by its task, so that nothing follows `end`."""


class Segments(NamedTuple):
    """M segments of L steps."""

    obs: Arrays
    """(M, L, ...) each: observations before the steps; the last valid one is repeated where not valid."""
    action: Tensor
    """(M, L, A)."""
    valid: Tensor
    """(M, L) bool: False after the end of the task."""
    reward: Tensor
    """(M, L) the sim's own, 0 where not valid."""


def dataset_pool(dataset: Dataset, keys: Sequence[str]) -> StepPool:
    """The steps of a dataset.

    Args:
        dataset: with the column `next.truncated`, or each episode counts as cut off.
        keys: observation arrays to keep.
    """
    lengths = np.diff(dataset.offsets)
    end = np.repeat(dataset.offsets[1:], lengths)
    cut = np.ones(dataset.num_frames, bool)
    if "next.truncated" in dataset.features:
        cut = dataset.frames("next.truncated").reshape(-1).astype(bool)
    reward = np.zeros(dataset.num_frames, np.float32)
    if "next.reward" in dataset.features:
        reward = dataset.frames("next.reward").reshape(-1).astype(np.float32)
    obs = {key: torch.from_numpy(dataset.frames(observation_key(key))) for key in keys}
    rows = {key: x.reshape(len(x), -1) if x.ndim == 1 else x for key, x in obs.items()}
    return StepPool(
        rows,
        torch.from_numpy(dataset.frames(ACTION).reshape(dataset.num_frames, -1)),
        torch.from_numpy(reward),
        torch.from_numpy(end.astype(np.int64)),
        torch.from_numpy(~cut[end - 1]),
    )


def possible_starts(pool: StepPool, length: int) -> Ints:
    """Steps (S,) at which a segment may start: it is complete, or at least half of it lies before the task's end.

    Segments that run past the end of the task tell what an end is worth: without them, a constant added to each step's
    reward would change no preference. Of an episode that was cut off nobody knows what followed. The step after a
    complete segment is known, too.

    Args:
        pool: the steps.
        length: L.
    """
    left = pool.end.numpy() - np.arange(len(pool.end))
    return np.flatnonzero(np.where(pool.terminated.numpy(), left >= (length + 1) // 2, left > length)).astype(np.int64)


def gather(pool: StepPool, starts: Ints, length: int) -> Segments:
    """Segments (M,) of `length` steps that begin at the steps `starts` (M,)."""
    rows, valid = _rows(pool, torch.from_numpy(starts), length)
    reward = torch.where(valid, pool.reward[rows], 0.0)
    return Segments({key: x[rows] for key, x in pool.obs.items()}, pool.action[rows], valid, reward)


def _rows(pool: StepPool, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
    steps = starts[:, None] + torch.arange(length)
    end = pool.end[starts][:, None]
    return torch.minimum(steps, end - 1), steps < end


def after(pool: StepPool, starts: Ints, length: int) -> tuple[Tensor, Tensor]:
    """The step (M,) after each segment, and whether there is one, (M,) bool: not if the task ended in it."""
    steps, end = torch.from_numpy(starts) + length, pool.end[torch.from_numpy(starts)]
    return torch.minimum(steps, end - 1), steps < end


def segment_keys(segments: Segments) -> list[bytes]:
    """Hashes of the contents of segments, by which answers are kept."""
    arrays = [segments.obs[key] for key in sorted(segments.obs)] + [segments.action, segments.valid]
    columns = [np.ascontiguousarray(x.cpu().numpy()) for x in arrays]
    found: list[bytes] = []
    for row in range(len(segments.valid)):
        digest = hashlib.sha256(repr([x.shape[1:] for x in columns]).encode())
        for column in columns:
            digest.update(column[row].tobytes())
        found.append(digest.digest()[:KEY_BYTES])
    return found


def pair_key(first: bytes, second: bytes) -> tuple[bytes, bool]:
    """Key of a pair that does not depend on its order, and whether the order of the key is the other one."""
    swapped = second < first
    low, high = (second, first) if swapped else (first, second)
    return hashlib.sha256(low + high).digest()[:KEY_BYTES], swapped


def random_pairs(starts: Ints, count: int, length: int, generator: np.random.Generator) -> Ints:
    """Draw pairs (count, 2) of starts; the two of a pair do not overlap.

    Raises:
        ConfigError: there are too few steps for two segments.
    """
    if len(starts) < 2 or starts[-1] - starts[0] < length:
        raise ConfigError(
            f"labeler.length is {length}: expected less, since no two segments of so many steps are there that do not"
            " overlap"
        )
    pairs = np.zeros((0, 2), np.int64)
    while len(pairs) < count:
        drawn = starts[generator.integers(len(starts), size=(count, 2))]
        pairs = np.concatenate([pairs, drawn[np.abs(drawn[:, 0] - drawn[:, 1]) >= length]])
    return pairs[:count]
