"""`bev/drive`: driving in traffic, seen from above: routes, lights, pedestrians, scenarios, OpenDRIVE maps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, check_at_least, check_count, check_number, unknown
from robotrl.sims.bev import rewards, tables, trace
from robotrl.sims.bev.backends.backend import Backend, Threads
from robotrl.sims.bev.backends.cuda import Cuda
from robotrl.sims.bev.opendrive import reader
from robotrl.sims.bev.plan import ActionKind, actions_of
from robotrl.sims.bev.render import picture, raster, vectors
from robotrl.sims.bev.rewards import RewardCfg
from robotrl.sims.bev.roads import maps, procedural, routes
from robotrl.sims.bev.roads.map_pool import MapPool
from robotrl.sims.bev.trace import KeepingCore
from robotrl.sims.bev.traffic.driver import RouteDriver
from robotrl.sims.bev.traffic.scenarios import SCENARIOS, Scenario, ScenarioEvent
from robotrl.sims.core_sim import CoreSim, TensorExpert
from robotrl.spec import Input, Spec, declares
from robotrl.spec.drive_trace import TraceFrame, TraceMap, TraceStep
from robotrl.utils.devices import device_of

DT_S = 0.1
OBSERVED = ("vector", "raster", "both", "none")
Observed = Literal["vector", "raster", "both", "none"]
MAX_AGENTS = 256


class DriveSim(CoreSim[KeepingCore]):
    """Batched driving sim; see `make`."""

    cameras = ("top",)

    def __init__(self, core: KeepingCore, observation_spec: dict[str, Spec], privileged: tuple[str, ...]) -> None:
        info = {"route_completion": core.completion, "events": core.events, "driving_score": core.score}
        machine = core.machine
        where: dict[str, Any] = {}
        if isinstance(machine, Cuda):
            where = {"device": machine.device, "tensor": machine.tensor}
        self.threads = machine.count if isinstance(machine, Threads) else None
        super().__init__(core, observation_spec, core.action_spec, DT_S * core.rules.hold, info, **where)
        self.privileged = privileged
        self.action_is_plan = core.rules.planned == 1
        terms = self._tensor(core.terms)
        self.terms = {name: terms[:, k] for k, name in enumerate(tables.TERMS)}
        """Reward terms (N,) of the last step, by name; see `rewards`."""

    def make_expert(
        self, noise: float = 0.0, clumsiness: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> TensorExpert:
        """Make the rule-based driver on this sim; see `RouteDriver` for the arguments."""
        return TensorExpert(RouteDriver(self.core, noise, clumsiness, mode, seed))

    @property
    def scenarios(self) -> tuple[str, ...]:
        """Names of the scenarios in use."""
        return tuple(scenario.name for scenario in self.core.scenarios)

    def scenario_of(self, state_id: int) -> str:
        """Name of a start id's scenario."""
        return self.core.scenarios[state_id % len(self.core.scenarios)].name

    def render(self, ids: Sequence[int], camera: str, width: int, height: int) -> NDArray[np.uint8]:
        """Images (n, height, width, 3) from above; the ego faces up."""
        if camera not in self.cameras:
            raise unknown("camera", camera, self.cameras)
        return picture.draw(self.core, ids, width, height)

    def trace_map(self, env: int) -> TraceMap:
        """Map of an env's running episode, for the episode recording."""
        return trace.map_of(self.core, env)

    def trace_frame(self, env: int) -> TraceFrame:
        """Present poses of all road users, for the episode recording."""
        return trace.frame_of(self.core, self.core.world, env)

    def trace_step(self, env: int) -> TraceStep:
        """Result of the last step, for the episode recording."""
        return trace.step_of(self.core, env)

    def trace_plan(self, env: int, actions: NDArray[Any]) -> NDArray[np.float64]:
        """Predicted ego poses (m, 3) x, y, yaw: after each of the actions (n, A), or along the first trajectory."""
        return trace.plan_of(self.core, env, actions)

    def close(self) -> None:
        """Release the threads."""
        self.core.close()


def chosen(scenarios: Sequence[str] | str | None) -> tuple[Scenario, ...]:
    """Scenarios by name, as a list or a comma-separated text; all scenarios if None.

    Raises:
        ConfigError: an unknown name, one named twice, or none.
    """
    if scenarios is None:
        return SCENARIOS
    if isinstance(scenarios, str):
        scenarios = scenarios.split(",")
    names = [scenario.name for scenario in SCENARIOS]
    for name in scenarios:
        if name not in names:
            raise unknown("scenario", name, names)
    if not scenarios or len(set(scenarios)) != len(scenarios):
        raise ConfigError(f"scenarios is {tuple(scenarios)!r}: expected each name once, and one or more")
    return tuple(SCENARIOS[names.index(name)] for name in scenarios)


