"""Exact state of a core, as named arrays: what all cores hold a state to before they take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError


def check_state(state: Mapping[str, NDArray[Any]], present: Mapping[str, NDArray[Any]]) -> None:
    """Hold a state that is to be restored to the one that a core is in.

    Args:
        state: what is to be restored.
        present: what the core's `get_state` gives; the length of its "queue" is free.

    Raises:
        ConfigError: an array is missing, or has another shape.
    """
    for key, array in present.items():
        if key not in state:
            raise ConfigError(f"state has no {key!r}: expected {', '.join(present)}")
        if key != "queue" and np.shape(state[key]) != array.shape:
            raise ConfigError(
                f"state {key!r} has shape {np.shape(state[key])}: expected {array.shape}, of this sim and number of"
                " envs"
            )
