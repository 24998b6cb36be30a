"""`bev/warp`: closed-loop driving in logs: logged bird's-eye frames are warped to where the ego is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import ConfigError, check_count, check_number, unknown
from robotrl.sims.driving.backends.backend import Threads
from robotrl.sims.driving.geometry import BRAKE_MPS2, FRONT_M, REAR_M, STEER_GAIN
from robotrl.sims.driving.logs.layout import INDEX, STEPS, DriveLog, FrameCfg, read_log
from robotrl.sims.driving.observations import DrivingObservations, make_observations
from robotrl.sims.driving.render import raster
from robotrl.sims.driving.rewards import RewardCfg
from robotrl.sims.driving.sim import DT_S, DrivingCfg, DrivingSim
from robotrl.sims.warp import warping
from robotrl.sims.warp.core import Forecaster, LogReplay, Reactive, WarpCore, WarpedFrames
from robotrl.sims.warp.scenes import logged_scenes
from robotrl.sims.warp.steps import COARSE, Limits
from robotrl.sims.warp.warping import FrameView
from robotrl.spec import Input, Spec, Split
from robotrl.spec.vehicle import LoggedScenes, SceneCfg, VehicleModel

REPLAY, REACTIVE = "replay", "reactive"
WarpReward = Literal["carl", "roach", "sequence"]
NO_VIEW = FrameView(1.0, 0.0, 0.0)
MASK = "bev_mask"


class BevWarpSim(DrivingSim[WarpCore]):
    """Batched driving sim on clips of a log; see `WarpCfg`."""

    def __init__(self, core: WarpCore, observed: DrivingObservations, specs: dict[str, Spec]) -> None:
        info = {
            "progress_ratio": core.ratio,
            "safety": core.safety,
            "efficiency": core.efficiency,
            "deviation_m": core.deviation,
            "covered": core.covered,
            "cut": core.cut,
        }
        super().__init__(core, observed._replace(specs=observed.specs | specs), info)

    def scenario_of(self, state_id: int) -> str:
        """Name of the scenario of a start's clip."""
        return self.core.log.meta.clips[self.core.clip_of(state_id)[0]].scenario

    def progress_ratio(self) -> NDArray[np.float64]:
        """Progress (N,) over the logged one; see `HasProgressRatio`."""
        return self.core.replays["ratio"].astype(np.float64)

    @property
    def vehicle(self) -> VehicleModel:
        """Constants of the ego; see `HasLoggedScenes`."""
        return VehicleModel(REAR_M, FRONT_M, STEER_GAIN, float(self.core.rules.throttle), BRAKE_MPS2)

    def logged_scenes(self, split: Split, cfg: SceneCfg) -> LoggedScenes:
        """Scenes of the log's clips; see `HasLoggedScenes`."""
        return logged_scenes(self.core, split, cfg)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Exact state; see the core's `get_state`."""
        return self.core.get_state()

    def set_state(self, state: dict[str, NDArray[Any]]) -> dict[str, Tensor]:
        """Restore exact state; see the core's `set_state`."""
        self.core.set_state(state)
        return dict(self._obs)


class Shown(NamedTuple):
    """Observations of frames, and how they follow from the logged ones."""

    observed: DrivingObservations
    specs: dict[str, Spec]
    """Specs besides those of all driving sims."""
    arrays: dict[str, NDArray[Any]]
    mask: NDArray[np.uint8]
    frames: WarpedFrames | None
    view: FrameView
    size: tuple[int, int]


