"""Overhead of `remote/NAME`: steps of a sim in another process, turn by turn with the same steps in this one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from benchmarks.kit.figures import Figure, Paired, paired
from robotrl.errors import RobotrlError

HERE, THERE = "in this process", "remote"
UNIT = "us a step"


class Load(NamedTuple):
    """A sim and the size of a run."""

    sim: str
    num_envs: int
    steps: int
    """Steps of one run."""

    @property
    def key(self) -> str:
        """Beginning of its figures' names."""
        return f"remote_{self.sim.rpartition('/')[2].replace('-', '_')}_{self.num_envs}_envs"


LOADS = (Load("mujoco/peg-insert", 64, 200), Load("bev/drive", 64, 400), Load("bev/drive", 1024, 60))
ACTION_SHARE = 0.3
"""Random actions within this share of their bounds: episodes last longer than under all of them."""


def figures(quick: bool) -> dict[str, Figure]:
    """Time of a step and the time that the other process adds, for each load."""
    rounds = 2 if quick else 15
    found: dict[str, Figure] = {}
    for load in LOADS:
        measured = measure(load._replace(steps=load.steps // 10) if quick else load, rounds)
        found |= figures_of(load, measured)
    return found


def figures_of(load: Load, measured: Paired) -> dict[str, Figure]:
    """Figures of one load."""
    note = f"{load.sim}, {load.num_envs} envs, one worker; the same starts and actions, and the same rewards at the end"
    added = [there - here for here, there in zip(measured.samples[HERE], measured.samples[THERE], strict=True)]
    return {
        f"{load.key}_step": measured.figure(THERE, HERE, UNIT, "lower", note),
        f"{load.key}_added": Figure(
            statistics.median(added),
            UNIT,
            runs=len(added),
            low=min(added),
            high=max(added),
            note="median over pairs of runs",
        ),
    }


def measure(load: Load, rounds: int) -> Paired:
    """Measure both ways, interleaved.

    Raises:
        RobotrlError: the two gave different rewards, so they are not comparable.
    """
    from robotrl.registry import make_sim

    sims = {HERE: make_sim(load.sim, load.num_envs), THERE: make_sim(f"remote/{load.sim}", load.num_envs)}
    try:
        actions = _actions(sims[HERE], load.steps)
        rewards: dict[str, list[float]] = {name: [] for name in sims}
        found = paired({name: _route(sim, actions, rewards[name]) for name, sim in sims.items()}, rounds)
    finally:
        for sim in sims.values():
            sim.close()
    if rewards[HERE] != rewards[THERE]:
        raise RobotrlError(f"{load.sim} gave other rewards in another process: expected the same")
    return found


def _actions(sim: Any, steps: int) -> torch.Tensor:
    low, high = torch.tensor(sim.action_spec.low), torch.tensor(sim.action_spec.high)
    shape = (steps, sim.num_envs, *sim.action_spec.shape)
    share = torch.rand(shape, generator=torch.Generator().manual_seed(0)) - 0.5
    return (low + high) / 2 + ACTION_SHARE * (high - low) * share


def _route(sim: Any, actions: torch.Tensor, rewards: list[float]) -> Callable[[], float]:
    def once() -> float:
        sim.reset(seed=len(rewards))
        began = time.perf_counter()
        last = [sim.step(action).reward for action in actions][-1]
        took_s = time.perf_counter() - began
        rewards.append(float(last.sum()))
        return 1e6 * took_s / len(actions)

    return once
