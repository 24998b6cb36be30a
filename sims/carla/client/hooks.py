"""Scenario hooks: code that a route's scenarios run in an episode, by the types of ScenarioRunner and Bench2Drive.

A hook is made for each scenario of a route whose type is in `HOOKS`. It may spawn actors, and acts before each tick.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import carla

from robotrl.errors import ConfigError, short
from robotrl.utils.user_module import user_callable

if TYPE_CHECKING:
    from robotrl.sims.carla.client.episode import CarlaEpisode

TRIGGER_M = 3.0
"""Distance from the trigger point along the route's direction at which an event starts, besides braking distance."""

LEAST, MOST = 0.1, 1000.0
"""Range of a scenario's distances, speeds and durations, m, m/s and s."""


class Trigger(NamedTuple):
    """A scenario of a route."""

    name: str
    type: str
    x: float
    """Trigger point in our frame, m."""
    y: float
    yaw: float
    parameters: Mapping[str, Mapping[str, str]]

    def number(self, name: str, default: float) -> float:
        """Numeric parameter, 0.1 to 1,000: its attribute "value"; `default` if it is absent.

        Raises:
            ConfigError: it is no such number.
        """
        given = self.parameters.get(name, {}).get("value")
        if given is None:
            return default
        try:
            found = float(given)
        except ValueError:
            found = math.nan
        if not LEAST <= found <= MOST:
            raise ConfigError(
                f"scenario {self.name!r}: <{name}> value is {given!r}: expected a number from {LEAST:g} to {MOST:g}"
            )
        return found

    def ahead(self, distance_m: float, left_m: float = 0.0) -> tuple[float, float]:
        """Place ahead and to the left of the trigger point, straight on."""
        cos, sin = math.cos(self.yaw), math.sin(self.yaw)
        return self.x + distance_m * cos - left_m * sin, self.y + distance_m * sin + left_m * cos


class Hook(Protocol):
    """A running scenario; all methods are called in the client's process."""

    def begin(self, episode: CarlaEpisode) -> None:
        """Prepare it, before the first tick; actors go into `episode.actors`."""
        ...

    def tick(self, episode: CarlaEpisode) -> None:
        """Act before a tick."""
        ...

    def end(self, episode: CarlaEpisode) -> None:
        """Undo all that is no actor; a dead server raises `RuntimeError`, which is left aside."""
        ...


def reached(episode: CarlaEpisode, trigger: Trigger) -> bool:
    """True if the ego has come near the trigger point, by its speed, or has passed it."""
    users = episode.readout.users
    if not len(users):
        return False
    ego = users[0]
    dx, dy = ego["x"] - trigger.x, ego["y"] - trigger.y
    return bool(math.hypot(dx, dy) < TRIGGER_M + 0.5 * math.hypot(ego["vx"], ego["vy"]))


class Obstacle:
    """A car or props that stand on the lane ahead of the trigger point."""

    def __init__(self, trigger: Trigger, blueprint: str, left_m: float = 0.0) -> None:
        self._trigger, self._blueprint, self._left_m = trigger, blueprint, left_m

    def begin(self, episode: CarlaEpisode) -> None:
        """Spawn it, with the handbrake on."""
        trigger = self._trigger
        x, y = trigger.ahead(trigger.number("distance", 40.0), self._left_m)
        at = episode.on_road(x, y, trigger.yaw)
        actor = episode.world.try_spawn_actor(episode.blueprint(self._blueprint), at)
        if actor is None:
            episode.refused += 1
            return
        episode.actors.append(actor)
        if isinstance(actor, carla.Vehicle):
            actor.apply_control(carla.VehicleControl(hand_brake=True))

    def tick(self, episode: CarlaEpisode) -> None:
        """Stand."""

    def end(self, episode: CarlaEpisode) -> None:
        """Leave nothing behind."""


class Crossing:
    """Somebody who steps on the road ahead of the trigger point when the ego comes."""

    def __init__(self, trigger: Trigger, blueprint: str = "walker.pedestrian.0001") -> None:
        self._trigger, self._blueprint = trigger, blueprint
        self._walker: Any = None
        self._left_ticks = -1

    def begin(self, episode: CarlaEpisode) -> None:
        """Put the walker beside the road."""
        trigger = self._trigger
        x, y = trigger.ahead(trigger.number("distance", 12.0), -trigger.number("aside", 4.5))
        at = episode.on_road(x, y, trigger.yaw + 0.5 * math.pi, 1.0)
        self._walker = episode.world.try_spawn_actor(episode.blueprint(self._blueprint), at)
        if self._walker is None:
            episode.refused += 1
        else:
            episode.actors.append(self._walker)

    def tick(self, episode: CarlaEpisode) -> None:
        """Start when the ego comes, walk to the other side, and stay there."""
        if self._walker is None:
            return
        trigger = self._trigger
        speed = trigger.number("speed", 2.0)
        if self._left_ticks < 0:
            if not reached(episode, trigger):
                return
            step = episode.world.get_settings().fixed_delta_seconds
            self._left_ticks = math.ceil(trigger.number("way", 9.0) / speed / step)
        moving = self._left_ticks > 0
        self._left_ticks = max(self._left_ticks - 1, 0)
        # to the left of the route's direction, which is CARLA's yaw minus a quarter turn
        angle = -(trigger.yaw + 0.5 * math.pi)
        direction = carla.Vector3D(math.cos(angle), math.sin(angle), 0.0)
        self._walker.apply_control(carla.WalkerControl(direction, speed if moving else 0.0, False))

    def end(self, episode: CarlaEpisode) -> None:
        """Leave nothing behind."""


