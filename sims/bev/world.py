"""The arrays that kernels work on: all maps end to end, and the state of all envs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Records = Any
"""A record array; numba knows its fields, a type checker does not."""


class Maps(NamedTuple):
    """Records of all maps (see `tables`), references counting from the beginning of all."""

    maps: Records
    lanes: Records
    points: Records
    conflicts: Records
    crossings: Records
    walks: Records
    signals: Records
    entries: NDArray[np.int32]
    parked: Records
    routes: Records
    route_points: Records
    tiles: NDArray[np.uint8]
    segments: Records
    nearest: NDArray[np.int32]


class WorldState(NamedTuple):
    """State of N envs with A road users each; slot 0 is the ego."""

    agents: Records
    """(N, A) AGENT."""
    egos: Records
    """(N,) EGO."""
    episodes: Records
    """(N,) EPISODE."""
    judges: Records
    """(N,) JUDGE."""
    order: NDArray[np.int32]
    """(N, A) slots by lane and way along it."""
    places: NDArray[np.float64]
    """(N, A) of each slot in that order."""
    claims: Records
    """(N, J) CLAIM: scratch, one for each lane in a junction."""
    walking: NDArray[np.int32]
    """(N, C) scratch: 1 where somebody is on a crosswalk."""
