"""Compile the driving sim's kernels once, so that parallel tests do not each do it in their own time limit."""

import torch

import robotrl

sim = robotrl.make_sim("bev/drive", num_envs=2, obs="both", threads=1)
sim.reset(seed=0)
sim.step(sim.make_expert().act(torch.ones(2, dtype=torch.bool)))
sim.render([0], "top", 32, 32)
sim.close()
