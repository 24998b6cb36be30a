"""`bev/drive`: driving in traffic, seen from above: routes, lights, pedestrians, scenarios, OpenDRIVE maps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import ConfigError, check_at_least, check_count, check_number, unknown
from robotrl.sims.bev import action_captions, captions, rewards, tables, trace
from robotrl.sims.bev.backends.backend import Backend, Threads
from robotrl.sims.bev.backends.cuda import Cuda
from robotrl.sims.bev.opendrive import reader
from robotrl.sims.bev.plan import ActionKind, actions_of
from robotrl.sims.bev.render import picture, raster, vectors
from robotrl.sims.bev.rewards import RewardCfg
from robotrl.sims.bev.roads import maps, procedural, routes
from robotrl.sims.bev.roads.map_pool import MapPool
from robotrl.sims.bev.trace import FinalStateCore
from robotrl.sims.bev.traffic.driver import RouteDriver
from robotrl.sims.bev.traffic.scenarios import SCENARIOS, Scenario, ScenarioEvent
from robotrl.sims.core_sim import CoreSim, TensorExpert
from robotrl.spec import Input, Spec, TrainDefaults
from robotrl.spec.drive_trace import TraceFrame, TraceMap, TraceStep
from robotrl.spec.vehicle import VehicleObs
from robotrl.utils.devices import device_of

DT_S = 0.1
OBSERVED = ("vector", "raster", "both", "none")
Observed = Literal["vector", "raster", "both", "none"]
RewardPreset = Literal["carl", "roach"]
MAX_AGENTS = 256
VEHICLE = VehicleObs(
    "scalars", "speed", vectors.SPEED, "route_offset", vectors.OFFSET, "heading_error_sin", "heading_error_cos"
)


class DriveSim(CoreSim[FinalStateCore]):
    """Batched driving sim; see `DriveCfg`."""

    cameras = tuple(picture.SPAN_M)
    caption_topics = captions.TOPICS
    caption_camera = "near"
    action_captions = action_captions.ACTIONS

    def __init__(self, core: FinalStateCore, observation_spec: dict[str, Spec], privileged: tuple[str, ...]) -> None:
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

    @property
    def limit_steps(self) -> int:
        """Time limit of an episode, control steps (`robotrl.spec.HasTimeLimit`)."""
        return self.core.limit_steps

    def elapsed_steps(self) -> Tensor:
        """Steps (N,) int64 of each running episode."""
        return torch.from_numpy(self.core.world.episodes["steps"].astype(np.int64)).to(self.device)

    def make_expert(
        self, noise: float = 0.0, episode_noise: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> TensorExpert:
        """Make the rule-based driver on this sim; see `RouteDriver` for the arguments."""
        return TensorExpert(RouteDriver(self.core, noise, episode_noise, mode, seed))

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
        return picture.draw(self.core, ids, camera, width, height)

    @property
    def vehicle_obs(self) -> VehicleObs | None:
        """Speed, offset and heading among the observations."""
        return VEHICLE if VEHICLE.key in self.observation_spec else None

    def caption_classes(self) -> NDArray[np.int8]:
        """(N, topics) which caption of each topic is true of the present scene."""
        return captions.classes_of(captions.facts(self.core))

    def action_contexts(self) -> NDArray[np.float64]:
        """(N, 2) numbers that the context of an action depends on."""
        return action_captions.context_numbers(captions.facts(self.core))

    def time_to_collision_s(self) -> NDArray[np.float64]:
        """Time (N,) to the next collision if all keep speed and course; see `HasTimeToCollision`."""
        return captions.facts(self.core)[:, 0]

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


def chosen(scenarios: Sequence[str] | None) -> tuple[Scenario, ...]:
    """Scenarios by name; all scenarios if None.

    Raises:
        ConfigError: an unknown name, one named twice, or none.
    """
    if scenarios is None:
        return SCENARIOS
    names = [scenario.name for scenario in SCENARIOS]
    for name in scenarios:
        if name not in names:
            raise unknown("scenario", name, names)
    if not scenarios or len(set(scenarios)) != len(scenarios):
        raise ConfigError(f"scenarios is {tuple(scenarios)!r}: expected each name once, and one or more")
    return tuple(SCENARIOS[names.index(name)] for name in scenarios)


@dataclass(frozen=True)
class DriveCfg:
    """`bev/drive`: driving in traffic, seen from above: routes, lights, pedestrians, scenarios, OpenDRIVE maps."""

    train_defaults: ClassVar[TrainDefaults] = TrainDefaults(
        {
            "sim.num_envs": 128,
            "policy.horizon": 1,
            "algo.critic_warmup_env_steps": 0,
            "algo.normalize_reward": True,
            "evaluation.episodes": 64,
        }
    )
    agents: int = 32
    """Maximum number of road users in each env, the ego included, 4 to 256."""
    obs: Observed = "vector"
    """Observation: vectors, the bird's-eye raster as CaRL draws it, both or none."""
    scenarios: tuple[str, ...] | None = None
    """Names of the scenarios to drive; None takes all."""
    reward: RewardPreset = "carl"
    """Reward: CaRL's, or Roach's shaped one (a negative control)."""
    reward_terms: Annotated[RewardCfg | None, tyro.conf.Fixed] = None
    """Reward of one's own terms and weights instead of a named one; in Python only."""
    end_penalty: float | None = None
    """Cost of a collision or red light with reward "carl", 0 to 100, where a whole route is worth 100; None takes 1."""
    map: str | None = None
    """OpenDRIVE file to drive on instead of the procedural roads."""
    limit_s: float = 80.0
    """Time limit of an episode, 1 to 3,600 s."""
    blocked_s: float = 45.0
    """Standing time that ends an episode, s."""
    nearest: int = 8
    """Road users in the observation, 0 to 32."""
    polylines: int = 8
    """Lane segments in the observation, 0 to 16."""
    raster_pixels: int = 96
    """Height and width of the raster, even."""
    pixels_per_m: float = 2.0
    """Resolution of the raster, pixels per meter."""
    packed: bool = False
    """Give the raster as two bytes of bits for each pixel."""
    throttle_mps2: float = 2.4
    """Acceleration at an action of 1, m/s^2; the fit that the other constants come from has 0.56, a mean over cars that
    mostly drive already, with which a car takes 20 s to reach 11 m/s."""
    actions: ActionKind = "controls"
    """Action: "controls": steer and accel; "trajectory": points 0.5 s apart in the ego's frame, which a tracker
    follows."""
    hold: int | None = None
    """Control steps of 0.1 s that an action lasts, 1 to 50; None: 1 for controls, 5 for a trajectory."""
    points: int = 4
    """Points of a trajectory, 2 to 16."""
    threads: int = 0
    """CPU threads that step the envs; 0 uses every core."""
    device: str = "cpu"
    """Device that steps the envs and holds the tensors: "cpu", "cuda" or "cuda:1"."""

    def build(self, num_envs: int, seed: int) -> DriveSim:
        """Build the batched sim.

        Args:
            num_envs: N, 1 or more.
            seed: seed of the training starts that are drawn.

        Raises:
            ConfigError: a value out of range, with what was expected.
        """
        check_at_least("num_envs", num_envs, 1)
        for name, value, low, high in (
            ("agents", self.agents, 4, MAX_AGENTS),
            ("nearest", self.nearest, 0, 32),
            ("polylines", self.polylines, 0, maps.NEAREST),
            ("threads", self.threads, 0, 1024),
        ):
            check_count(name, value, low, high)
        check_number("limit_s", self.limit_s, 1.0, 3600.0, "s")
        if self.obs not in OBSERVED:
            raise unknown("obs", str(self.obs), OBSERVED)
        reward = self._reward()
        machine = machine_of(self.device, min(self.threads or os.cpu_count() or 1, num_envs))
        if self.map is None:
            bank, driven = MapPool(machine, lambda key: maps.finish(procedural.layout(*key))), chosen(self.scenarios)
        else:
            if self.scenarios is not None:
                raise ConfigError("scenarios and map are both given: expected one of them, an own map has no scenarios")
            bank, driven = _own_map(machine, self.map), (Scenario("map", "map", ScenarioEvent.NONE),)
        specs: dict[str, Spec] = {}
        cfg = raster.RasterCfg(self.raster_pixels, self.raster_pixels, self.pixels_per_m)
        views = None
        if self.obs in ("raster", "both"):
            specs["bev"] = raster.raster_spec(cfg, self.packed, num_envs)
            views = raster.make_views(machine.zeros, cfg, num_envs, self.packed)
        if self.obs == "raster":
            specs["ego"] = vectors.ego_spec()
        if self.obs in ("vector", "both"):
            specs |= vectors.vector_specs(self.nearest, self.polylines)
        if self.obs != "none":
            specs["privileged"] = vectors.privileged_spec()
        taken = actions_of(self.actions, self.hold, self.points)
        core = FinalStateCore(
            bank,
            num_envs,
            self.agents,
            driven,
            round(self.limit_s / DT_S),
            rewards.rules(reward, taken, self.blocked_s, self.throttle_mps2, DT_S),
            taken.spec,
            seed,
            machine,
            vectors.make_vectors(
                machine.zeros,
                num_envs,
                self.nearest,
                self.polylines,
                self.obs in ("vector", "both"),
                self.obs != "none",
            ),
            views,
            tuple(specs),
        )
        return DriveSim(core, specs, ("privileged",) if self.obs != "none" else ())

    def inputs(self) -> list[Input]:
        """Map file that the sim reads; see `HasInputs`."""
        return [Input("map", "file", self.map)] if self.map is not None else []

    def _reward(self) -> RewardCfg:
        if not isinstance(self.reward, str) or self.reward not in rewards.PRESETS:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise unknown("reward", str(self.reward), rewards.PRESETS)
        if self.end_penalty is not None:
            if self.reward != "carl" or self.reward_terms is not None:
                raise ConfigError(f"end_penalty is {self.end_penalty!r}, but reward is not 'carl': expected None")
            check_number("end_penalty", self.end_penalty, 0.0, 100.0)
            return rewards.carl(self.end_penalty)
        return rewards.PRESETS[self.reward]() if self.reward_terms is None else self.reward_terms


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
