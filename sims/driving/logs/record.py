"""Records driving logs from a driving sim that its rule-based driver drives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.errors import ConfigError, check_count, check_number
from robotrl.sims.driving.core import DrivingCore
from robotrl.sims.driving.kernels import draw_envs
from robotrl.sims.driving.logs import layout
from robotrl.sims.driving.logs.roads import road_arrays
from robotrl.sims.driving.logs.writer import LogWriter
from robotrl.sims.driving.render import raster
from robotrl.sims.driving.sim import DrivingSim
from robotrl.sims.driving.trace import AWAY_M
from robotrl.sims.driving.traffic.right_of_way import light
from robotrl.spec import Split

BEHIND = raster.RasterCfg().behind


class RecordedFrames(NamedTuple):
    """Size and scale of recorded frames."""

    pixels: int = 96
    """Height and width of the view that they are for, even."""
    pixels_per_m: float = 2.0
    margin_m: float = 16.0
    """Margin around that view, for deviations from the logged drive."""

    def view(self) -> tuple[raster.RasterCfg, layout.FrameCfg]:
        """Raster of the frames, and how they are described in a log."""
        check_number("margin_m", self.margin_m, 0.0, 200.0, "m")
        margin = round(self.margin_m * self.pixels_per_m)
        size = self.pixels + 2 * margin
        ahead = self.pixels * (1.0 - BEHIND) + margin
        cfg = raster.RasterCfg(size, size, self.pixels_per_m, 1.0 - ahead / size)
        return cfg, layout.FrameCfg("raster", (), self.pixels_per_m, ahead, size / 2)


FRAMES = RecordedFrames()


class LogReport(NamedTuple):
    """Result of a recording."""

    path: Path
    clips: Mapping[Split, int]
    steps: int
    tried: int
    """Episodes driven; those that failed are left out."""


JUMP_M = 8.0
"""Distance in a step from which somebody in a slot is somebody else."""


class _Tape:
    """Rows of the running episode of one env."""

    def __init__(self) -> None:
        self.episode: Any = None
        """`tables.EPISODE` record of its beginning."""
        self.size_m = (0.0, 0.0)
        self.egos: list[Any] = []
        self.agents: list[NDArray[Any]] = []
        self.lights: list[tuple[int, ...]] = []
        self.frames: list[NDArray[np.uint16]] = []


def record_drives(
    sim: DrivingSim[Any],
    out: Path,
    clips: Mapping[Split, int],
    frames: RecordedFrames | None = FRAMES,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> LogReport:
    """Drive the first starts of each split and write the drives that succeed as a log.

    Args:
        sim: a driving sim on the CPU; its rule-based driver drives.
        out: folder of the log; must not exist, or be empty.
        clips: number of starts that are tried of each split.
        frames: size of the recorded frames; None records vectors only.
        seed: seed of the driver.
        progress: called with the number of finished episodes.

    Raises:
        ConfigError: no starts, a size out of range, or a folder with contents.
        DataError: no drive succeeded.
    """
    total = 0
    for split, count in clips.items():
        check_count(f"clips of {split}", count, 0, 1 << 20)
        total += count
    if total == 0:
        raise ConfigError(f"clips is {dict(clips)}: expected one start or more")
    core: DrivingCore = sim.core
    described, views = None, None
    if frames is not None:
        cfg, described = frames.view()
        raster.raster_spec(cfg, True, sim.num_envs)
        views = raster.make_views(np.zeros, cfg, sim.num_envs, packed=True)
    written: dict[Split, int] = dict.fromkeys(clips, 0)
    source = f"drives of the rule-based driver in a {type(sim).__name__}, seed {seed}"
    slots = core.world.agents.shape[1] - 1
    done = 0
    with LogWriter(out, source, slots, described) as writer:
        for split, count in clips.items():
            for state_id, ended, tape in _episodes(sim, [*sim.state_ids(split)[:count]], views, seed):
                done += 1
                if progress is not None:
                    progress(done)
                if ended and len(tape.egos) >= layout.MIN_STEPS:
                    _write(writer, core, split, state_id, tape)
                    written[split] += 1
    steps = sum(clip.steps for clip in writer.clips)
    return LogReport(out, written, steps, total)


def _episodes(sim: DrivingSim[Any], ids: list[int], views: raster.RasterViews | None, seed: int) -> Any:
    """Start id, success and tape of each episode that starts at one of the ids."""
    core: DrivingCore = sim.core
    expert = sim.make_expert(seed=seed)
    sim.queue_states(ids)
    sim.reset()
    waiting = set(ids)
    started = torch.ones(sim.num_envs, dtype=torch.bool)
    tapes = [_Tape() for _ in range(sim.num_envs)]
    while waiting:
        _take(core, tapes, views)
        running = core.state_ids.copy()
        out = sim.step(expert.act(started))
        started = out.terminated | out.truncated
        for e in out.final_ids.tolist():
            state_id = int(running[e])
            if state_id in waiting:
                waiting.discard(state_id)
                yield state_id, bool(core.success[e]), tapes[e]
            tapes[e] = _Tape()


def _take(core: DrivingCore, tapes: list[_Tape], views: raster.RasterViews | None) -> None:
    """Add the present scene of each env to its tape."""
    world, maps = core.world, core.bank.arrays
    everyone = np.arange(core.num_envs)
    if views is not None:
        # a frame does not show the ego: it is drawn where it is in the simulation
        others = world.agents.copy()
        others["kind"][:, 0] = 0
        true = world._replace(agents=others, localized=world.localized[:0])
        draw_envs(maps, true, views, raster.channel_table(), everyone, 0, core.num_envs)
    for e, tape in enumerate(tapes):
        if tape.episode is None:
            tape.episode = world.episodes[e].copy()
            tape.size_m = (float(world.agents["length"][e, 0]), float(world.agents["width"][e, 0]))
        tape.egos.append(world.egos[e].copy())
        tape.agents.append(world.agents[e, 1:].copy())
        groups = int(maps.maps["signals"][world.episodes["map"][e]])
        tape.lights.append(tuple(light(maps, world, e, group)[0] for group in range(groups)))
        if views is not None:
            tape.frames.append(views.packed[e].copy())


def _write(writer: LogWriter, core: DrivingCore, split: Split, state_id: int, tape: _Tape) -> None:
    """Write a drive as a clip, and its map at first use."""
    maps = core.bank.arrays
    number = int(tape.episode["map"])
    map_name = f"map-{number:05d}"
    if not writer.has_map(map_name):
        writer.add_map(map_name, road_arrays(maps, number))
    route = maps.routes[tape.episode["route"]]
    points = maps.route_points[route["first"] : route["first"] + route["count"]]
    egos = np.array(tape.egos)
    steps = np.zeros(len(egos), layout.STEP)
    steps["time_s"] = np.arange(len(egos)) * layout.PERIOD_S
    for name, field in (("x", "x"), ("y", "y"), ("yaw", "yaw"), ("speed", "v")):
        steps[name] = egos[field]
    writer.add_clip(
        f"{split}-{state_id}",
        split,
        steps,
        logged_agents(np.array(tape.agents)),
        np.stack([points["x"], points["y"]], axis=1).astype(np.float64),
        map_name,
        core.scenarios[int(tape.episode["scenario"])],
        tape.size_m,
        np.array(tape.lights, np.int8).reshape(len(egos), -1),
        tape.frames if writer.frames is not None else None,
    )


def logged_agents(records: NDArray[Any]) -> NDArray[Any]:
    """`layout.AGENT` records of `tables.AGENT` records (T, M) of the other road users.

    A slot is taken over by somebody else after it was empty, or where its position jumps.
    """
    there = (records["kind"] > 0) & (np.abs(records["x"]) < AWAY_M)
    moved = np.hypot(np.diff(records["x"], axis=0), np.diff(records["y"], axis=0))
    fresh = np.ones(there.shape, bool)
    fresh[1:] = ~there[:-1] | (moved > JUMP_M)
    slots = there.shape[1]
    values = {
        "track": np.cumsum(there & fresh, axis=0) * slots + np.arange(slots),
        "kind": records["kind"],
        "x": records["x"],
        "y": records["y"],
        "yaw": np.arctan2(records["sin"], records["cos"]),
        "speed": records["v"],
        "length": records["length"],
        "width": records["width"],
    }
    out = np.zeros(there.shape, layout.AGENT)
    for name, value in values.items():
        out[name] = np.where(there, value, 0)
    return out
