"""The state of the ego vehicle among a driving sim's observations, with the units that the observations leave out."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from robotrl.spec.sims import Split


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
class HasTimeToCollisionAhead(Protocol):
    """The sim tells collisions that braking may avert from those with somebody who comes from behind."""

    def time_to_collision_ahead_s(self) -> NDArray[np.float64]:
        """(N,) as `HasTimeToCollision`, without road users whose centers are behind the ego's."""
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
class HasPlanFrame(Protocol):
    """The sim tells the frame of trajectory actions: the pose of each ego, and its speed."""

    def plan_frame(self) -> NDArray[np.float64]:
        """(N, 4) x, y (m), yaw (rad) and speed (m/s) of each env's ego now, as they are on the map."""
        ...


@runtime_checkable
class HasProgressRatio(Protocol):
    """The sim knows how far a reference driver has come in the same time, e.g. the one who recorded a log."""

    def progress_ratio(self) -> NDArray[np.float64]:
        """(N,) progress of the running episode over the reference's; below 1, the ego lags behind it."""
        ...


class VehicleModel(NamedTuple):
    """Constants of the ego's kinematic bicycle model; its center moves at the slip angle."""

    rear_m: float
    """Distance from the center to the rear axle."""
    front_m: float
    """Distance from the center to the front axle; negative if that lies behind the center."""
    steer_rad: float
    """Wheel angle at a steering action of 1, to the left."""
    throttle_mps2: float
    """Acceleration at an acceleration action of 1."""
    brake_mps2: float
    """Deceleration at an acceleration action of -1."""


CAR, CYCLIST, PEDESTRIAN, OBSTACLE = 1, 2, 3, 4
"""Kinds of road users in `LoggedScenes`; 0 is an empty slot."""
EDGE, DIVIDER = 1, 2
"""Kinds of lines in `LoggedScenes`: edge of the road, line to the oncoming lanes; 0 is an empty slot."""


class SceneCfg(NamedTuple):
    """Size of the scenes that are taken from a log."""

    every: int = 5
    """Steps of 0.1 s between two scenes of a clip."""
    history: int = 10
    """Steps before the scene."""
    horizon: int = 20
    """Steps after it."""
    agents: int = 8
    """M, other road users: the nearest ones, parked cars included."""
    lines: int = 32
    """L, pieces of lines: the nearest ones."""
    points: int = 12
    """P, points of the logged way ahead."""
    spacing_m: float = 2.0
    """Distance between these points."""


class LoggedScenes(NamedTuple):
    """Scenes of a log with what happened before and after, in the frame of the ego at the scene: x ahead, y left, m.

    A scene has K steps of 0.1 s: `history` before it, its own, and `horizon` after it.
    """

    obs: dict[str, NDArray[Any]]
    """(S, ...) observations of the sim where the ego is as logged."""
    clip: NDArray[np.int64]
    """(S,) number of the clip in the log."""
    step: NDArray[np.int64]
    """(S,) step of the clip."""
    ego: NDArray[np.float32]
    """(S, K, 4) x, y, yaw (rad) and speed (m/s) of the logged ego."""
    ego_size: NDArray[np.float32]
    """(S, 2) length and width, m."""
    agents: NDArray[np.float32]
    """(S, K, M, 4) x, y, yaw and speed of the other road users."""
    there: NDArray[np.bool_]
    """(S, K, M) steps at which they were logged; all are at the scene's own step."""
    kind: NDArray[np.int64]
    """(S, M) `CAR` etc., 0 for an empty slot."""
    size: NDArray[np.float32]
    """(S, M, 2) length and width, m."""
    way: NDArray[np.float32]
    """(S, P, 2) points of the way that the ego drove later, equal distances of way apart."""
    way_there: NDArray[np.bool_]
    """(S, P) points that it reached within the clip."""
    lines: NDArray[np.float32]
    """(S, L, 4) x and y of both ends of pieces of lines."""
    line_kind: NDArray[np.int64]
    """(S, L) `EDGE` or `DIVIDER`, 0 for an empty slot."""
    stop: NDArray[np.float32]
    """(S, 4) x and y of both ends of the next stop line on the route; far away without one."""
    closed: NDArray[np.bool_]
    """(S, horizon + 1) steps from the scene's own on at which that line must not be crossed: its light is red, or the
    ego has not stopped at its sign."""
    limit_mps: NDArray[np.float32]
    """(S,) speed limit."""


@runtime_checkable
class HasLoggedScenes(Protocol):
    """The sim has a log of drives, and gives its scenes with their observations."""

    @property
    def vehicle(self) -> VehicleModel:
        """Constants of the ego."""
        ...

    def logged_scenes(self, split: Split, cfg: SceneCfg) -> LoggedScenes:
        """Scenes of all clips of a split. The episodes that run in the sim are abandoned.

        Raises:
            DataError: no clip of the split is long enough, or no other road user was logged.
        """
        ...
