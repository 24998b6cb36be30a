"""Compile the kernels of the driving sim and of MuJoCo Warp once, so that parallel tests do not each do it."""

import importlib.util
import tempfile
from pathlib import Path

import torch

import robotrl
from robotrl.cli.main import main
from robotrl.spec.vehicle import SceneCfg

sim = robotrl.make_sim("bev/drive", num_envs=2, obs="both", threads=1)
sim.reset(seed=0)
sim.step(sim.make_expert().act(torch.ones(2, dtype=torch.bool)))
sim.render([0], "top", 32, 32)
sim.close()

with tempfile.TemporaryDirectory() as folder:
    cloned, tuned, log = (str(Path(folder, name)) for name in ("cloned", "tuned", "log"))
    few = ["--num-envs", "2"]
    main(["traffic", "clone", "--out", cloned, "--decisions", "1000", "--updates", "1", *few])
    main(["traffic", "rift", cloned, "--out", tuned, "--epochs", "1", "--buffer", "20", *few])
    main(["traffic", "measure", "moderate", "--steps", "60", *few])
    main(["driving-log", "record", "--out", log, "--train", "2", "--val", "1", "--test", "0"])
    sim = robotrl.make_sim("bev/warp", num_envs=2, log=log, actions="trajectory", threads=1)
    sim.reset(seed=0)
    sim.step(torch.zeros(2, *sim.action_spec.shape))
    sim.logged_scenes("train", SceneCfg())
    sim.close()

if importlib.util.find_spec("mujoco_warp"):
    from robotrl.sims.mujoco.engine.config import ON_WARP

    for name in ON_WARP:
        sim = robotrl.make_sim(name, num_envs=2, engine="warp")
        sim.reset(seed=0)
        sim.step(torch.zeros(2, *sim.action_spec.shape))
