"""Warped bird's-eye frames per second, beside torch's `grid_sample`, and env steps of a log's replay in vectors."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.kit.figures import Figure, paired
from robotrl.errors import RobotrlError

HEIGHT = WIDTH = 128
CHANNELS = 8
PPM = 2.0
AHEAD_M, ASIDE_M, TURNED_RAD = 4.0, 3.0, 0.4
"""Largest deviations of the poses that are warped to."""
SEEN_M = 2.0
"""Deviation of the checked frames, a whole number of pixels."""
UNIT = f"frames/s of {CHANNELS}x{HEIGHT}x{WIDTH}"
TORCH = "torch grid_sample"
STEPS_UNIT = "env steps/s"
Run = Callable[[], float]


def figures(count: int, frames: int, env_steps: int, drives: int, rounds: int) -> dict[str, Figure]:
    """All figures.

    Args:
        count: frames in a batch.
        frames: frames of one run.
        env_steps: env steps of one run.
        drives: recorded drives that are replayed.
        rounds: samples of each route.
    """
    given = np.random.default_rng(0).integers(0, 256, (count, HEIGHT, WIDTH, CHANNELS), dtype=np.uint8)
    poses = np.random.default_rng(1).uniform(-1.0, 1.0, (count, 3)) * [AHEAD_M, ASIDE_M, TURNED_RAD]
    routes: dict[str, Run] = {}
    for threads in (1, 2):
        routes[f"warp_{threads}"] = _ours(given, poses, threads, frames)
        routes[f"packed_{threads}"] = _ours(given[..., :1], poses, threads, frames)
        routes[f"torch_{threads}"] = _theirs(given, poses, threads, max(frames // 8, count))
    measured = paired(routes, rounds)
    note = f"batches of {count}; poses up to {AHEAD_M:g} m ahead, {ASIDE_M:g} m aside, {TURNED_RAD:g} rad"
    out: dict[str, Figure] = {}
    for threads in (1, 2):
        name = f"{threads}_thread{'s' if threads > 1 else ''}"
        for kind, what in (("warp", "uint8 channels as one integer"), ("packed", "eight masks in a byte, packed")):
            figure = measured.figure(f"{kind}_{threads}", f"torch_{threads}", UNIT, "higher", f"{what}; {note}")
            named = "warped_frames_per_s" + ("_packed" if kind == "packed" else "")
            out[f"{named}_{name}"] = _beside(figure, f"{TORCH}, nearest, float32, {threads} thread(s)")
    return out | replays(env_steps, drives, rounds)


def _beside(figure: Figure, peer: str) -> Figure:
    return Figure.from_json(figure.to_json() | {"peer": peer})


def _ours(given: NDArray[np.uint8], poses: NDArray[np.float64], threads: int, frames: int) -> Run:
    """Frames a second of our kernel, checked against a shift that is known."""
    from robotrl.sims.driving.backends.backend import Threads
    from robotrl.sims.warp import warping

    pixels = warping.as_pixels(np.ascontiguousarray(given))
    count = len(pixels)
    view = warping.FrameView(PPM, HEIGHT / 2, WIDTH / 2)
    out, rows = np.zeros_like(pixels), np.arange(count)
    machine = Threads(threads)

    def warp(at: NDArray[np.float64]) -> None:
        machine.run(warping.warp_pixel_frames, count, pixels, rows, view, view, at, rows, out)

    warp(np.tile([SEEN_M, 0.0, 0.0], (count, 1)))
    moved = round(SEEN_M * PPM)
    if not np.array_equal(out[:, moved:], pixels[:, :-moved]):
        raise RobotrlError("bench bev: a frame that is warped by whole pixels is not the shifted frame")

    def run() -> float:
        begun = time.perf_counter()
        for _ in range(max(frames // count, 1)):
            warp(poses)
        return max(frames // count, 1) * count / (time.perf_counter() - begun)

    return run


def _theirs(given: NDArray[np.uint8], poses: NDArray[np.float64], threads: int, frames: int) -> Run:
    """Frames a second of torch's nearest sampling of float32, grids included."""
    import torch

    images = torch.from_numpy(given).permute(0, 3, 1, 2).float().contiguous()
    half = torch.tensor([WIDTH / 2 / PPM, HEIGHT / 2 / PPM])
    ahead, left, turn = (torch.from_numpy(poses[:, k]).float() for k in range(3))

    def warp() -> Any:
        cos, sin = torch.cos(turn), torch.sin(turn)
        # x to the right and y down, both from -1 to 1 over the frame
        first = torch.stack([cos, sin, -left / half[0]], dim=1)
        second = torch.stack([-sin, cos, -ahead / half[1]], dim=1)
        theta = torch.stack([first, second], dim=1)
        grid = torch.nn.functional.affine_grid(theta, list(images.shape), align_corners=False)
        return torch.nn.functional.grid_sample(images, grid, mode="nearest", align_corners=False)

    def run() -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        begun = time.perf_counter()
        for _ in range(max(frames // len(images), 1)):
            warp()
        taken = time.perf_counter() - begun
        torch.set_num_threads(before)
        return max(frames // len(images), 1) * len(images) / taken

    return run


def replays(env_steps: int, drives: int, rounds: int, num_envs: int = 256) -> dict[str, Figure]:
    """Env steps a second of `bev/warp` on recorded drives, in vectors and in rasters."""
    import torch

    from robotrl.registry import make_sim
    from robotrl.sims.driving.logs.record import record_drives

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        driven = make_sim("bev/drive", num_envs=drives, seed=0, obs="none")
        record_drives(driven, log, {"train": drives})
        driven.close()
        routes: dict[str, Run] = {}
        for obs, threads in (("vector", 1), ("vector", 2), ("raster", 2)):
            sim = make_sim("bev/warp", num_envs=num_envs, seed=0, log=str(log), obs=obs, threads=threads)
            # from many starts: no map is built while the time is taken
            sim.reset(options={"stagger": True})
            action = torch.zeros(num_envs, 2)
            steps = max(env_steps // num_envs // (8 if obs == "raster" else 1), 1)

            def run(sim: Any = sim, action: Any = action, steps: int = steps) -> float:
                begun = time.perf_counter()
                for _ in range(steps):
                    sim.step(action)
                return steps * num_envs / (time.perf_counter() - begun)

            routes[f"{obs}_{threads}"] = run
        measured = paired(routes, rounds, warmup=2)
    note = (
        f"{num_envs} envs on 16 recorded drives of up to 31 others, no action, so that episodes end early by deviation"
    )
    names = {
        "log_env_steps_per_s_vector_1_thread": "vector_1",
        "log_env_steps_per_s_vector_2_threads": "vector_2",
        "log_env_steps_per_s_raster_2_threads": "raster_2",
    }
    return {name: measured.figure(route, None, STEPS_UNIT, "higher", note) for name, route in names.items()}
