"""Torch side of the driving sims: cameras, captions, recordings, and the options that all of them have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import ConfigError, check_at_least, check_count, check_number, unknown
from robotrl.sims.core_sim import CoreSim, TensorExpert
from robotrl.sims.driving import action_captions, captions, rewards, tables, trace
from robotrl.sims.driving.backends.backend import Backend, Threads
from robotrl.sims.driving.backends.cuda import Cuda
from robotrl.sims.driving.core import DrivingCore
from robotrl.sims.driving.observations import DrivingObservations, Observed, make_observations
from robotrl.sims.driving.plan import SPACING_S, ActionKind, Actions, actions_of
from robotrl.sims.driving.render import picture, raster, vectors
from robotrl.sims.driving.rewards import RewardCfg, Rules
from robotrl.sims.driving.scene import FACTS
from robotrl.sims.driving.traffic.driver import RouteDriver
from robotrl.spec import TrainDefaults
from robotrl.spec.drive_trace import TraceFrame, TraceMap, TraceStep
from robotrl.spec.sim_options import NOT_LOG_ONLY, UNPERTURBED, LogOnlyCfg, PerturbCfg
from robotrl.spec.vehicle import VehicleObs

DT_S = 0.1
RewardPreset = Literal["carl", "roach"]
MAX_AGENTS = 256
VEHICLE = VehicleObs(
    "scalars", "speed", vectors.SPEED, "route_offset", vectors.OFFSET, "heading_error_sin", "heading_error_cos"
)
D = TypeVar("D", bound=DrivingCore)


class DrivingSim(CoreSim[D]):
    """Batched driving sim around a core of a driving world."""

    cameras = tuple(picture.VIEWS)
    caption_topics = captions.TOPICS
    caption_camera = "near"
    action_captions = action_captions.ACTIONS

    def __init__(self, core: D, observed: DrivingObservations, info: Mapping[str, NDArray[Any]] | None = None) -> None:
        shared = {"route_completion": core.completion, "events": core.events, "driving_score": core.score}
        info = shared | dict(info or {})
        machine = core.machine
        where: dict[str, Any] = {}
        if isinstance(machine, Cuda):
            where = {"device": machine.device, "tensor": machine.tensor}
        self.threads = machine.count if isinstance(machine, Threads) else None
        super().__init__(core, observed.specs, core.action_spec, DT_S * core.rules.hold, info, **where)
        self.privileged = tuple(key for key in observed.specs if key == "privileged")
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
        return self.core.scenarios

    def scenario_of(self, state_id: int) -> str:
        """Name of a start id's scenario."""
        return self.core.scenarios[state_id % len(self.core.scenarios)]

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

    def time_to_collision_ahead_s(self) -> NDArray[np.float64]:
        """The same (N,) without those behind; see `HasTimeToCollisionAhead`."""
        return captions.facts(self.core)[:, FACTS.index("ttc_ahead_s")]

    @property
    def trajectory_dt_s(self) -> float | None:
        """Seconds between the points of a trajectory; None if actions are steering and acceleration."""
        return SPACING_S if self.action_is_plan else None

    def plan_frame(self) -> NDArray[np.float64]:
        """Pose and speed (N, 4) of the egos; see `HasPlanFrame`."""
        self.core.machine.wait()
        return trace.columns(self.core.world.egos, "x", "y", "yaw", "v")

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


