"""`bev/drive`: the driving world as a `VecSim` of torch tensors that share its memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import ConfigError, check_count, check_number, out_of_range, unknown
from robotrl.sims import starts
from robotrl.sims.actions import ActionBounds
from robotrl.sims.bev import maps, observe, opendrive, picture, raster, rewards, roads, routes, tables, trace
from robotrl.sims.bev.bank import Bank
from robotrl.sims.bev.core import Views
from robotrl.sims.bev.driver import RouteDriver
from robotrl.sims.bev.plan import ActionKind, actions_of
from robotrl.sims.bev.rewards import RewardCfg
from robotrl.sims.bev.scenarios import SCENARIOS, Event, Scenario
from robotrl.sims.bev.trace import KeepingCore
from robotrl.spec import Spec, Split, Step
from robotrl.trace import TraceFrame, TraceMap, TraceStep

if TYPE_CHECKING:
    import gymnasium

DT_S = 0.1
OBSERVED = ("vector", "raster", "both", "none")
Observed = Literal["vector", "raster", "both", "none"]
MAX_AGENTS = 256


class TensorDriver:
    """The rule-based driver in torch clothes; satisfies `robotrl.spec.Expert`."""

    def __init__(self, driver: RouteDriver) -> None:
        self._driver = driver
        self.modes = driver.modes
        self.mode: Tensor = torch.from_numpy(driver.mode)

    def act(self, started: Tensor) -> Tensor:
        """Actions (N, A); `started` (N,) bool marks envs at the first step of an episode."""
        return torch.from_numpy(self._driver.act(started.numpy()))


class DriveSim:
    """A batch of driving episodes; see `make`.

    Tensors are views of the core's memory: nothing is copied, and `Step` is overwritten by the next step.
    """

    device = torch.device("cpu")
    buffers_are_reused = True
    has_final_obs: Literal[True] = True
    cameras = ("top",)

    def __init__(self, core: KeepingCore, observation_spec: dict[str, Spec], privileged: tuple[str, ...]) -> None:
        self.core = core
        self.num_envs = core.num_envs
        self.threads = core.threads
        self.observation_spec = observation_spec
        self.privileged = privileged
        self.action_spec = core.action_spec
        self.control_dt_s = DT_S * core.rules.hold
        self.action_is_plan = core.rules.planned == 1
        self._bounds = ActionBounds(core.action_spec, core.num_envs, "bev/drive")
        self._obs = {key: torch.from_numpy(value) for key, value in core.obs.items()}
        self._no_obs = {key: value[:0] for key, value in self._obs.items()}
        self._no_ids = torch.zeros(0, dtype=torch.int64)
        self._reward = torch.from_numpy(core.reward)
        self._terminated, self._truncated = torch.from_numpy(core.terminated), torch.from_numpy(core.truncated)
        self._info = {
            "success": torch.from_numpy(core.success),
            "state_id": torch.from_numpy(core.state_id),
            "route_completion": torch.from_numpy(core.completion),
            "events": torch.from_numpy(core.events),
            "driving_score": torch.from_numpy(core.score),
        }
        self.terms = {name: torch.from_numpy(core.terms[:, k]) for k, name in enumerate(tables.TERMS)}
        """(N,) terms of the last step's reward, by name; see `rewards`."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes; see `Core.reset` for the options."""
        self.core.reset(seed, options)
        return dict(self._obs)

    def step(self, actions: Tensor) -> Step:
        """Advance all envs by an action (N, A) each, clipped to its bounds; it lasts `control_dt_s`.

        Raises:
            ConfigError: wrong shape.
            NumericsError: an action is no number; env, step and action are named, and nothing has moved.
        """
        array = actions.detach().numpy()
        bounds = self._bounds
        if array.shape != bounds.shape:
            raise bounds.wrong_shape(array)
        array = array.astype(np.float32, copy=False)
        # NaN fails the comparison
        if not np.abs(array).max() <= bounds.always_inside:
            array = bounds.clipped(array, self.core.world.episodes["steps"])
        out = self.core.step(np.ascontiguousarray(array))
        ended = len(out.final_ids) > 0
        return Step(
            obs=dict(self._obs),
            reward=self._reward,
            terminated=self._terminated,
            truncated=self._truncated,
            final_obs={k: torch.from_numpy(v) for k, v in out.final_obs.items()} if ended else dict(self._no_obs),
            final_ids=torch.from_numpy(out.final_ids) if ended else self._no_ids,
            info=dict(self._info),
        )

    def restart(self, envs: Tensor) -> dict[str, Tensor]:
        """Start new episodes in the envs `envs` (n,) between two steps; gives the observation of all."""
        self.core.restart(envs.numpy())
        return dict(self._obs)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Exact state; see `Core.get_state`."""
        return self.core.get_state()

    def set_state(self, state: dict[str, NDArray[Any]]) -> dict[str, Tensor]:
        """Restore exact state; see `Core.set_state`."""
        self.core.set_state(state)
        return dict(self._obs)

    def state_ids(self, split: Split) -> range:
        """Start ids of a split; each split has layouts of its own."""
        return starts.ids_of(split)

    def queue_states(self, ids: Sequence[int] | NDArray[np.int64]) -> None:
        """Ids that the next restarts draw from; see `Core.queue_states`."""
        self.core.queue_states(ids)

    def make_expert(
        self, noise: float = 0.0, clumsiness: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> TensorDriver:
        """The rule-based driver on this sim; see `RouteDriver` for the arguments."""
        return TensorDriver(RouteDriver(self.core, noise, clumsiness, mode, seed))

    @property
    def scenarios(self) -> tuple[str, ...]:
        """Names of the scenarios that are driven."""
        return tuple(scenario.name for scenario in self.core.scenarios)

    def scenario_of(self, state_id: int) -> str:
        """Name of the scenario that a start id stands for."""
        return self.core.scenarios[state_id % len(self.core.scenarios)].name

    def render(self, ids: Sequence[int], camera: str, width: int, height: int) -> NDArray[np.uint8]:
        """Pictures (n, height, width, 3) from above, the ego looking up."""
        if camera not in self.cameras:
            raise unknown("camera", camera, self.cameras)
        return picture.draw(self.core, ids, width, height)

    def trace_map(self, env: int) -> TraceMap:
        """The map of an env's running episode."""
        return trace.map_of(self.core, env)

    def trace_frame(self, env: int) -> TraceFrame:
        """Where everybody is now."""
        return trace.frame_of(self.core, self.core.world, env)

    def trace_step(self, env: int) -> TraceStep:
        """What the last step brought."""
        return trace.step_of(self.core, env)

    def trace_plan(self, env: int, actions: NDArray[Any]) -> NDArray[np.float64]:
        """(m, 3) where actions (n, A) take the ego: x, y and yaw after each, or the points of the first trajectory."""
        return trace.plan_of(self.core, env, actions)

    def as_gymnasium(self) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """The same sim as a numpy `gymnasium.vector.VectorEnv`; `robotrl.sims.interop` has more options."""
        from robotrl.sims.interop import GymnasiumVectorEnv

        return GymnasiumVectorEnv(self)

    def close(self) -> None:
        """Let the threads go."""
        self.core.close()


