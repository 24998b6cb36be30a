"""Overhead of the adapters of Isaac's surfaces: a step of the sim less a step of its environment, without physics."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from benchmarks.isaac.standins import ACTION, IdleLab, IdleTask
from benchmarks.kit.figures import Figure, Paired, paired
from robotrl.sims.isaac.wrap import sim_of

DESCRIPTION = "overhead of the adapters of Isaac Lab and Isaac Gym against environments without physics, on a CPU"
PEERS: dict[str, str] = {}
NUM_ENVS = (64, 1024)
STEPS, ROUNDS = 400, 41
TARGET_US = 300.0


class Surface(NamedTuple):
    """A measured surface."""

    make: Callable[[int], Any]
    """Number of envs to the environment."""
    note: str


SURFACES = {
    "lab_3": Surface(lambda n: IdleLab(n, final_obs=True), "Isaac Lab 3.0 with final observations"),
    "lab_2": Surface(lambda n: IdleLab(n, final_obs=False), "Isaac Lab 2.3, which has none"),
    "vec_task": Surface(IdleTask, "Isaac Gym, resets in the next step"),
}


def run(quick: bool) -> dict[str, Figure]:
    """Measure all surfaces at both numbers of envs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    figures: dict[str, Figure] = {}
    for name, surface in SURFACES.items():
        for num_envs in NUM_ENVS:
            samples = measure(surface, num_envs, 20 if quick else STEPS, 2 if quick else ROUNDS)
            figures[f"overhead_us_{name}_{num_envs}"] = overhead(samples, surface.note)
    torch.set_num_threads(threads)
    return figures


def measure(surface: Surface, num_envs: int, steps: int, rounds: int) -> Paired:
    """CPU time per step, us, of the environment ("env") and of the sim around another one like it ("sim"), in turns.

    One thread that waits for nothing: on a quiet machine this is the time on the clock, on a busy one it still holds.
    """
    env, sim = surface.make(num_envs), sim_of(surface.make(num_envs))
    sim.reset(seed=0)
    actions = torch.full((num_envs, ACTION), 0.1)

    def timed(step: Callable[[torch.Tensor], Any]) -> float:
        begun = time.thread_time()
        for _ in range(steps):
            step(actions)
        return 1e6 * (time.thread_time() - begun) / steps

    return paired({"env": functools.partial(timed, env.step), "sim": functools.partial(timed, sim.step)}, rounds)


def overhead(samples: Paired, note: str) -> Figure:
    """Median over the pairs of what the sim takes longer."""
    extra = [b - a for a, b in zip(samples.samples["env"], samples.samples["sim"], strict=True)]
    alone = samples.spread("env").median
    text = f"{note}; target below {TARGET_US:g} us; the environment alone takes {alone:.0f} us"
    return Figure(statistics.median(extra), "us a step", runs=len(extra), low=min(extra), high=max(extra), note=text)
