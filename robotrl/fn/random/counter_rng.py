"""Counter-based uniform numbers: a pure function from (seed, index, stream) to [0, 1), for whole arrays.

A start state that depends only on its ID is the same in every process, needs no stored generator and can be sampled for
any subset of envs in one call. The mixer is the finalizer of SplitMix64 (Steele, Lea and Flood 2014).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def among(seed: int, index: NDArray[np.int64], ids: range) -> NDArray[np.int64]:
    """IDs (n,) sampled uniformly from a range, by the indices `index` (n,) of the draws; see `uniform`."""
    return ids.start + (uniform(seed, index, 1)[:, 0] * len(ids)).astype(np.int64)


def uniform(seed: int, index: NDArray[np.int64], streams: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1).

    Args:
        seed: any integer; equal seeds give equal numbers.
        index: (n,) indices of the draws, e.g. state IDs.
        streams: number of independent numbers per index.

    Returns:
        (n, streams).
    """
    with np.errstate(over="ignore"):
        key = _mix(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64) + _GAMMA)
        rows = _mix(key + np.asarray(index).astype(np.uint64) * _GAMMA)
        columns = np.arange(1, streams + 1, dtype=np.uint64) * _GAMMA
        bits = _mix(rows[:, None] + columns[None, :])
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
