"""Observations of the last control ticks, for a policy that is given several at once. Needs numpy alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from robotrl.deploy.bundle.manifest import Port


class ObservationHistory:
    """Keeps the observations that a policy is given besides the present ones.

    As in training (`robotrl.sims.history`), a policy is given those of the last control ticks, and the first
    observation of an episode stands for the ticks before it. A tick whose observation is missing or not finite has that
    of the tick before, as if nothing had changed.

    Args:
        observations: the bundle's observations.
    """

    def __init__(self, observations: tuple[Port, ...]) -> None:
        self._rows = {port.name: np.zeros(port.shape, np.float32) for port in observations if port.stack > 1}
        self._tick = -1

    @property
    def keys(self) -> tuple[str, ...]:
        """Observations of which more than one tick is given."""
        return tuple(self._rows)

    def reset(self) -> None:
        """Begin an episode."""
        self._tick = -1

    def take(self, tick: int, obs: Mapping[str, np.ndarray]) -> None:
        """Take the observations of a control tick.

        Args:
            tick: number of the tick in its episode, more than that of the last call.
            obs: (D,) arrays by key, of that tick alone. Ones that are not finite are left out.
        """
        if not all(np.isfinite(obs[key]).all() for key in self._rows):
            return
        for key, rows in self._rows.items():
            passed = len(rows) if self._tick < 0 else min(tick - self._tick, len(rows))
            before = np.array(obs[key] if self._tick < 0 else rows[-1])
            rows[: len(rows) - passed] = rows[passed:].copy()
            rows[len(rows) - passed :] = before
            rows[-1] = obs[key]
        self._tick = tick

    def whole(self, obs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The observations with those of the last ticks: (K, D) where `observations` says so, the oldest first.

        Args:
            obs: observations of the tick that was taken last.
        """
        found = dict(obs)
        for key, rows in self._rows.items():
            found[key] = rows.copy()
            # one that was left out is to be refused, not to be passed over
            found[key][-1] = obs[key]
        return found
