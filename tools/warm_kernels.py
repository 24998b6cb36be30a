"""Compile kernels once, so that parallel tests do not each do it.

Usage: warm_kernels.py [driving] [warp]; the kernels of the driving sims, those of MuJoCo Warp, or both.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

import torch

import robotrl
from robotrl.cli.main import main as robotrl_command
from robotrl.spec.vehicle import SceneCfg


def warm_driving() -> None:
    """Use each kernel of the driving sims once, in small sims and by the commands of traffic."""
    sim = robotrl.make_sim("bev/drive", num_envs=2, obs="both", threads=1)
    sim.reset(seed=0)
    sim.step(sim.make_expert().act(torch.ones(2, dtype=torch.bool)))
    sim.render([0], "top", 32, 32)
    sim.close()
    with tempfile.TemporaryDirectory() as folder:
        cloned, tuned, log = (str(Path(folder, name)) for name in ("cloned", "tuned", "log"))
        few = ["--num-envs", "2"]
        robotrl_command(["traffic", "clone", "--out", cloned, "--decisions", "1000", "--updates", "1", *few])
        robotrl_command(["traffic", "rift", cloned, "--out", tuned, "--epochs", "1", "--buffer", "20", *few])
        robotrl_command(["traffic", "measure", "moderate", "--steps", "60", *few])
        robotrl_command(["driving-log", "record", "--out", log, "--train", "2", "--val", "1", "--test", "0"])
        sim = robotrl.make_sim("bev/warp", num_envs=2, log=log, actions="trajectory", threads=1)
        sim.reset(seed=0)
        sim.step(torch.zeros(2, *sim.action_spec.shape))
        sim.logged_scenes("train", SceneCfg())
        sim.close()


def warm_warp() -> None:
    """Step each task of MuJoCo Warp once: its kernels are compiled for the sizes of a model."""
    if not importlib.util.find_spec("mujoco_warp"):
        return
    from robotrl.sims.mujoco.engine.config import ON_WARP

    for name in ON_WARP:
        sim = robotrl.make_sim(name, num_envs=2, engine="warp")
        sim.reset(seed=0)
        sim.step(torch.zeros(2, *sim.action_spec.shape))


PARTS = {"driving": warm_driving, "warp": warm_warp}


def main(parts: list[str]) -> int:
    """Compile the kernels of some parts, or of all; returns the exit code."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        print(f"warm_kernels.py: {unknown[0]!r} is no part: expected {', '.join(PARTS)}", file=sys.stderr)
        return 2
    for part in parts or PARTS:
        PARTS[part]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
