"""Numpy core of `carla/...`: each env is a CARLA server, whose scenes become the records of all driving worlds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import RobotrlError
from robotrl.sims.carla import scene
from robotrl.sims.carla.channel import Arrays
from robotrl.sims.carla.faults import CarlaFault, ServerLost
from robotrl.sims.carla.kernels import read_ego, read_users
from robotrl.sims.carla.supervisor import Answer, CarlaLink
from robotrl.sims.carla.towns import CarlaTown, Start, StartPlan, town_of
from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.backend import Backend
from robotrl.sims.driving.core import DrivingCore, Ids
from robotrl.sims.driving.judge import begin_judging
from robotrl.sims.driving.kernels import conclude, finish_step, observe_envs, settle
from robotrl.sims.driving.observations import DrivingObservations
from robotrl.sims.driving.plan import follow
from robotrl.sims.driving.reported.phases import OFF, show_phases
from robotrl.sims.driving.rewards import Rules
from robotrl.sims.driving.roads.lane_index import match_agents
from robotrl.sims.driving.roads.map_pool import MapPool
from robotrl.sims.driving.roads.maps import RoadMap
from robotrl.sims.driving.traffic.ego import HIT_NONE, HIT_PEDESTRIAN, HIT_STATIC, HIT_VEHICLE, acceleration, put_ego
from robotrl.sims.driving.world import RECORDS
from robotrl.spec import Spec

SAME_M = 1e-3
"""Largest difference of any position between an episode and its repetition."""
HITS = {scene.PEDESTRIAN: HIT_PEDESTRIAN, scene.CAR: HIT_VEHICLE, scene.CYCLIST: HIT_VEHICLE}
GRAVITY = (HIT_PEDESTRIAN, HIT_VEHICLE, HIT_STATIC)
"""Kinds of collision, the one that counts of several first."""


class Traffic(NamedTuple):
    """Contents of each episode besides the route; see `EpisodeOrder`."""

    ego: str
    vehicles: int
    walkers: int
    track: bool
    settle_ticks: int
    camera: Mapping[str, float] | None
    hooks: Mapping[str, str]
    """Code of one's own by type of scenario, "MODULE:CLASS"."""


class TownSettings(NamedTuple):
    """Settings of the towns' maps."""

    opendrive: str | None
    """OpenDRIVE text of the world; None loads a town of the server by its name."""
    routes: int
    route_length_m: float