@dataclass(frozen=True)
class DrivingCfg:
    """Options that all driving sims have; see `bev/drive`."""

    train_defaults: ClassVar[TrainDefaults] = TrainDefaults(
        {
            "sim.num_envs": 128,
            "policy.horizon": 1,
            "algo.critic_warmup_env_steps": 0,
            "algo.normalize_reward": True,
            "evaluation.episodes": 64,
        }
    )
    policy_options: ClassVar[tuple[str, ...]] = (
        "obs",
        "nearest",
        "polylines",
        "raster_pixels",
        "pixels_per_m",
        "packed",
        "throttle_mps2",
        "actions",
        "hold",
        "points",
        "history",
    )
    obs: Observed = "vector"
    """Observation: vectors, the bird's-eye raster as CaRL draws it, both or none."""
    reward: RewardPreset = "carl"
    """Reward: CaRL's, or Roach's shaped one (a negative control)."""
    reward_terms: Annotated[RewardCfg | None, tyro.conf.Fixed] = None
    """Reward of one's own terms and weights instead of a named one; in Python only."""
    end_penalty: float | None = None
    """Cost of a collision or red light with reward "carl", 0 to 100, where a whole route is worth 100; None takes 1."""
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

    perturb: PerturbCfg = UNPERTURBED
    """Perturbations: places, looks, words, delay, noise, mass and friction; see docs/perturbations.md."""
    history: int = 1
    """Control steps whose observations a policy is given, the present one last, 1 to 100; see docs/history.md."""
    log_only: LogOnlyCfg = NOT_LOG_ONLY
    """Log-only mode: a budget of episodes from starts that nobody chooses; see docs/log-only.md."""

    def check(self, num_envs: int) -> None:
        """Check the options that are not checked where they are used.

        Raises:
            ConfigError: a value out of range, with what was expected.
        """
        check_at_least("num_envs", num_envs, 1)
        check_number("limit_s", self.limit_s, 1.0, 3600.0, "s")

    def taken(self) -> Actions:
        """Action settings.

        Raises:
            ConfigError: a value out of range.
        """
        return actions_of(self.actions, self.hold, self.points)

    def rules(self, taken: Actions) -> Rules:
        """Reward and action settings as kernels read them.

        Raises:
            ConfigError: an unknown reward, or a value out of range.
        """
        return rewards.rules(self.reward_cfg(), taken, self.blocked_s, self.throttle_mps2, DT_S)

    def observations(self, machine: Backend, num_envs: int) -> DrivingObservations:
        """Observations, in memory of a backend.

        Raises:
            ConfigError: an unknown kind, or a number out of range.
        """
        cfg = raster.RasterCfg(self.raster_pixels, self.raster_pixels, self.pixels_per_m)
        return make_observations(machine.zeros, self.obs, num_envs, self.nearest, self.polylines, cfg, self.packed)

    def reward_cfg(self) -> RewardCfg:
        """Reward that the options say.

        Raises:
            ConfigError: an unknown reward, or an end penalty beside another one.
        """
        if not isinstance(self.reward, str) or self.reward not in rewards.PRESETS:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise unknown("reward", str(self.reward), rewards.PRESETS)
        if self.end_penalty is not None:
            if self.reward != "carl" or self.reward_terms is not None:
                raise ConfigError(f"end_penalty is {self.end_penalty!r}, but reward is not 'carl': expected None")
            check_number("end_penalty", self.end_penalty, 0.0, 100.0)
            return rewards.carl(self.end_penalty)
        return rewards.PRESETS[self.reward]() if self.reward_terms is None else self.reward_terms


@dataclass(frozen=True)
class TrafficCfg(DrivingCfg):
    """Options that driving sims with traffic on a map have; see `bev/drive`."""

    agents: int = 32
    """Maximum number of road users in each env, the ego included, 4 to 256."""
    routes: int = 64
    """Largest number of routes that are drawn on a map of one's own or a town, 1 to 100,000: five eighths of them are
    for training, an eighth for val and the rest for test."""
    route_length_m: float = 200.0
    """Length of a drawn route, 11 to 100,000 m; shorter where a map has no such way."""
    pose_noise_m: float = 0.0
    """Standard deviation of the error of the ego's localization, along and aside, 0 to 10 m: displaces all that is
    observed of the map, not road users."""
    heading_noise_deg: float = 0.0
    """Standard deviation of the error of the ego's heading on the map, 0 to 30 degrees."""
    speed_noise_mps: float = 0.0
    """Standard deviation of the error of the ego's measured speed, 0 to 10 m/s."""
    pose_noise_s: float = 1.0
    """Time after which these errors are independent, 0.1 to 100 s; 0.1 gives every step errors of its own."""

    def check(self, num_envs: int) -> None:
        """Check the options that are not checked where they are used.

        Raises:
            ConfigError: a value out of range, with what was expected.
        """
        super().check(num_envs)
        check_count("agents", self.agents, 4, MAX_AGENTS)
        check_count("routes", self.routes, 1, 100_000)
        check_number("route_length_m", self.route_length_m, 11.0, 1e5, "m")
        check_number("pose_noise_m", self.pose_noise_m, 0.0, 10.0, "m")
        check_number("heading_noise_deg", self.heading_noise_deg, 0.0, 30.0, "degrees")
        check_number("speed_noise_mps", self.speed_noise_mps, 0.0, 10.0, "m/s")
        check_number("pose_noise_s", self.pose_noise_s, 0.1, 100.0, "s")

    def rules(self, taken: Actions) -> Rules:
        """Reward, action settings and errors of localization as kernels read them; see `DrivingCfg.rules`."""
        return (
            super()
            .rules(taken)
            ._replace(
                pose_noise_m=float(self.pose_noise_m),
                heading_noise_rad=math.radians(self.heading_noise_deg),
                speed_noise_mps=float(self.speed_noise_mps),
                pose_noise_s=float(self.pose_noise_s),
            )
        )
