"""Exact state of driving worlds whose episodes follow from their records alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.driving.core import DrivingCore
from robotrl.sims.driving.world import RECORDS
from robotrl.sims.exact_state import check_state


class ExactCore(DrivingCore):
    """Driving core with `get_state` and `set_state`; see `DrivingCore` for the arguments."""

    @abstractmethod
    def _restore_maps(self) -> None:
        """Set each env's map by its start id, and build maps that are missing."""

    @abstractmethod
    def _settle(self) -> None:
        """Recompute derived state of all envs from the records."""

    def _more_state(self) -> dict[str, NDArray[Any]]:
        """Copies of further arrays that determine the further course, by name."""
        return {}

    def _load_more(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a result of `_more_state`; what `state` holds besides is ignored."""

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Exact state as named arrays: everything that determines the further course."""
        self.machine.wait()
        out: dict[str, NDArray[Any]] = {
            "order": self.world.order.copy(),
            "state_ids": self.state_ids.copy(),
            **self._starts.state(),
        }
        for name in RECORDS:
            records = getattr(self.world, name)
            out |= {f"{name}/{field}": records[field].copy() for field in records.dtype.names}
        # maps are numbered in the order of their first use, which may differ in another process
        for key, base in self._bases().items():
            out[key] = np.where(out[key] >= 0, out[key] - base, -1).astype(out[key].dtype)
        return out | self._more_state()

    def _bases(self) -> dict[str, NDArray[np.int64]]:
        """Offsets, by env, of each kind of reference into the map pool."""
        rows = self.bank.arrays.maps[self.world.episodes["map"]]
        lane, route = rows["lane"].astype(np.int64), rows["route"].astype(np.int64)
        return {
            "agents/lane": lane[:, None],
            "agents/next": lane[:, None],
            "egos/lane": lane,
            "episodes/route": route,
            "episodes/map": self.world.episodes["map"].astype(np.int64),
        }

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Restore a result of `get_state` and return the observations in that state.

        Raises:
            ConfigError: the state is of another sim or number of envs.
        """
        check_state(state, self.get_state())  # `get_state` waits for the backend
        self.world.order[:] = state["order"]
        self.state_ids[:] = state["state_ids"]
        self._starts.load(state)
        for name in RECORDS:
            records = getattr(self.world, name)
            for field in records.dtype.names:
                records[field] = state[f"{name}/{field}"]
        self._load_more(state)
        self._restore_maps()
        for key, base in self._bases().items():
            name, field = key.split("/")
            array = getattr(self.world, name)[field]
            if field != "map":
                array[:] = np.where(array >= 0, array + base, -1)
        self._settle()
        self.observe(self._all)
        return self.obs
