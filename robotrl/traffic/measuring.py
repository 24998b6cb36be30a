"""Measurement of a traffic population: cars of many envs, while the rule-based driver drives the ego."""

from __future__ import annotations

import numpy as np
import torch

from robotrl.registry import make_sim
from robotrl.sims.bev.sim import DriveSim
from robotrl.sims.bev.traffic.learned.cars import Cars
from robotrl.sims.starts import SPLITS
from robotrl.traffic.realism import TrafficSample, sample_of

WARM_UP = 50
"""Steps from the start of the episodes before the first measurement: starts are the same for all populations."""
EVERY = 5
"""Steps between two measurements."""


def measure_traffic(traffic: tuple[str, ...], steps: int, num_envs: int, seed: int, **options: object) -> TrafficSample:
    """Measure populations on the first starts of the split `test`, those of `seed` first.

    Args:
        traffic: names or folders of populations.
        steps: steps of each env.
        num_envs: envs, each with another start.
        seed: number of the block of starts; also seeds the ego's driver.
        options: further options of `bev/drive`.
    """
    sim: DriveSim = make_sim("bev/drive", num_envs, seed, traffic=traffic, obs="none", **options)
    first = SPLITS["test"].start + seed * num_envs
    sim.reset(seed=seed, options={"state_ids": np.arange(first, first + num_envs)})
    cars, expert = Cars(sim.core), sim.make_expert(seed=seed)
    started = torch.ones(num_envs, dtype=torch.bool)
    found = list[TrafficSample]()
    for k in range(steps):
        step = sim.step(expert.act(started))
        started = step.terminated | step.truncated
        if k >= WARM_UP and k % EVERY == 0:
            found.append(sample_of(*cars.measured()))
    sim.close()
    return TrafficSample(*(np.concatenate(column) for column in zip(*found, strict=True)))