def chosen(scenarios: Sequence[str] | None) -> tuple[Scenario, ...]:
    """Scenarios by their names, all of them without.

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


def make(
    num_envs: int,
    seed: int,
    *,
    agents: int = 32,
    obs: Observed = "vector",
    scenarios: Sequence[str] | None = None,
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
) -> DriveSim:
    """The batched sim.

    Args:
        num_envs: N, 1 or more.
        seed: seeds which training starts are drawn.
        agents: road users in each env at most, the ego included, 4 to 256.
        obs: what is observed: "vector" arrays, the "raster" as CaRL draws it, "both" or "none".
        scenarios: names of the scenarios to drive, all without.
        reward: "carl" or "roach", or a `RewardCfg`.
        end_penalty: what a collision or a red light costs with "carl", of the 100 of a whole route, 0 to 100; its own
            is 1.
        map: an OpenDRIVE file to drive on instead of the procedural roads.
        limit_s: time limit of an episode, 1 to 3,600 s.
        blocked_s: standing for so long ends it.
        nearest: road users in the observation, 0 to 32.
        polylines: segments of lanes in it, 0 to 16.
        raster_pixels: height and width of the raster.
        pixels_per_m: its resolution.
        packed: give the raster as two bytes of bits for each pixel.
        throttle_mps2: acceleration at an action of 1; the fit that the other constants come from has 0.56, a mean over
            cars that mostly drive already, with which a car takes 20 s to reach 11 m/s.
        actions: "controls": steer and accel; "trajectory": points 0.5 s apart in the ego's frame, which a tracker
            follows.
        hold: control steps of 0.1 s that an action lasts, 1 to 50; None: 1 for controls, 5 for a trajectory.
        points: of a trajectory, 2 to 16.
        threads: that step the envs, 0 for every core.

    Raises:
        ConfigError: a value out of range, with what was expected.
    """
    if num_envs < 1:
        raise out_of_range("num_envs", num_envs, "1 or more")
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
    if map is None:
        bank, driven = Bank(lambda key: maps.finish(roads.layout(*key))), chosen(scenarios)
    else:
        if scenarios is not None:
            raise ConfigError("scenarios and map are both given: expected one of them, an own map has no scenarios")
        bank, driven = _own_map(map), (Scenario("map", "map", Event.NONE),)
    specs: dict[str, Spec] = {}
    cfg = raster.RasterCfg(raster_pixels, raster_pixels, pixels_per_m)
    views = None
    if obs in ("raster", "both"):
        specs["bev"] = raster.raster_spec(cfg, packed, num_envs)
        shape = (num_envs, cfg.height, cfg.width)
        rows = 0 if packed else num_envs
        views = Views(cfg, np.zeros(shape, np.uint16), np.zeros((rows, *shape[1:], len(raster.CHANNELS)), np.uint8))
    if obs == "raster":
        specs["ego"] = observe.ego_spec()
    if obs in ("vector", "both"):
        specs |= observe.vector_specs(nearest, polylines)
    if obs != "none":
        specs["privileged"] = observe.privileged_spec()
    taken = actions_of(actions, hold, points)
    count = threads or os.cpu_count() or 1
    core = KeepingCore(
        bank,
        num_envs,
        agents,
        driven,
        round(limit_s / DT_S),
        rewards.rules(reward, taken, blocked_s, throttle_mps2, DT_S),
        taken.spec,
        seed,
        count,
        observe.make_vectors(num_envs, nearest, polylines, obs in ("vector", "both"), obs != "none"),
        views,
        tuple(specs),
    )
    return DriveSim(core, specs, ("privileged",) if obs != "none" else ())


def _own_map(path: str | Path) -> Bank:
    builder = opendrive.read(Path(path))
    if not builder.routes:
        routes.pick_routes(builder, count=64, seed=0, length_m=200.0)
    finished = maps.finish(builder)
    return Bank(lambda key: finished)
