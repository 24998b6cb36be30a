"""Workloads that `tools/speed_against.py` times in two checkouts; imported by a worker process of each.

Only names that exist in both checkouts may be used here. `make(method, setting, task)` returns a workload with
`run(count)`, which returns the amount of work done, and `compile_s`; see `benchmarks.ppo.worker`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Unit:
    """A workload that can be repeated."""

    def __init__(self, once: Callable[[], int], compile_s: float | None = None) -> None:
        self._once = once
        self.compile_s = compile_s

    def run(self, count: int) -> int:
        """Repeat it `count` times; returns the amount of work, in units of the method."""
        return sum(self._once() for _ in range(count))


def make(method: str, setting: str, task: str) -> Unit:
    """Make a workload, ready to run: "stepping", "chain" or "evaluation"."""
    return MADE[method](setting, task)


def stepping(setting: str, task: str) -> Unit:
    """Control steps of `setting` envs under random actions, including resets; the unit is an env step."""
    from robotrl.registry import make_sim

    sim = make_sim(task, num_envs=int(setting), seed=0, threads=2)
    sim.reset(seed=0)
    generator = torch.Generator().manual_seed(0)
    low, high = torch.tensor(sim.action_spec.low), torch.tensor(sim.action_spec.high)
    actions = [low + (high - low) * torch.rand(sim.num_envs, len(low), generator=generator) for _ in range(10)]

    def once() -> int:
        for action in actions:
            sim.step(action)
        return len(actions) * sim.num_envs

    return Unit(once)


def chain(setting: str, task: str) -> Unit:
    """Updates of one iteration of a method of bench `chain` ("reinflow", "dppo") on one rollout."""
    from benchmarks.chain import bench

    assert task == bench.TASK
    learner = bench.make_learner(bench.METHODS[setting], "compiled")
    batch, _ = learner.collect()
    learner.update(batch)

    def once() -> int:
        learner.update(batch)
        return 1

    return Unit(once, learner.compile_s)


def evaluation(setting: str, task: str) -> Unit:
    """The quickstart's evaluation: 256 starts of split test, 128 envs; `setting` is a run, the unit an evaluation."""
    from robotrl.registry import make_sim
    from robotrl.rollout.evaluate import evaluate
    from robotrl.run.policy_checkpoint import load_policy

    policy: Any = load_policy(setting)

    def once() -> int:
        sim = make_sim(task, num_envs=128, seed=0)
        evaluate(policy, sim, episodes=256, split="test", seed=0)
        sim.close()
        return 1

    return Unit(once)


MADE = {"stepping": stepping, "chain": chain, "evaluation": evaluation}