class HardBrake:
    """The traffic manager's cars near the ego brake for some seconds."""

    def __init__(self, trigger: Trigger) -> None:
        self._trigger = trigger
        self._braking: list[Any] = []
        self._left_ticks = -1

    def begin(self, episode: CarlaEpisode) -> None:
        """Nothing is needed beforehand."""

    def tick(self, episode: CarlaEpisode) -> None:
        """Brake when the ego comes, and let go after `duration` seconds."""
        if self._left_ticks == 0:
            self.end(episode)
        if self._left_ticks >= 0:
            self._left_ticks -= 1
        elif self._left_ticks == -1 and reached(episode, self._trigger):
            step = episode.world.get_settings().fixed_delta_seconds
            self._left_ticks = math.ceil(self._trigger.number("duration", 3.0) / step)
            place = episode.ego.get_location()
            self._braking = [
                actor
                for actor in episode.actors[1:]
                if isinstance(actor, carla.Vehicle) and actor.get_location().distance(place) < 40.0
            ]
            for actor in self._braking:
                episode.manager.vehicle_percentage_speed_difference(actor, 100.0)

    def end(self, episode: CarlaEpisode) -> None:
        """Let the cars drive on."""
        for actor in self._braking:
            episode.manager.vehicle_percentage_speed_difference(actor, 0.0)
        self._braking, self._left_ticks = [], -2


def _obstacle(blueprint: str, left_m: float = 0.0) -> Callable[[Trigger], Hook]:
    return lambda trigger: Obstacle(trigger, blueprint, left_m)


CAR, CONE = "vehicle.tesla.model3", "static.prop.trafficcone01"
HOOKS: dict[str, Callable[[Trigger], Hook]] = {
    "Accident": _obstacle(CAR),
    "AccidentTwoWays": _obstacle(CAR),
    "ConstructionObstacle": _obstacle(CONE),
    "ConstructionObstacleTwoWays": _obstacle(CONE),
    "DynamicObjectCrossing": Crossing,
    "HardBreakRoute": HardBrake,
    "ParkedObstacle": _obstacle(CAR),
    "ParkedObstacleTwoWays": _obstacle(CAR),
    "ParkingCrossingPedestrian": Crossing,
    "PedestrianCrossing": Crossing,
    "StaticCutIn": _obstacle(CAR, -3.0),
    "VehicleTurningRoutePedestrian": Crossing,
}
"""Hook of each type of scenario."""


class OwnHook:
    """A hook whose code is the user's: an error in it is told with its name, and is no loss of the server.

    Args:
        name: "MODULE:CLASS".
        trigger: what it is called with.

    Raises:
        ConfigError: it cannot be imported, or raised an error.
    """

    def __init__(self, name: str, trigger: Trigger) -> None:
        self._where = f"hook {name!r} of scenario {trigger.name!r}"
        make = user_callable(name, f"hook of scenario {trigger.type!r}", "MODULE:CLASS")
        self._hook: Hook = self._run(lambda: make(trigger), lambda: True)

    def begin(self, episode: CarlaEpisode) -> None:
        """Call its `begin`."""
        self._run(lambda: self._hook.begin(episode), episode.server_answers)

    def tick(self, episode: CarlaEpisode) -> None:
        """Call its `tick`."""
        self._run(lambda: self._hook.tick(episode), episode.server_answers)

    def end(self, episode: CarlaEpisode) -> None:
        """Call its `end`."""
        self._run(lambda: self._hook.end(episode), episode.server_answers)

    def _run(self, call: Callable[[], Any], server_answers: Callable[[], bool]) -> Any:
        try:
            return call()
        except (Exception, SystemExit) as error:
            # CARLA's client raises RuntimeError for a lost server and for what a server refuses
            if type(error) is RuntimeError and ("time-out" in str(error) or not server_answers()):
                raise
            raise ConfigError(f"{self._where} raised {described(error)}") from error


def described(error: BaseException) -> str:
    """Type, message and place of an error, in one line."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    message = short(" ".join(str(error).split()), 300) or "no message"
    return f"{type(error).__name__}: {message} ({at.filename}, line {at.lineno})"


def hooks_of(scenarios: Sequence[Mapping[str, Any]]) -> tuple[list[Hook], set[str]]:
    """Hooks of scenarios, and the types for which there is none.

    Args:
        scenarios: name, type, x, y, yaw and parameters of each; `hook` names code of one's own, "MODULE:CLASS", which
            is called with the `Trigger`.

    Raises:
        ConfigError: code of one's own cannot be imported, or raised an error.
    """
    found: list[Hook] = []
    unknown: set[str] = set()
    for scenario in scenarios:
        given = dict(scenario)
        own = given.pop("hook", None)
        trigger = Trigger(**given)
        if own is not None:
            found.append(OwnHook(own, trigger))
        elif trigger.type in HOOKS:
            found.append(HOOKS[trigger.type](trigger))
        else:
            unknown.add(trigger.type)
    return found, unknown
