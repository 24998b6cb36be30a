"""What a driving sim tells of an episode for people to look at: its map once, then where everybody is at each step.

Plane coordinates: x forward, y left, m; angles counter-clockwise from x, rad. `robotrl.spec.HasTrace` is what gives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

KINDS = ("vehicle", "cyclist", "pedestrian", "obstacle")
"""Kinds of road users; `TraceFrame.kinds` holds places in this list."""
LIGHTS = ("green", "yellow", "red")
"""States of lights; `TraceFrame.lights` holds places in this list."""
EVENTS = {
    "vehicle": "collision with a vehicle",
    "pedestrian": "collision with a pedestrian",
    "static": "collision with an obstacle",
    "red_light": "ran a red light",
    "stop_sign": "ran a stop sign",
    "off_road": "left the road",
    "off_route": "left the route",
    "blocked": "stood for too long",
    "finished": "arrived",
    "timed_out": "ran out of time",
}
"""What people call the events that end an episode; another name is shown as it is."""
REMARKS = {
    "outside": "outside its lanes",
    "speeding": "above the limit",
    "ttc": "near collision",
    "comfort": "discomfort",
    "centre": "off the lane's centre",
}
"""What people call it when a term of the reward that is a factor falls below 1."""
Control = Literal["light", "stop", "yield"]


class TraceLane(NamedTuple):
    """One lane of a map."""

    points: NDArray[np.float64]
    """(n, 2) of its centre, in driving direction."""
    width_m: float
    inside: bool
    """It crosses a junction, where nothing is marked."""
    left_open: bool
    """Cars may change to the left: the line there is broken."""
    right_open: bool


class TraceStop(NamedTuple):
    """A stop line, across its lane."""

    x: float
    y: float
    yaw: float
    """Of the lane."""
    width_m: float
    control: Control
    light: int
    """Its place in `TraceFrame.lights`; -1 without one."""


class TraceMap(NamedTuple):
    """What stays as it is for a whole episode."""

    scenario: str
    lanes: tuple[TraceLane, ...]
    stops: tuple[TraceStop, ...]
    walks: NDArray[np.float64]
    """(n, 5) crosswalks: x and y of both ends, and the width."""
    parked: NDArray[np.float64]
    """(n, 5) boxes that stand still: x, y, yaw, length, width."""
    route: NDArray[np.float64]
    """(n, 2) what the ego is to drive."""
    size: tuple[float, float]
    """Length and width of the ego."""


class TraceFrame(NamedTuple):
    """Where everybody is at one moment."""

    state_id: int
    """Where the episode started."""
    time_s: float
    ego: tuple[float, float, float]
    """x, y, yaw of its centre."""
    speed_mps: float
    limit_mps: float
    slots: NDArray[np.int64]
    """(m,) numbers of the others; a number belongs to one of them while it is there, and to another one later."""
    kinds: NDArray[np.int64]
    """(m,) places in `KINDS`."""
    boxes: NDArray[np.float64]
    """(m, 6) x, y, yaw, length, width, speed."""
    lights: tuple[int, ...]
    """Places in `LIGHTS`."""


class TraceStep(NamedTuple):
    """What the last step brought."""

    reward: float
    terms: dict[str, float]
    """What the reward is made of, by name."""
    completion: float
    """Share of the route driven, 0 to 1."""
    events: tuple[str, ...]
    """Why the step ended the episode, names as in `EVENTS`; empty while it goes on."""
    at_fault: bool | None
    """Whether a collision was the ego's fault; None where there was none."""
    success: bool
    score: float
    """Driving score of the episode that the step ended, 0 to 100; NaN while it goes on."""
    last: TraceFrame | None
    """Where the episode ended (the sim has started another one since); None while it goes on."""


@runtime_checkable
class HasPlan(Protocol):
    """An actor that has decided on several steps at once, and can tell which."""

    def planned(self, env: int) -> Tensor:
        """(h, A) the rest of an env's chunk: the action just given, and those that follow."""
        ...
