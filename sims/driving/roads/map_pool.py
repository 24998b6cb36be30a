"""Map pool: all maps in use, concatenated for the kernels; a map is built at its first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.backend import Backend
from robotrl.sims.driving.roads.levels import LAYER_CELLS
from robotrl.sims.driving.roads.maps import CELL_M, GRID_M, RoadMap
from robotrl.sims.driving.world import Maps


class _GrowingArray:
    """Growable array with spare capacity."""

    def __init__(self, machine: Backend, dtype: Any) -> None:
        self._machine = machine
        self._array = machine.zeros(64, dtype)
        self.count = 0

    def add(self, rows: NDArray[Any]) -> int:
        """Append rows and return the index of the first."""
        first, self.count = self.count, self.count + len(rows)
        if self.count > len(self._array):
            grown = self._machine.zeros(max(self.count, 2 * len(self._array)), self._array.dtype)
            grown[:first] = self._array[:first]
            self._array = grown
        self._array[first : self.count] = rows
        return first

    def view(self) -> NDArray[Any]:
        """View of the contents; never empty, since a kernel may read before it checks."""
        return self._array[: max(self.count, 1)]


FIELDS = {
    "maps": tables.MAP,
    "lanes": tables.LANE,
    "points": tables.POINT,
    "conflicts": tables.CONFLICT,
    "crossings": tables.CROSSING,
    "walks": tables.WALK,
    "signals": tables.SIGNAL,
    "entries": np.int32,
    "parked": tables.PARKED,
    "routes": tables.ROUTE,
    "route_points": tables.ROUTE_POINT,
    "tiles": np.uint8,
    "segments": tables.SEGMENT,
    "nearest": np.int32,
    "heights": np.float32,
    "blocks": np.int32,
    "layer_bits": np.uint8,
    "layer_heights": np.int16,
    "spots": tables.SPOT,
    "cell_spots": np.int32,
}


class MapPool:
    """Maps by key, each built once.

    Args:
        machine: backend that owns the memory.
        build: builds the map of a key.
    """

    def __init__(self, machine: Backend, build: Callable[[tuple[str, int]], RoadMap]) -> None:
        self._build = build
        self._numbers: dict[tuple[str, int], int] = {}
        self._parts = {name: _GrowingArray(machine, dtype) for name, dtype in FIELDS.items()}
        self.names: list[str] = []
        self.junction_lanes = 1
        """Largest number of junction lanes of any map so far."""
        self.crosswalks = 1
        self.arrays = self._view()

    def number(self, key: tuple[str, int]) -> int:
        """Index of the map with a key, which is built if necessary."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = self._add(self._build(key))
            self.arrays = self._view()
        return found

    def _view(self) -> Maps:
        return Maps(**{name: part.view() for name, part in self._parts.items()})

    def _add(self, new: RoadMap) -> int:
        parts = self._parts
        base = {name: part.count for name, part in parts.items()}
        lanes = new.lanes.copy()
        lanes["first"] += base["points"]
        for name in ("left", "right", "beside_left", "beside_right", "next", "before", "origin"):
            lanes[name] = np.where(lanes[name] >= 0, lanes[name] + base["lanes"], -1)
        lanes["conflict"] += base["conflicts"]
        lanes["crossing"] += base["crossings"]
        conflicts = new.conflicts.copy()
        conflicts["other"] += base["lanes"]
        routes, route_points = new.routes.copy(), new.route_points.copy()
        routes["first"] += base["route_points"]
        route_points["lane"] += base["lanes"]
        nearest = np.where(new.nearest >= 0, new.nearest + base["segments"], -1)
        row = np.zeros(1, tables.MAP)
        for name, part, rows in (
            ("lane", "lanes", lanes),
            ("entry", "entries", new.entries),
            ("signal", "signals", new.signals),
            ("walk", "walks", new.walks),
            ("parked", "parked", new.parked),
            ("route", "routes", routes),
        ):
            row[name] = base[part]
            row[{"entry": "entries"}.get(name, name + "s")] = len(rows)
        row["tile"], (row["rows"], row["columns"]) = base["tiles"], new.tile.shape
        row["x0"], row["y0"], row["cell"] = *new.origin, CELL_M
        row["grid"], (row["grid_rows"], row["grid_columns"]) = base["nearest"], new.nearest.shape[:2]
        row["grid_cell"] = GRID_M
        spots = new.spots.spots.copy()
        spots["lane"] += base["lanes"]
        row["spot"], row["spots"], row["cell_spot"] = base["spots"], len(spots), base["cell_spots"]
        levels = new.levels
        row["levels"], row["lowest"], row["grade"] = len(levels.bits) > 0, levels.lowest, levels.grade
        row["block"], row["layer"] = base["blocks"], base["layer_bits"] // LAYER_CELLS
        row["block_columns"] = levels.blocks.shape[1]
        for name, rows in (
            ("lanes", lanes),
            ("points", new.points),
            ("conflicts", conflicts),
            ("crossings", new.crossings),
            ("walks", new.walks),
            ("signals", new.signals),
            ("entries", new.entries + base["lanes"]),
            ("parked", new.parked),
            ("routes", routes),
            ("route_points", route_points),
            ("tiles", new.tile.ravel()),
            ("segments", new.segments),
            ("nearest", nearest.ravel()),
            ("heights", new.heights),
            ("blocks", levels.blocks.ravel()),
            ("layer_bits", levels.bits.ravel()),
            ("layer_heights", levels.heights.ravel()),
            ("spots", spots),
            ("cell_spots", new.spots.first),
        ):
            parts[name].add(rows)
        self.names.append(new.name)
        self.junction_lanes = max(self.junction_lanes, int((new.lanes["junction"] >= 0).sum()))
        self.crosswalks = max(self.crosswalks, len(new.walks))
        return parts["maps"].add(row)
