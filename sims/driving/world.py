"""Arrays that kernels work on: all maps, concatenated, and the state of all envs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Records = Any
"""Record array; numba knows its fields, type checkers do not."""


class Maps(NamedTuple):
    """Records of all maps (see `tables`); references are indices into the concatenated arrays."""

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
    heights: NDArray[np.float32]
    """Height of each of `points`, m."""
    blocks: NDArray[np.int32]
    """Surface in levels of maps that have such: first layer and number of layers of each block; see `roads.levels`."""
    layer_bits: NDArray[np.uint8]
    layer_heights: NDArray[np.int16]
    spots: Records
    """Places where traffic may appear around the ego, cell by cell, on large maps; see `roads.spots`."""
    cell_spots: NDArray[np.int32]
    """First spot of each cell of the map's grid, counted within the map."""


class WorldState(NamedTuple):
    """State of N envs with A road users each; slot 0 is the ego."""

    agents: Records
    """(N, A) road users, `tables.AGENT`."""
    egos: Records
    """(N,) ego states, `tables.EGO`."""
    episodes: Records
    """(N,) episode states, `tables.EPISODE`."""
    judges: Records
    """(N,) states of reward and scores, `tables.JUDGE`."""
    order: NDArray[np.int32]
    """(N, A) slots sorted by lane and position along it."""
    places: NDArray[np.float64]
    """(N, A) sort key of each slot in that order."""
    claims: Records
    """(N, J) scratch, `tables.CLAIM`: one for each junction lane."""
    walking: NDArray[np.int32]
    """(N, C) scratch: 1 if a pedestrian is on the crosswalk."""
    localized: Records
    """(N,) egos as they take themselves to be, `tables.EGO`; (0,) without errors of localization. Set are x, y, yaw,
    cos, sin, v, index, progress, d, psi, lane_d."""
    populations: Records
    """Driving styles of traffic, `tables.POPULATION`; the first is moderate. They do not change."""
    networks: NDArray[np.float32]
    """(K, P) flat parameters of the networks that drive populations; (0, 0) without."""
    car_input: NDArray[np.float32]
    """(N, I) scratch: input of a network; (0, 0) without networks."""
    car_scratch: NDArray[np.float32]
    """(N, S) scratch: hidden layers and scores of a network; (0, 0) without networks."""


RECORDS = ("agents", "egos", "episodes", "judges")
"""Fields of `WorldState` that determine an episode's further course; the others follow from them, or are scratch."""