@dataclass(frozen=True)
class WarpCfg(DrivingCfg):
    """`bev/warp`: closed-loop driving in logs: logged bird's-eye frames are warped to where the ego is."""

    log: str | None = None
    """Folder of a driving log, which `robotrl driving-log` records or makes of other logs; required."""
    traffic: Literal["replay", "reactive"] = REPLAY
    """Other road users: "replay" does what the log says; "reactive" keeps to the logged ways and brakes for the ego,
    which frames cannot show."""
    reward: WarpReward = "carl"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Reward: CaRL's, Roach's shaped one, or RAD-2's sequence reward."""
    ttc_s: float = 3.0
    """Horizon of the time to collision in the sequence reward, s."""
    mask: bool = True
    """Observe with frames where they are valid, `bev_mask`."""
    max_aside_m: float = 4.0
    """Lateral distance from the logged way that ends an episode, m."""
    max_turned_deg: float = 40.0
    """Heading difference from the logged way that ends an episode, degrees."""
    max_apart_m: float = 50.0
    """Distance from the logged pose of the same time that ends an episode, m."""
    min_covered: float = 0.5
    """Share of the view inside the logged frame below which an episode ends; for logs with frames."""
    threads: int = 0
    """CPU threads that step the envs; 0 uses every core."""

    def build(self, num_envs: int, seed: int) -> BevWarpSim:
        """Build the batched sim.

        Args:
            num_envs: N, 1 or more.
            seed: seed of the training starts that are drawn.

        Raises:
            ConfigError: a value out of range, or options that contradict each other.
            DataError: the log is missing or none of the layout.
        """
        if not self.log:
            raise ConfigError(
                f"log of bev/warp is {self.log!r}: expected the folder of a driving log;"
                " `robotrl driving-log record --out LOG` records one"
            )
        self.check(num_envs)
        check_count("threads", self.threads, 0, 1024)
        for name, value, low, high in (
            ("ttc_s", self.ttc_s, 0.2, 10.0),
            ("max_aside_m", self.max_aside_m, 0.1, 100.0),
            ("max_turned_deg", self.max_turned_deg, 1.0, 180.0),
            ("max_apart_m", self.max_apart_m, 1.0, 1000.0),
            ("min_covered", self.min_covered, 0.0, 1.0),
        ):
            check_number(name, value, low, high)
        taken = self.taken()
        rules = self.rules(taken)
        log = read_log(Path(self.log))
        threads = Threads(min(self.threads or os.cpu_count() or 1, num_envs))
        shown = self._shown(log, threads, num_envs)
        limits = self._limits(log, shown)
        forecaster = self._forecaster(log, num_envs)
        limit = round(self.limit_s / DT_S)
        own = (limit, rules, taken.spec, seed, threads, shown.observed)
        core = WarpCore(log, num_envs, forecaster, limits, shown.mask, shown.frames, shown.arrays, *own)
        return BevWarpSim(core, shown.observed, shown.specs)

    def reward_cfg(self) -> RewardCfg:
        """Reward that the options say, without the sequence reward.

        Raises:
            ConfigError: an unknown reward, or an end penalty or terms beside another one.
        """
        if self.reward != "sequence":
            return super().reward_cfg()
        for name, value in (("end_penalty", self.end_penalty), ("reward_terms", self.reward_terms)):
            if value is not None:
                raise ConfigError(f"{name} is {value!r}, but reward is 'sequence': expected None")
        return RewardCfg(progress=0.0, factors=())

    def inputs(self) -> list[Input]:
        """Index and poses of the log that the sim reads; see `HasInputs`."""
        return [Input("log", "file", str(Path(self.log) / name)) for name in (INDEX, STEPS)] if self.log else []

    def _forecaster(self, log: DriveLog, num_envs: int) -> Forecaster:
        if self.traffic == REPLAY:
            return LogReplay()
        if self.traffic != REACTIVE:
            raise unknown("traffic", str(self.traffic), (REPLAY, REACTIVE))
        if self.obs in ("raster", "both"):
            raise ConfigError(
                f"traffic is 'reactive' and obs is {self.obs!r}: expected obs 'vector' or 'none', because logged frames"
                " show road users where the log has them"
            )
        return Reactive(num_envs, log.agents.shape[1])

    def _shown(self, log: DriveLog, threads: Threads, num_envs: int) -> Shown:
        """Observations.

        Raises:
            ConfigError: frames of a log without frames, or options that do not apply to its frames.
        """
        cfg = raster.RasterCfg(self.raster_pixels, self.raster_pixels, self.pixels_per_m)
        given = (num_envs, self.nearest, self.polylines, cfg, self.packed)
        if self.obs not in ("raster", "both"):
            observed = make_observations(threads.zeros, self.obs, *given)
            size = (self.raster_pixels, self.raster_pixels)
            return Shown(observed, {}, {}, np.zeros((0, 0, 0), np.uint8), None, _raster_view(cfg), size)
        if log.meta.frames is None or log.frames is None:
            raise ConfigError(
                f"obs is {self.obs!r}, and driving log {self.log} has no frames: expected obs 'vector' or 'none'"
            )
        described = log.meta.frames
        if described.kind == "raster":
            observed = make_observations(threads.zeros, self.obs, *given)
            view, size, frames = _raster_view(cfg), (self.raster_pixels, self.raster_pixels), None
            specs: dict[str, Spec] = {}
            arrays: dict[str, NDArray[Any]] = {}
        else:
            self._check_view(described)
            # with the scalars that belong to a raster
            observed = make_observations(threads.zeros, self.obs, *given)
            kept = {key: spec for key, spec in observed.specs.items() if key != "bev"}
            observed = observed._replace(specs=kept, views=None)
            view = FrameView(described.pixels_per_m, described.ego_row, described.ego_column)
            specs, frames, size = _frame_observation(threads, described, log.frames, num_envs)
            arrays = {frames.key: frames.out if described.kind == "features" else _bytes(frames.out, described)}
        mask = threads.zeros((num_envs if self.mask else 0, *size), np.uint8)
        if self.mask:
            names = ("valid",)
            specs[MASK] = Spec((*size, 1), names, ("1",), (0.0,), (255.0,), "uint8")
            arrays[MASK] = mask[..., None]
        return Shown(observed, specs, arrays, mask, frames, view, size)

    def _check_view(self, described: FrameCfg) -> None:
        default = WarpCfg()
        for name in ("raster_pixels", "pixels_per_m", "packed"):
            value, usual = getattr(self, name), getattr(default, name)
            if value != usual:
                raise ConfigError(
                    f"{name} is {value!r}, and the log's frames are of kind {described.kind!r}: expected {usual!r};"
                    " such frames keep their size and scale"
                )

    def _check_covered(
        self, source: FrameView, logged: tuple[int, int], view: FrameView, size: tuple[int, int]
    ) -> None:
        """Refuse a view that logged frames do not cover enough even from their own poses."""
        covered = warping.coverage(warping.pixel_map(source, view, 0.0, 0.0, 0.0), *logged, *size)
        if covered < self.min_covered:
            span = min(logged) / source.pixels_per_m
            share, least = f"{100 * covered:.0f} %", f"{100 * self.min_covered:.0f}"
            raise ConfigError(
                f"raster_pixels is {self.raster_pixels} at {self.pixels_per_m:g} pixels per meter: logged frames, of"
                f" {span:g} m, cover {share} of such a view: expected {least} or more, at most"
                f" {2 * int(span * self.pixels_per_m / 2)} pixels fit"
            )

    def _limits(self, log: DriveLog, shown: Shown) -> Limits:
        source, height, width = NO_VIEW, 0, 0
        described = log.meta.frames
        if described is not None and log.frames is not None:
            source = FrameView(described.pixels_per_m, described.ego_row, described.ego_column)
            height, width = log.frames.shape[1:3]
        rows, columns = shown.size
        view = shown.view
        if height:
            self._check_covered(source, (int(height), int(width)), view, shown.size)
        # square pixels: the longer side sets the coarse scale; rounding moves no center of a pixel out of the view
        scale = COARSE / max(rows, columns)
        coarse_rows, coarse_columns = (max(round(side * scale), 1) for side in (rows, columns))
        coarse = FrameView(
            view.pixels_per_m * scale,
            view.row * scale + 0.5 * (coarse_rows - rows * scale),
            view.column * scale + 0.5 * (coarse_columns - columns * scale),
        )
        return Limits(
            aside_m=self.max_aside_m,
            turned_rad=float(np.radians(self.max_turned_deg)),
            apart_m=self.max_apart_m,
            covered=self.min_covered if height else 0.0,
            ttc_s=self.ttc_s,
            sequence=1.0 if self.reward == "sequence" else 0.0,
            source=source,
            source_height=int(height),
            source_width=int(width),
            shown=view,
            coarse=coarse,
            coarse_rows=coarse_rows,
            coarse_columns=coarse_columns,
        )


