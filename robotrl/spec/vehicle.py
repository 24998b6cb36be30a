"""The state of the ego vehicle among a driving sim's observations, with the units that the observations leave out."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class VehicleObs(NamedTuple):
    """Elements of one observed vector, by name, and what they are multiplied by."""

    key: str
    """Key of the observation."""
    speed: str
    speed_mps: float
    """Meters per second of an observed speed of 1."""
    offset: str
    offset_m: float
    """Meters of an observed lateral offset of 1 from the route's center line."""
    heading_sin: str
    """Sine of the heading relative to the route."""
    heading_cos: str


@runtime_checkable
class HasVehicleObs(Protocol):
    """The sim says which of its observations are the state of the ego vehicle."""

    @property
    def vehicle_obs(self) -> VehicleObs | None:
        """These; None if they are not observed, as with a raster alone."""
        ...


@runtime_checkable
class HasTimeToCollision(Protocol):
    """The sim knows, from its own objects, how soon the ego will collide."""

    def time_to_collision_s(self) -> NDArray[np.float64]:
        """(N,) time until the ego meets another road user if all keep speed and course; large if that is never."""
        ...
