"""Trends of a noisy series without a model of its noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]


def kendall_trend(values: Reals) -> float:
    """Kendall's rank correlation of a series with time (tau-a; Mann 1945), -1 to 1.

    The share of pairs that rise less that of pairs that fall; ties are neither. Of n independent values it has a
    deviation of sqrt(2 (2 n + 5) / (9 n (n - 1))): 0.16 at n = 20.

    Args:
        values: (n,), 2 or more.
    """
    later = np.triu_indices(len(values), 1)
    return float(np.sign(values[later[1]] - values[later[0]]).mean())


def last_blocks(values: Reals, count: int, size: int) -> Reals:
    """Means (count,) of the last `count` blocks of `size` values each.

    Args:
        values: (n,), at least `count` times `size`.
        count: number of blocks.
        size: values in a block.
    """
    return values[len(values) - count * size :].reshape(count, size).mean(1)
