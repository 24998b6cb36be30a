"""Start ids: how the starts of a sim are numbered, split and drawn, alike for every sim whose starts have numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, unknown
from robotrl.fn import counter
from robotrl.spec import Split

Ids = NDArray[np.int64]

SPLITS: dict[Split, range] = {
    "train": range(0, 1 << 30),
    "val": range(1 << 30, (1 << 30) + (1 << 20)),
    "test": range((1 << 30) + (1 << 20), (1 << 30) + (1 << 21)),
}
"""Training draws from the first; the other two are held out, `val` for choosing, `test` for the verdict."""


def ids_of(split: Split) -> range:
    """Start ids of a split.

    Raises:
        ConfigError: unknown split.
    """
    if split not in SPLITS:
        raise unknown("split", str(split), SPLITS)
    return SPLITS[split]


def queue_of(ids: Any) -> list[int]:
    """Start ids to be taken in this order, checked.

    Raises:
        ConfigError: an id outside all splits.
    """
    end = SPLITS["test"].stop
    for i in ids:
        if not 0 <= int(i) < end:
            raise ConfigError(f"state id {int(i)} is out of range: expected 0 to {end - 1}")
    return [int(i) for i in ids]


def queue_for_all(ids: Any, num_envs: int) -> list[int]:
    """The reset option "state_ids", one start id for each env, as a queue.

    Raises:
        ConfigError: the wrong shape, or an id outside all splits.
    """
    array = np.asarray(ids, np.int64)
    if array.shape != (num_envs,):
        raise ConfigError(f"state_ids has shape {array.shape}: expected ({num_envs},), one id for each env")
    return queue_of(array)


def drawn(seed: int, first: int, count: int) -> Ids:
    """Training starts (count,) number `first` and following of the endless draw that belongs to a seed."""
    draws = counter.uniform(seed, np.arange(first, first + count), 1)[:, 0]
    return (draws * len(SPLITS["train"])).astype(np.int64)
