"""Compile the driving world's kernels once, before tests that run side by side would each do it in their own time."""

import torch

import robotrl

sim = robotrl.make_sim("bev/drive", num_envs=2, obs="both", threads=1)
sim.reset(seed=0)
sim.step(sim.make_expert().act(torch.ones(2, dtype=torch.bool)))
sim.render([0], "top", 32, 32)
sim.close()
