"""Draws the pictures of the sims' pages: `python tools/sim_pictures.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

import robotrl

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
WIDTH, HEIGHT = 352, 264


def episode(sim_name: str, mode: str, moments: dict[int, str], last: str) -> None:
    """One episode of the expert as a strip of pictures: at some steps, and just before the end.

    Args:
        sim_name: a row of `robotrl list sims`.
        mode: the expert's.
        moments: step to camera.
        last: camera of the last picture.
    """
    sim = robotrl.make_sim(sim_name, num_envs=1)
    sim.queue_states(sim.state_ids("val")[:1])
    sim.reset()
    expert, started = sim.make_expert(mode=mode), torch.ones(1, dtype=torch.bool)
    pictures = []
    for step in range(sim.core.task.limit_steps):
        if step in moments:
            pictures.append(sim.render([0], moments[step], WIDTH, HEIGHT, samples=4)[0])
        before = sim.get_state()
        done = bool(sim.step(expert.act(started)).terminated[0])
        started[:] = False
        if done:
            sim.set_state(before)
            pictures.append(sim.render([0], last, WIDTH, HEIGHT, samples=4)[0])
            break
    # in full colour: a palette gives small things the colours of large ones
    picture = Image.fromarray(np.concatenate(pictures, axis=1))
    picture.save(IMAGES / f"{sim_name.rpartition('/')[2]}.png", optimize=True)


def locomotion(name: str) -> None:
    """The start, and the robot after half a second of random actions: from the side, and through the raster camera."""
    sim = robotrl.make_sim(f"mujoco/{name}", num_envs=1)
    sim.queue_states(sim.state_ids("val")[:1])
    sim.reset()
    high, generator = torch.tensor(sim.action_spec.high), torch.Generator().manual_seed(0)
    pictures = [sim.render([0], camera, 256, 192, samples=4)[0] for camera in ("side", "track")]
    for _ in range(round(0.5 / sim.control_dt_s)):
        sim.step(high * (2 * torch.rand((1, len(high)), generator=generator) - 1))
    pictures += [sim.render([0], camera, 256, 192, samples=4)[0] for camera in ("side", "track")]
    picture = Image.fromarray(np.concatenate(pictures, axis=1)).quantize(128, dither=Image.Dither.NONE)
    picture.save(IMAGES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    for robot in ("ant", "halfcheetah", "hopper", "humanoid", "walker2d"):
        locomotion(robot)
    episode("mujoco/peg-insert", "left", {0: "front", 10: "side"}, "top")
    episode("mujoco/reach", "clockwise", {0: "front", 8: "side"}, "top")
    episode("mujoco/push", "left", {0: "front", 32: "top"}, "side")
    episode("mujoco/pick-place", "clockwise", {0: "front", 22: "side"}, "front")
