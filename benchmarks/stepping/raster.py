"""Raster camera: images per second of all envs, alone, with physics, and against other renderers.

`robotrl bench stepping` reports these figures.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.kit.figures import Figure, paired
from robotrl.errors import CapabilityError

TASK, CAMERA = "mujoco/peg-insert", "flat_top"
THREADS, ENVS, SIZE = 2, 64, 64
UNIT = f"frames/s of {SIZE}x{SIZE}x3"
BESIDE, ALONE, BLIND = "pictures and physics", "raster camera alone", "physics without pictures"
RAY, NUMPY, MUJOCO = "ray camera", "the same in numpy", "mujoco.Renderer"
FEW = 4
"""Number of envs that the slow renderers draw per run."""


def figures(quick: bool) -> dict[str, Figure]:
    """Frames per second of 64 envs on two threads; names start with `raster_`."""
    steps, rounds = (10, 2) if quick else (60, 9)
    routes = {
        BESIDE: _stepping(image=(CAMERA,), steps=steps),
        BLIND: _stepping(image=(), steps=steps),
        **_drawing(steps),
    }
    measured = paired(routes, rounds)
    scene = f"{TASK}, {ENVS} envs, {THREADS} threads"
    beside = measured.figure(BESIDE, BLIND, UNIT, "higher", f"{scene}: one picture an env step, so as many env steps/s")
    out = {"raster_beside_physics_frames_per_s": beside}
    for name, peer in (("ray", RAY), ("numpy", NUMPY), ("mujoco", MUJOCO)):
        note = f"{scene}, pictures alone"
        out[f"raster_frames_per_s_against_{name}"] = measured.figure(ALONE, peer, UNIT, "higher", note)
    return out


def _stepping(image: tuple[str, ...], steps: int) -> Any:
    """A route that steps the sim, with or without image observations."""
    import torch

    from robotrl.registry import make_sim

    sim = make_sim(TASK, num_envs=ENVS, seed=0, threads=THREADS, image=image, image_size=SIZE)
    rng = np.random.default_rng(0)
    actions = [torch.from_numpy(rng.uniform(-1, 1, (ENVS, 4)).astype(np.float32)) for _ in range(steps)]

    def run() -> float:
        sim.reset(seed=0)
        begun = time.perf_counter()
        for action in actions:
            sim.step(action)
        return steps * ENVS / (time.perf_counter() - begun)

    return run


def _drawing(steps: int) -> dict[str, Any]:
    """Routes that render the same envs repeatedly; only those available here."""
    from robotrl.registry import make_sim
    from robotrl.sims.mujoco.render.raster import BACKGROUND_RGB, RasterCamera
    from robotrl.sims.mujoco.render.raster_pixels import draw
    from robotrl.sims.mujoco.render.raster_scene import Scene

    sim = make_sim(TASK, num_envs=ENVS, seed=0, threads=THREADS)
    sim.reset()
    physics, view = sim.core.physics, sim.core.task.views[CAMERA]
    camera, scene = RasterCamera(physics.batch, THREADS), Scene(physics.batch)
    physics.poses()
    ids, out = np.arange(ENVS), np.zeros((ENVS, SIZE, SIZE, 3), np.uint8)
    background = np.asarray(BACKGROUND_RGB, np.float32)

    def alone() -> float:
        begun = time.perf_counter()
        for _ in range(steps):
            camera.draw(view, ids, out, ids)
        return steps * ENVS / (time.perf_counter() - begun)

    def in_numpy() -> float:
        begun = time.perf_counter()
        draw(scene.sheet(view, SIZE, SIZE, ids), background, ids, out)
        return ENVS / (time.perf_counter() - begun)

    def other(renderer: str) -> Any:
        def run() -> float:
            begun = time.perf_counter()
            sim.render(range(FEW), CAMERA, SIZE, SIZE, renderer=renderer)
            return FEW / (time.perf_counter() - begun)

        return run

    routes = {ALONE: alone, NUMPY: in_numpy, RAY: other("ray")}
    try:
        sim.render([0], CAMERA, SIZE, SIZE, renderer="mujoco")
    except CapabilityError:
        return routes
    return {**routes, MUJOCO: other("mujoco")}
