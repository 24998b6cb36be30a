"""Draws the pictures of the sims' pages: `python tools/sim_pictures.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

import robotrl

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"


def peg_insert() -> None:
    """One episode of the expert: above the fixture, landed beside the hole, inserted."""
    sim = robotrl.make_sim("mujoco/peg-insert", num_envs=1)
    sim.queue_states(sim.state_ids("val")[:1])
    sim.reset()
    expert, started = sim.make_expert(mode="left"), torch.ones(1, dtype=torch.bool)
    pictures = []
    for step in range(sim.core.task.limit_steps):
        if step in (0, 10):
            pictures.append(sim.render([0], "front" if step == 0 else "side", 384, 288, samples=4)[0])
        before = sim.get_state()
        done = bool(sim.step(expert.act(started)).terminated[0])
        started[:] = False
        if done:
            sim.set_state(before)
            pictures.append(sim.render([0], "top", 384, 288, samples=4)[0])
            break
    picture = Image.fromarray(np.concatenate(pictures, axis=1)).quantize(192, dither=Image.Dither.NONE)
    picture.save(IMAGES / "peg-insert.png", optimize=True)


if __name__ == "__main__":
    peg_insert()
