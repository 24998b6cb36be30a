"""Recording of a driving episode for viewers: its map once, then the state of all road users at each step.

Plane coordinates: x forward, y left, m; angles counter-clockwise from x, rad. Given by sims with
`robotrl.spec.HasTrace`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

KINDS = ("vehicle", "cyclist", "pedestrian", "obstacle")
"""Kinds of road users; `TraceFrame.kinds` holds indices into this tuple."""
LIGHTS = ("green", "yellow", "red")
"""States of traffic lights; `TraceFrame.lights` holds indices into this tuple."""
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
    "deviation": "left what was logged",
    "log_ended": "the log ended",
}
"""Event names to display texts for events that end an episode; an unknown name is shown unchanged."""
REMARKS = {
    "outside": "outside its lanes",
    "speeding": "above the limit",
    "ttc": "near collision",
    "comfort": "discomfort",
    "centre": "off the lane's centre",
}
"""Reward term names to display texts, shown when a multiplicative term falls below 1."""
Control = Literal["light", "stop", "yield"]


class TraceLane(NamedTuple):
    """One lane of a map."""

    points: NDArray[np.float64]
    """(n, 2) center line, in driving direction."""
    width_m: float
    inside: bool
    """True if the lane crosses a junction, where no markings are drawn."""
    left_open: bool
    """True if cars may change to the left lane: the line between the two is broken."""
    right_open: bool


class TraceStop(NamedTuple):
    """A stop line, across its lane."""

    x: float
    y: float
    yaw: float
    """Heading of the lane, rad."""
    width_m: float
    control: Control
    light: int
    """Index into `TraceFrame.lights`; -1 if the line has no light."""


class TraceMap(NamedTuple):
    """Static part of a driving episode: lanes, stop lines, parked vehicles and the route."""

    scenario: str
    lanes: tuple[TraceLane, ...]
    stops: tuple[TraceStop, ...]
    walks: NDArray[np.float64]
    """(n, 5) crosswalks: x and y of both ends, and the width."""
    parked: NDArray[np.float64]
    """(n, 5) boxes that do not move: x, y, yaw, length, width."""
    route: NDArray[np.float64]
    """(n, 2) route that the ego is to follow."""
    size: tuple[float, float]
    """Length and width of the ego, m."""


class TraceFrame(NamedTuple):
    """State of all road users at one time."""

    state_id: int
    """Start id of the episode."""
    time_s: float
    ego: tuple[float, float, float]
    """x, y, yaw of its center."""
    speed_mps: float
    limit_mps: float
    slots: NDArray[np.int64]
    """(m,) slot numbers of the other road users; a slot can be reused after its road user has left."""
    kinds: NDArray[np.int64]
    """(m,) indices into `KINDS`."""
    boxes: NDArray[np.float64]
    """(m, 6) x, y, yaw, length, width, speed."""
    lights: tuple[int, ...]
    """Indices into `LIGHTS`."""


class TraceStep(NamedTuple):
    """Outcome of the last step: reward, events, and the final state if the episode ended."""

    reward: float
    terms: dict[str, float]
    """Reward terms by name."""
    completion: float
    """Fraction of the route driven, 0 to 1."""
    events: tuple[str, ...]
    """Events that ended the episode, names as in `EVENTS`; empty if it did not end."""
    at_fault: bool | None
    """True if the ego caused the collision; None if there was no collision."""
    success: bool
    score: float
    """Driving score of the episode that this step ended, 0 to 100; NaN if it did not end."""
    last: TraceFrame | None
    """Final state of the episode that this step ended (the sim has started another one since); None if it did not
    end."""


@runtime_checkable
class HasPlan(Protocol):
    """An actor that plans several actions at once and can return the current plan."""

    def planned(self, env: int) -> Tensor:
        """(h, A) rest of an env's chunk: the action just given, and those that follow."""
        ...


@runtime_checkable
class HasCandidates(HasPlan, Protocol):
    """An actor that plans several alternatives at each decision, of which it executes one."""

    def candidates(self, env: int) -> Tensor:
        """(M, h, A) rest of the chunks that the env's last decision could have been, the executed one not included."""
        ...