def _raster_view(cfg: raster.RasterCfg) -> FrameView:
    return FrameView(cfg.pixels_per_m, cfg.height * (1.0 - cfg.behind), 0.5 * cfg.width)


def _frame_observation(
    threads: Threads, described: FrameCfg, frames: NDArray[Any], num_envs: int
) -> tuple[dict[str, Spec], WarpedFrames, tuple[int, int]]:
    """Spec and memory of frames that are no rasters."""
    n, (_, height, width, channels) = len(described.names), frames.shape
    shape, size, about = (height, width, channels), (height, width), (described.names, ("1",) * n)
    if described.kind == "features":
        spec = Spec(shape, *about, (-float("inf"),) * n, (float("inf"),) * n, "float32")
        out = threads.zeros((num_envs, *shape), np.float32)
        return {"features": spec}, WarpedFrames("features", frames, out, warping.warp_feature_frames), size
    source = warping.as_pixels(frames)
    out = threads.zeros((num_envs, *source.shape[1:]), source.dtype)
    kernel = warping.warp_pixel_frames if source.ndim == 3 else warping.warp_word_frames
    spec = Spec(shape, *about, (0.0,) * n, (255.0,) * n, "uint8")
    return {"frames": spec}, WarpedFrames("frames", source, out, kernel), size


def _bytes(pixels: NDArray[Any], described: FrameCfg) -> NDArray[np.uint8]:
    """Channels (N, height, width, channels) of pixels, sharing their memory."""
    return pixels.view(np.uint8).reshape(*pixels.shape[:3], len(described.names))
