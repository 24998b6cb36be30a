"""Compile the kernels of the driving sim and of MuJoCo Warp once, so that parallel tests do not each do it."""

import importlib.util

import torch

import robotrl

sim = robotrl.make_sim("bev/drive", num_envs=2, obs="both", threads=1)
sim.reset(seed=0)
sim.step(sim.make_expert().act(torch.ones(2, dtype=torch.bool)))
sim.render([0], "top", 32, 32)
sim.close()

if importlib.util.find_spec("mujoco_warp"):
    from robotrl.sims.mujoco.engine.config import ON_WARP

    for name in ON_WARP:
        sim = robotrl.make_sim(name, num_envs=2, engine="warp")
        sim.reset(seed=0)
        sim.step(torch.zeros(2, *sim.action_spec.shape))
