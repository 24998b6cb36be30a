"""Cars of the traffic of a running sim as arrays: inputs of the network, returns of candidates, measurements."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.bev.core import BevCore
from robotrl.sims.bev.traffic.learned import forward, layout, probe


class Deciding(NamedTuple):
    """Cars that decide in the next step."""

    env: NDArray[np.int64]
    """(C,) env of each."""
    slot: NDArray[np.int64]
    """(C,) its slot."""
    inputs: NDArray[np.float32]
    """(C, layout.INPUT)."""


class Rolled(NamedTuple):
    """Cars that decide in the next step, with the forward simulation of their candidates."""

    cars: Deciding
    terms: NDArray[np.float32]
    """(C, G, len(forward.TERMS)) discounted sums of the reward's terms; 0 for candidates that are masked."""


class Measured(NamedTuple):
    """Measurements of the cars, (C,) or (N, A) each; see `probe.MEASURES`."""

    speed: NDArray[np.float32]
    accel: NDArray[np.float32]
    gap: NDArray[np.float32]
    closing: NDArray[np.float32]
    limit: NDArray[np.float32]
    overlaps: NDArray[np.float32]


class Cars:
    """Reads the cars of a core.

    Args:
        core: the core; its state is not changed.
    """

    def __init__(self, core: BevCore) -> None:
        self._core = core
        n, a = core.world.agents.shape
        zeros = core.machine.zeros
        self._inputs = zeros((n, a, layout.INPUT), np.float32)
        self._due = zeros((n, a), np.int32)
        self._forecasts = zeros((n, a, forward.STEPS, 4), np.float32)
        self._near = zeros((n, a), np.int32)
        self._profile = zeros((n, layout.PIECES), np.float32)
        self._terms = zeros((n, a, layout.CANDIDATES, len(forward.TERMS)), np.float32)
        self._measures = zeros((n, a, len(probe.MEASURES)), np.float32)

    def deciding(self) -> Deciding:
        """Cars that decide in the next step; those of scenarios' scripts are left out."""
        core = self._core
        core.machine.run(probe.observe_cars, core.num_envs, core.bank.arrays, core.world, self._inputs, self._due)
        return self._deciding()

    def rolled(self) -> Rolled:
        """Cars that a network drives and that decide in the next step, with all candidates driven forward."""
        core = self._core
        arrays, world = core.bank.arrays, core.world
        core.machine.run(probe.observe_cars, core.num_envs, arrays, world, self._inputs, self._due)
        self._terms[:] = 0.0
        scratch = self._forecasts, self._near, self._profile
        core.machine.run(
            probe.roll_candidates, core.num_envs, arrays, world, self._inputs, self._due, *scratch, self._terms
        )
        cars = self._deciding()
        return Rolled(cars, self._terms[cars.env, cars.slot])

    def measured(self) -> Measured:
        """Present measurements of all cars that no script drives, (C,) each."""
        self._measure()
        env, slot = np.nonzero(self._due)
        return Measured(*self._measures[env, slot].T)

    def measured_in_place(self) -> Measured:
        """Present measurements of all cars that no script drives, (N, A) each; 0 in the other slots."""
        self._measure()
        found = np.where(self._due[..., None] == 1, self._measures, np.float32(0.0))
        return Measured(*np.moveaxis(found, -1, 0))

    def _measure(self) -> None:
        core = self._core
        core.machine.run(probe.measure_cars, core.num_envs, core.bank.arrays, core.world, self._measures, self._due)

    def _deciding(self) -> Deciding:
        env, slot = np.nonzero(self._due)
        return Deciding(env, slot, self._inputs[env, slot])