class CarlaCore(DrivingCore):
    """Driving episodes on CARLA servers, one for each env; see `DrivingCore` for the other arguments.

    An episode whose server is lost is repeated from its start on a new one, with the same actions, up to the present
    step. If the repetition is the same, nothing is lost; else the episode is reported as lost, and begins again.

    Args:
        links: server of each env.
        plan: start of each id.
        towns: settings of the maps.
        traffic: contents of an episode.
        ticks: ticks of a control step.
        front: (N, height, width, 3) pictures of the ego's camera, which this writes; None without.
        restarts: losses of one server in a row, with no step in between, that are made good.
    """

    def __init__(
        self,
        name: str,
        links: Sequence[CarlaLink],
        plan: StartPlan,
        towns: TownSettings,
        traffic: Traffic,
        ticks: int,
        front: NDArray[np.uint8] | None,
        restarts: int,
        agents: int,
        limit_steps: int,
        rules: Rules,
        action_spec: Spec,
        seed: int,
        machine: Backend,
        observed: DrivingObservations,
    ) -> None:
        bank = MapPool(machine, self._road)
        own = (limit_steps, rules, action_spec, seed, machine, observed)
        super().__init__(name, bank, len(links), agents, plan.names, *own)
        self._name, self.links, self._plan = name, list(links), plan
        self._settings, self._traffic, self._ticks, self._restarts = towns, traffic, ticks, restarts
        self._towns: dict[str, CarlaTown] = {}
        self._texts: dict[str, tuple[str, NDArray[Any]]] = {}
        self._loaded: list[str | None] = [None] * self.num_envs
        self._orders: list[dict[str, Any]] = [{} for _ in self.links]
        self._controls: list[list[tuple[float, float]]] = [[] for _ in self.links]
        """Steering and acceleration of each control step of the running episodes."""
        self._lights: list[NDArray[np.int64]] = [np.zeros(0, np.int64) for _ in self.links]
        """Index among the server's lights of each light of the map; -1 without."""
        self._slots: list[NDArray[np.int32]] = [np.zeros(0, np.int32) for _ in self.links]
        """Actor ids in the slots from 1 on."""
        self._in_a_row = [0] * self.num_envs
        self.losses = 0
        """Servers lost so far."""
        self.repeats = 0
        """Episodes repeated so far with the same result; the others of `losses` were lost."""
        self._warned: set[str] = set()
        self._front = front
        if front is not None:
            self.obs["front"] = front

    def open(self) -> None:
        """Connect to all servers.

        Raises:
            ConfigError: another version of CARLA, or a command that cannot be run.
            CarlaFault: there is no server, or it was lost again and again.
        """
        for e, link in enumerate(self.links):
            try:
                link.open()
            except ServerLost as lost:
                self._renew(e, lost)

    # starts

    def _road(self, key: tuple[str, int]) -> RoadMap:
        """Map of a town; each env has a copy, whose lights are its own."""
        town, _ = key
        text, parked = self._texts[town]
        if town not in self._towns:
            settings = self._settings
            planned = self._plan.routes_of(town)
            self._towns[town] = town_of(town, text, parked, planned, settings.routes, settings.route_length_m)
        return self._towns[town].road

    def _begin(self, env_ids: Ids, ids: Ids) -> None:
        for e, state_id in zip(env_ids.tolist(), ids.tolist(), strict=True):
            town = self._plan.town(state_id)
            self._load(e, town)
            number = self.bank.number((town, e))
            start = self._plan.start(state_id, int(self.bank.arrays.maps["routes"][number]))
            self._make_room()
            self._prepare(e, number, start, state_id)
            self._orders[e] = self._order(e, start, state_id)
        for e, answer in self._exchange(env_ids.tolist(), "begin", self._orders).items():
            if isinstance(answer, ServerLost):
                self._repeat(e, answer)
            else:
                self._place(e, answer)

    def _load(self, e: int, town: str) -> None:
        """Load the town of an env's next episode, if it is another one."""
        if self._loaded[e] == town:
            return
        wanted = {"town": town} if self._settings.opendrive is None else {"opendrive": self._settings.opendrive}
        while True:
            try:
                fields, arrays = self.links[e].load(**wanted)
            except ServerLost as lost:
                self._renew(e, lost)
                continue
            break
        self._texts.setdefault(town, (str(fields["opendrive"]), arrays["parked"]))
        self._loaded[e] = town

    def _prepare(self, e: int, number: int, start: Start, state_id: int) -> None:
        """Write the records of an episode that has not begun."""
        self.world.episodes[e] = np.zeros((), tables.EPISODE)
        episode = self.world.episodes[e]
        episode["map"], episode["route"] = number, self.bank.arrays.maps["route"][number] + start.route
        episode["seed"], episode["limit"], episode["target"] = state_id, self.limit_steps, -1
        episode["scenario"] = state_id % len(self.scenarios)

    def _order(self, e: int, start: Start, state_id: int) -> dict[str, Any]:
        """Order of an episode for the client; see `EpisodeOrder`."""
        arrays, traffic = self.bank.arrays, self._traffic
        point = arrays.route_points[arrays.routes["first"][self.world.episodes["route"][e]]]
        order: dict[str, Any] = {
            "seed": int(state_id),
            "ego": traffic.ego,
            "x": float(point["x"]),
            "y": float(point["y"]),
            "yaw": math.atan2(point["sin"], point["cos"]),
            "vehicles": traffic.vehicles,
            "walkers": traffic.walkers,
            "track": traffic.track,
            "ticks": traffic.settle_ticks,
            "camera": traffic.camera,
        }
        if start.planned is not None:
            planned = start.planned
            order["weather"] = dict(planned.weathers[0].parameters) if planned.weathers else {}
            order["scenarios"] = [
                {
                    "name": one.name,
                    "type": one.type,
                    "x": one.trigger_xy[0],
                    "y": one.trigger_xy[1],
                    "yaw": one.trigger_yaw,
                    "parameters": {key: dict(value) for key, value in one.parameters.items()},
                    "hook": traffic.hooks.get(one.type),
                }
                for one in planned.scenarios
            ]
        return order

    def _place(self, e: int, answer: Answer) -> None:
        """Put the first scene of an episode into the records."""
        fields, arrays = answer
        self._controls[e] = []
        self._note(fields)
        index = {light: k for k, ids in fields["lights"].items() for light in ids}
        town = self._towns[str(self._loaded[e])]
        found = [next((int(index[one]) for one in ids if one in index), -1) for ids in town.signal_ids]
        self._lights[e] = np.array(found, np.int64)
        ego = arrays["users"][0]
        maps, world = self.bank.arrays, self.world
        episode = world.episodes[e]
        episode["time"] = episode["steps"] = episode["blocked"] = episode["events"] = 0
        world.order[e] = np.arange(world.order.shape[1])
        speed = max(float(ego["vx"] * np.cos(ego["yaw"]) + ego["vy"] * np.sin(ego["yaw"])), 0.0)
        pose = (float(ego["x"]), float(ego["y"]), float(ego["yaw"]), speed, float(ego["length"]), float(ego["width"]))
        world.agents[e, 0] = np.zeros((), tables.AGENT)
        put_ego(maps, world, e, *pose)
        begin_judging(world, e)
        self._take(e, arrays, 0.0)
        settle(maps, world, e)

    def _note(self, fields: Mapping[str, Any]) -> None:
        """Say once what an episode lacks."""
        if unknown := [one for one in fields["unknown"] if one not in self._warned]:
            self._warned.update(unknown)
            warnings.warn(
                f"{self._name}: routes have scenarios of types without a hook: {', '.join(unknown)}; they are driven"
                " without these events (--sim.hooks names code of one's own)",
                stacklevel=2,
            )
        if fields["refused_actors"] and "refused" not in self._warned:
            self._warned.add("refused")
            warnings.warn(
                f"{self._name}: {fields['refused_actors']} road users could not be spawned in an episode (too few free"
                " spawn points, or no pavements to walk on); it has fewer",
                stacklevel=2,
            )

    # steps

    def _advance(self, actions: NDArray[np.float32]) -> None:
        world, rules = self.world, self.rules
        origin = world.egos[["x", "y", "cos", "sin"]].copy()
        before = world._replace(**{name: getattr(world, name).copy() for name in RECORDS})
        picture = None if self._front is None else self._front.copy()
        self.reward[:], self.terms[:], self.lost[:] = 0.0, 0.0, False
        taken = np.zeros(self.num_envs)
        running = list(range(self.num_envs))
        for k in range(rules.hold):
            controls = actions[:, :2].astype(np.float64)
            if rules.planned:
                for e in running:
                    x, y, cos, sin = (float(value) for value in origin[e])
                    controls[e] = follow(world, e, actions[e], x, y, cos, sin, k * rules.dt, rules.throttle)
            self._step(running, controls, before)
            for e in running:
                self.terms[e] += self._last[e]
                taken[e] += 1
            running = [e for e in running if not (world.episodes["events"][e] or self.lost[e])]
        self.terms[:, 1:-1] /= np.maximum(taken, 1)[:, None]
        maps = self.bank.arrays
        for e in range(self.num_envs):
            conclude(maps, world, e, self.done, self.events, self.completion)
        lost = np.flatnonzero(self.lost)
        self._write_off(lost)
        if self._front is not None and picture is not None:
            self._front[lost] = picture[lost]
        self.machine.run(observe_envs, self.num_envs, maps, world, rules, self._vectors, self._all)

    def _step(self, envs: Sequence[int], controls: NDArray[np.float64], before: Any) -> None:
        """Run a control step in some envs."""
        requests = {e: {"controls": self._pedals(*controls[e])} for e in envs}
        for e, answer in self._exchange(envs, "step", requests).items():
            if isinstance(answer, ServerLost):
                answer = self._mended(e, answer, controls[e], before)
                if answer is None:
                    self.lost[e] = True
                    continue
            self._in_a_row[e] = 0
            self.reward[e] += self._absorb(e, answer[1], *controls[e])

    def _pedals(self, steer: float, accel: float) -> NDArray[np.float64]:
        """Controls (ticks, 3) of the client; see `Episode.step`."""
        return np.tile([steer, accel, acceleration(accel, self.rules.throttle)], (self._ticks, 1))

    def _absorb(self, e: int, arrays: Arrays, steer: float, accel: float) -> float:
        """Take over the scene after a control step; returns the reward."""
        maps, world, dt = self.bank.arrays, self.world, self.rules.dt
        before = float(world.egos["progress"][e])
        read_ego(world, e, arrays["users"][0], steer, accel, dt, len(arrays["hits"]) > 0)
        self._take(e, arrays, dt)
        hit, slot = self._hit(e, arrays["hits"])
        self._controls[e].append((steer, accel))
        return finish_step(maps, world, self.rules, e, before, hit, slot, self._last[e])

    def _take(self, e: int, arrays: Arrays, dt: float) -> None:
        """Take over the other road users, the lights at the time `dt` from now, and the picture."""
        maps, world = self.bank.arrays, self.world
        users = arrays["users"]
        ego = world.egos[e]
        distance = np.hypot(users["x"][1:] - ego["x"], users["y"][1:] - ego["y"])
        rows = np.argsort(distance, kind="stable")[: world.agents.shape[1] - 1].astype(np.int64) + 1
        read_users(maps, world, e, users, rows)
        self._slots[e] = users["id"][rows]
        town = self._towns[str(self._loaded[e])]
        match_agents(world.agents[e, 1:], maps.maps[world.episodes["map"][e]], town.lanes)
        self._set_lights(e, arrays["lights"], dt)
        if self._front is not None:
            self._front[e] = arrays["image"]

    def _set_lights(self, e: int, lights: NDArray[Any], dt: float) -> None:
        """Write the timing of the map's lights so that `right_of_way.light` gives their state on the server."""
        found = self._lights[e]
        if not len(found):
            return
        episode = self.world.episodes[e]
        first = self.bank.arrays.maps["signal"][episode["map"]]
        rows = self.bank.arrays.signals[first : first + len(found)]
        state = np.where(found >= 0, lights["state"][found] if len(lights) else OFF, OFF)
        durations = np.zeros((4, len(found)))
        elapsed = np.zeros(len(found))
        if len(lights):
            there = lights[np.maximum(found, 0)]
            durations[:2] = there["green_s"], there["yellow_s"]
            elapsed = there["elapsed_s"]
        # the present in the clock of the kernels, where time is a sum of float32
        now = np.float32(episode["time"] + np.float64(dt)) + episode["offset"]
        show_phases(rows, now, state, np.take_along_axis(durations, state[None], 0)[0] - elapsed)

    def _hit(self, e: int, hits: NDArray[Any]) -> tuple[int, int]:
        """Kind of collision and slot of the other, of the gravest of some collisions."""
        kinds = [(HITS.get(int(row["kind"]), HIT_STATIC), int(row["id"])) for row in hits]
        for kind in GRAVITY:
            for found, number in kinds:
                if found == kind:
                    at = np.flatnonzero(self._slots[e] == number)
                    return kind, int(at[0]) + 1 if len(at) else -1
        return HIT_NONE, -1

    # losses

    def _exchange(
        self, envs: Iterable[int], do: str, requests: Mapping[int, Any] | Sequence[Any]
    ) -> dict[int, Answer | ServerLost]:
        """Send a request to some servers at once, and wait for all answers.

        Raises:
            ConfigError, CarlaFault: a client refuses the request.
        """
        refused: RobotrlError | None = None
        found: dict[int, Answer | ServerLost] = {}
        waiting: list[int] = []
        for e in envs:
            fields, arrays = ({}, requests[e]) if do == "step" else (requests[e], {})
            try:
                self.links[e].tell(do, fields, arrays)
            except ServerLost as lost:
                found[e] = lost
            else:
                waiting.append(e)
        for e in waiting:
            try:
                found[e] = self.links[e].hear_of(do)
            except ServerLost as lost:
                found[e] = lost
            except RobotrlError as error:
                refused = refused or error
        if refused is not None:
            raise refused
        return found

    def _renew(self, e: int, why: ServerLost) -> None:
        """Begin anew with an env's server and client.

        Raises:
            CarlaFault: it was lost too often in a row.
        """
        while True:
            self.losses += 1
            self._in_a_row[e] += 1
            if self._in_a_row[e] > self._restarts:
                raise CarlaFault(
                    f"{self._name}: env {e} lost its server {self._in_a_row[e]} times with no step in between, at last:"
                    f" {why}; expected a step to succeed, restarts is {self._restarts}"
                )
            warnings.warn(f"{self._name}: env {e} lost its server ({why}); its episode is repeated", stacklevel=2)
            try:
                self.links[e].reopen()
            except ServerLost as lost:
                why = lost
                continue
            return

    def _repeat(self, e: int, why: ServerLost) -> None:
        """Repeat an env's episode up to the present step on a new server."""
        steps = self.world.episodes["steps"]
        controls = list(self._controls[e]) if steps[e] else []
        ahead = int(steps[e]) - len(controls)  # of a staggered start
        while True:
            self._renew(e, why)
            try:
                self._place(e, self.links[e].ask_begin(self._orders[e]))
                steps[e] = ahead
                for steer, accel in controls:
                    self.links[e].tell("step", {}, {"controls": self._pedals(steer, accel)})
                    self._absorb(e, self.links[e].hear_of("step")[1], steer, accel)
            except ServerLost as lost:
                why = lost
                self._controls[e] = controls
                continue
            return

    def _mended(self, e: int, why: ServerLost, control: NDArray[np.float64], before: Any) -> Answer | None:
        """Answer to a control step whose server was lost, after a repetition; None if that came out otherwise."""
        world = self.world
        present = world.agents[e].copy()
        while True:
            self._repeat(e, why)
            moved = [np.abs(world.agents[e][axis] - present[axis]).max() for axis in ("x", "y")]
            if max(moved) > SAME_M:
                for name in RECORDS:
                    getattr(world, name)[e] = getattr(before, name)[e]
                return None
            try:
                self.links[e].tell("step", {}, {"controls": self._pedals(*control)})
                answer = self.links[e].hear_of("step")
            except ServerLost as lost:
                why = lost
                continue
            self.repeats += 1
            return answer

    def _write_off(self, ids: Ids) -> None:
        """Report episodes as lost, and queue their starts again."""
        for e in ids.tolist():
            self.reward[e], self.terms[e], self.done[e], self.events[e] = 0.0, 0.0, 2, 0
            self.completion[e] = 0.0
            self._starts.again(int(self.state_ids[e]))

    def close(self) -> None:
        """Give the servers their clocks back, end those that we started, and release the threads."""
        for link in self.links:
            link.close()
        super().close()
