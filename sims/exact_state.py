"""Validation of saved states before a core restores them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError


def check_state(state: Mapping[str, NDArray[Any]], present: Mapping[str, NDArray[Any]]) -> None:
    """Check that a saved state has the same arrays and shapes as the core's present state.

    Args:
        state: state to restore.
        present: result of the core's `get_state`; the length of "queue", or "PART/queue", may differ.

    Raises:
        ConfigError: an array is missing, or has another shape.
    """
    for key, array in present.items():
        if key not in state:
            raise ConfigError(f"state has no {key!r}: expected {', '.join(present)}")
        if key.rpartition("/")[2] != "queue" and np.shape(state[key]) != array.shape:
            raise ConfigError(
                f"state {key!r} has shape {np.shape(state[key])}: expected {array.shape}, of this sim and number of"
                " envs"
            )
