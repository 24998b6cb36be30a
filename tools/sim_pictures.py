"""Draws the images of the sims' pages: `python tools/sim_pictures.py`.

`python tools/sim_pictures.py QUADRUPED_RUN` draws only the one that needs a trained policy.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

import robotrl
from robotrl.run.policy_checkpoint import load_policy
from robotrl.sims.mujoco.render.cameras import Cameras
from robotrl.sims.mujoco.render.views import View

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
WIDTH, HEIGHT = 352, 264


def episode(sim_name: str, mode: str, moments: dict[int, str], last: str) -> None:
    """An expert's episode as a strip of images: at some steps, and just before the end.

    Args:
        sim_name: a row of `robotrl list sims`.
        mode: mode of the expert.
        moments: step to camera.
        last: camera of the last image.
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
    # full color: a palette would give small objects the colors of large ones
    picture = Image.fromarray(np.concatenate(pictures, axis=1))
    picture.save(IMAGES / f"{sim_name.rpartition('/')[2]}.png", optimize=True)


def tabletop() -> None:
    """Four tabletop scenes during their instructions: in perspective, and through the flat camera."""
    columns = []
    for start, (family, step) in enumerate((("push-to", 40), ("stack", 34), ("sort", 75), ("turn", 36)), 5):
        sim = robotrl.make_sim("mujoco/tabletop", num_envs=1, families=[family])
        sim.queue_states(sim.state_ids("val")[start : start + 1])
        sim.reset()
        expert, started = sim.make_expert(mode="clockwise"), torch.ones(1, dtype=torch.bool)
        for _ in range(step):
            sim.step(expert.act(started))
            started[:] = False
        caption = Image.new("RGB", (272, 22), (255, 255, 255))
        ImageDraw.Draw(caption).text((4, 4), sim.instructions()[0], fill=(30, 30, 30), font=ImageFont.load_default(11))
        pictures = [sim.render([0], "front", 272, 192, samples=4)[0], sim.render([0], "flat_near", 272, 176)[0]]
        columns.append(np.concatenate([np.asarray(caption), *pictures], axis=0))
    picture = Image.fromarray(np.concatenate(columns, axis=1)).quantize(192, dither=Image.Dither.NONE)
    picture.save(IMAGES / "tabletop.png", optimize=True)


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


def beside(sim: Any, width: int, height: int) -> np.ndarray:
    """The quadruped of env 0, seen from the side and slightly from the front."""
    x, y, z, w, _, _, turn = sim.core.physics.batch.bind("qpos")[0, :7]
    ahead = 2 * np.arctan2(turn, w)
    angle = ahead - 1.2
    eye = (x + 1.3 * np.cos(angle), y + 1.3 * np.sin(angle), z + 0.35)
    views = {"beside": View(eye, (x, y, z - 0.1), 34.0)}
    return Cameras(sim.core.physics, views).render([0], "beside", width, height, samples=4)[0]


def grounds() -> None:
    """The quadruped at rest on each terrain, at its hardest level."""
    pictures = []
    for ground in ("flat", "rough", "slopes", "steps"):
        options = {"terrain": ground, "levels": 1, "randomize": False, "end_on_fall": False}
        sim = robotrl.make_sim("mujoco/quadruped-velocity", num_envs=1, **options)
        sim.queue_states(sim.state_ids("val")[:1])
        sim.reset()
        if ground in ("slopes", "steps"):
            # from the flat middle of the tile to its flank, looking uphill
            place = np.array([0.0]), np.array([2.4])
            above = 0.42 + sim.core.task.terrain.height(*place)[0]
            sim.core.physics.batch.bind("qpos")[0, :7] = 0.0, 2.4, above, 0.7071, 0.0, 0.0, -0.7071
        for _ in range(40):
            sim.step(torch.zeros(1, 12))
        pictures.append(beside(sim, 256, 208))
    picture = Image.fromarray(np.concatenate(pictures, axis=1)).quantize(128, dither=Image.Dither.NONE)
    picture.save(IMAGES / "quadruped-velocity.png", optimize=True)


def trot(run: str) -> None:
    """A trained quadruped that follows a command, one image every 60 ms."""
    policy = load_policy(run, "latest")
    sim = robotrl.make_sim("mujoco/quadruped-velocity", num_envs=64)
    sim.queue_states(sim.state_ids("val")[:64])
    obs = sim.reset()
    # the start whose first command is nearest to full speed straight ahead, with little turning
    best = int(np.argmax(sim.commands[:, 0] - np.abs(sim.commands[:, 1]) - 0.5 * np.abs(sim.commands[:, 2])))
    first = sim.state_ids("val").start + best
    sim = robotrl.make_sim("mujoco/quadruped-velocity", num_envs=1)
    sim.queue_states([first])
    obs = sim.reset()
    pictures = []
    for step in range(164):
        if step >= 150 and (step - 150) % 3 == 0:
            pictures.append(beside(sim, 204, 180))
        with torch.no_grad():
            obs = sim.step(policy.act(obs, mode="mean").chunk[:, 0]).obs
    picture = Image.fromarray(np.concatenate(pictures, axis=1)).quantize(128, dither=Image.Dither.NONE)
    picture.save(IMAGES / "quadruped-trot.png", optimize=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trot(sys.argv[1])
        sys.exit()
    grounds()
    for robot in ("ant", "halfcheetah", "hopper", "humanoid", "walker2d"):
        locomotion(robot)
    episode("mujoco/peg-insert", "left", {0: "front", 10: "side"}, "top")
    episode("mujoco/reach", "clockwise", {0: "front", 8: "side"}, "top")
    episode("mujoco/press", "along", {0: "front", 8: "side"}, "top")
    episode("mujoco/push", "left", {0: "front", 32: "top"}, "side")
    episode("mujoco/pick-place", "clockwise", {0: "front", 22: "side"}, "front")
    tabletop()