def make(
    num_envs: int,
    seed: int,
    *,
    agents: int = 32,
    obs: Observed = "vector",
    scenarios: Sequence[str] | str | None = None,
    reward: str | RewardCfg = "carl",
    end_penalty: float | None = None,
    map: str | Path | None = None,
    limit_s: float = 80.0,
    blocked_s: float = 45.0,
    nearest: int = 8,
    polylines: int = 8,
    raster_pixels: int = 96,
    pixels_per_m: float = 2.0,
    packed: bool = False,
    throttle_mps2: float = 2.4,
    actions: ActionKind = "controls",
    hold: int | None = None,
    points: int = 4,
    threads: int = 0,
    device: str = "cpu",
) -> DriveSim:
    """Make the batched driving sim.

    Args:
        num_envs: N, 1 or more.
        seed: seeds which training starts are drawn.
        agents: road users in each env at most, the ego included, 4 to 256.
        obs: what is observed: "vector" arrays, the "raster" as CaRL draws it, "both" or "none".
        scenarios: names of the scenarios to drive, or a text with commas between them; all without.
        reward: "carl" or "roach", or a `RewardCfg`.
        end_penalty: what a collision or a red light costs with "carl", of the 100 of a whole route, 0 to 100; its own
            is 1.
        map: an OpenDRIVE file to drive on instead of the procedural roads.
        limit_s: time limit of an episode, 1 to 3,600 s.
        blocked_s: standing for so long ends it.
        nearest: road users in the observation, 0 to 32.
        polylines: segments of lanes in it, 0 to 16.
        raster_pixels: height and width of the raster, even.
        pixels_per_m: its resolution.
        packed: give the raster as two bytes of bits for each pixel.
        throttle_mps2: acceleration at an action of 1; the fit that the other constants come from has 0.56, a mean over
            cars that mostly drive already, with which a car takes 20 s to reach 11 m/s.
        actions: "controls": steer and accel; "trajectory": points 0.5 s apart in the ego's frame, which a tracker
            follows.
        hold: control steps of 0.1 s that an action lasts, 1 to 50; None: 1 for controls, 5 for a trajectory.
        points: of a trajectory, 2 to 16.
        threads: that step the envs, 0 for every core; of a processor alone.
        device: what steps them, and where the tensors are: "cpu", or "cuda" or "cuda:1" for a GPU.

    Raises:
        ConfigError: a value out of range, with what was expected.
    """
    check_at_least("num_envs", num_envs, 1)
    for name, value, low, high in (
        ("agents", agents, 4, MAX_AGENTS),
        ("nearest", nearest, 0, 32),
        ("polylines", polylines, 0, maps.NEAREST),
        ("threads", threads, 0, 1024),
    ):
        check_count(name, value, low, high)
    check_number("limit_s", limit_s, 1.0, 3600.0, "s")
    if obs not in OBSERVED:
        raise unknown("obs", str(obs), OBSERVED)
    if isinstance(reward, str) and reward not in rewards.PRESETS:
        raise unknown("reward", reward, rewards.PRESETS)
    if end_penalty is not None:
        if reward != "carl":
            raise ConfigError(f"end_penalty is {end_penalty!r}, but reward is not 'carl': expected ends of its own")
        check_number("end_penalty", end_penalty, 0.0, 100.0)
        reward = rewards.carl(end_penalty)
    elif isinstance(reward, str):
        reward = rewards.PRESETS[reward]()
    machine = machine_of(device, min(threads or os.cpu_count() or 1, num_envs))
    if map is None:
        bank, driven = MapPool(machine, lambda key: maps.finish(procedural.layout(*key))), chosen(scenarios)
    else:
        if scenarios is not None:
            raise ConfigError("scenarios and map are both given: expected one of them, an own map has no scenarios")
        bank, driven = _own_map(machine, map), (Scenario("map", "map", ScenarioEvent.NONE),)
    specs: dict[str, Spec] = {}
    cfg = raster.RasterCfg(raster_pixels, raster_pixels, pixels_per_m)
    views = None
    if obs in ("raster", "both"):
        specs["bev"] = raster.raster_spec(cfg, packed, num_envs)
        views = raster.make_views(machine.zeros, cfg, num_envs, packed)
    if obs == "raster":
        specs["ego"] = vectors.ego_spec()
    if obs in ("vector", "both"):
        specs |= vectors.vector_specs(nearest, polylines)
    if obs != "none":
        specs["privileged"] = vectors.privileged_spec()
    taken = actions_of(actions, hold, points)
    core = KeepingCore(
        bank,
        num_envs,
        agents,
        driven,
        round(limit_s / DT_S),
        rewards.rules(reward, taken, blocked_s, throttle_mps2, DT_S),
        taken.spec,
        seed,
        machine,
        vectors.make_vectors(machine.zeros, num_envs, nearest, polylines, obs in ("vector", "both"), obs != "none"),
        views,
        tuple(specs),
    )
    return DriveSim(core, specs, ("privileged",) if obs != "none" else ())


def _inputs(options: Mapping[str, Any]) -> list[Input]:
    """Input files of the options; see `HasInputs`."""
    return [Input("map", "file", str(options["map"]))] if options.get("map") is not None else []


declares(_inputs, make)


def machine_of(device: str, threads: int) -> Backend:
    """Make the backend for a device.

    Raises:
        ConfigError: the device does not exist here.
    """
    place = device_of(device)
    if place.type == "cpu":
        return Threads(threads)
    if place.type != "cuda":
        raise ConfigError(f"device is {device!r}: bev/drive steps on 'cpu' and on 'cuda'")
    return Cuda(place.index or 0)


def _own_map(machine: Backend, path: str | Path) -> MapPool:
    builder = reader.read(Path(path))
    if not builder.routes:
        routes.pick_routes(builder, count=64, seed=0, length_m=200.0)
    finished = maps.finish(builder)
    return MapPool(machine, lambda key: finished)
