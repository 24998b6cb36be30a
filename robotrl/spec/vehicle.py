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


@runtime_checkable
class HasTrajectoryActions(Protocol):
    """The sim says whether an action is a trajectory that a tracker follows."""

    @property
    def trajectory_dt_s(self) -> float | None:
        """Seconds between the points of an action, the first one so long after the action; None: no trajectories.

        A point is x ahead and y to the left, m, in the ego's frame at the time of the action.
        """
        ...


@runtime_checkable
class HasProgressRatio(Protocol):
    """The sim knows how far a reference driver has come in the same time, e.g. the one who recorded a log."""

    def progress_ratio(self) -> NDArray[np.float64]:
        """(N,) progress of the running episode over the reference's; below 1, the ego lags behind it."""
        ...
