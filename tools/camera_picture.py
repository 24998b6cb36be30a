"""Draws the picture of docs/cameras.md: `python tools/camera_picture.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

import robotrl

TARGET = Path(__file__).resolve().parents[1] / "docs" / "images" / "cameras.png"
SHOWN = 192


def blown_up(pictures: np.ndarray) -> list[np.ndarray]:
    """Enlarge an image: each pixel becomes a square."""
    times = SHOWN // pictures.shape[1]
    return [picture.repeat(times, 0).repeat(times, 1) for picture in pictures]


def main() -> None:
    """Draw the observations of peg-insert and of two walking robots above, and the same scenes by ray casting below."""
    sim = robotrl.make_sim("mujoco/peg-insert", num_envs=1)
    sim.queue_states(sim.state_ids("val")[3:4])
    sim.reset()
    expert, started = sim.make_expert(mode="left"), torch.ones(1, dtype=torch.bool)
    for _ in range(8):
        sim.step(expert.act(started))
        started[:] = False
    shown = [(sim, "flat_top"), (sim, "flat_side")]
    for name in ("mujoco/ant", "mujoco/humanoid"):
        walker = robotrl.make_sim(name, num_envs=1)
        walker.reset()
        for _ in range(12):
            walker.step(torch.zeros(1, *walker.action_spec.shape))
        shown.append((walker, "track"))
    rows = [
        [blown_up(s.render([0], camera, 64, 64))[0] for s, camera in shown],
        [s.render([0], camera, SHOWN, SHOWN, samples=4, renderer="ray")[0] for s, camera in shown],
    ]
    picture = np.concatenate([np.concatenate(row, axis=1) for row in rows])
    Image.fromarray(picture).quantize(192, dither=Image.Dither.NONE).save(TARGET, optimize=True)


if __name__ == "__main__":
    main()
