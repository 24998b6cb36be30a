"""One cell of the cluster bench: `python -m benchmarks.cluster.cell NAME NUMBER OUT`.

The number is that of the rounds of the cells `speed` and `costs`, and the seed of others.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.cluster import costs, kills
from benchmarks.cluster.bench import LEARNED, MILLISECONDS, STALENESS, TASK
from benchmarks.kit.figures import paired
from robotrl.algos.ppo import DensityActing, PpoCfg
from robotrl.cluster.collector import ShardedRollouts
from robotrl.cluster.factory import ClusterCollectors
from robotrl.composition import compose, with_schedule
from robotrl.config import ClusterCfg
from robotrl.learners.memory.contexts import contexts_of
from robotrl.policies.base import ACTION
from robotrl.policies.gaussian import GaussianCfg
from robotrl.registry import make_sim
from robotrl.run.logs import read_scalars
from robotrl.spec import VecSim
from robotrl.training import train
from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse
from robotrl.utils.devices import CPU
from robotrl.utils.files import dump_json, replace_file

ENVS = 16
"""Envs of each worker."""
BLOCK_S = 0.5
"""Duration of a block of rollouts of one route, at least."""
ENV_STEPS = 1_000_000


def main(name: str, number: int, out: Path) -> None:
    """Run one cell in this process."""
    # what a cell started ends with it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if name == "speed":
        found = speed(number)
    elif name == "costs":
        found = constants(number)
    elif name == "kills":
        found = kills.kills(number, out)
    elif name == "sweep-kill":
        found = kills.sweep_kill(number, out)
    else:
        found = learn(STALENESS[name], number, out)
    replace_file(out / "result.json", dump_json(found))


def shard_sim(number: int, seed: int) -> VecSim:
    """The sim of a worker, with one thread."""
    return make_sim(TASK, num_envs=ENVS, seed=seed + number, threads=1)


def collector(cfg: ClusterCfg) -> ShardedRollouts:
    """Collector of a policy with random weights."""
    sim = make_sim(TASK, num_envs=ENVS * cfg.workers, seed=0)
    to_unit = bounds_to_unit(ACTION, sim.action_spec.low, sim.action_spec.high)
    outputs = inverse(to_unit), Clip(ACTION, sim.action_spec.low, sim.action_spec.high)
    torch.manual_seed(0)
    policy = GaussianCfg(horizon=1).build(sim.observation_spec, sim.action_spec, TransformGroup((), outputs))
    settings = PpoCfg()
    acting = DensityActing(policy, contexts_of(policy, settings.bptt_steps, sim.num_envs), settings, CPU)
    collectors = ClusterCollectors(cfg, shard_sim, 1, CPU)
    return collectors.rollouts(sim, acting, settings.gamma, 0, torch.Generator().manual_seed(0))


def speed(rounds: int) -> dict[str, Any]:
    """Ratios and speeds by length of rollouts, ms."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    torch.set_num_threads(1)
    # three workers take turns, and at most two of them work at once
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level=logging.CRITICAL)
    routes = {
        "two": collector(ClusterCfg("ray", workers=2)),
        "one": collector(ClusterCfg("ray", workers=1)),
        "here": collector(ClusterCfg("local", workers=1)),
    }
    found: dict[str, Any] = {}
    for length in MILLISECONDS:
        steps = calibrated(routes["here"], length / 1000)
        calls = max(1, round(BLOCK_S * 1000 / length))
        timed = paired({name: partial(seconds, one, steps, calls) for name, one in routes.items()}, rounds)
        two, one, here = (timed.samples[name] for name in ("two", "one", "here"))
        found[str(length)] = {
            "steps": steps,
            "seconds": {name: list(samples) for name, samples in timed.samples.items()},
            "env_steps_per_s": [2 * ENVS * steps / sample for sample in two],
            "ratios": {
                "speedup": [2 * b / a for a, b in zip(two, one, strict=True)],
                "overhead": [a / b for a, b in zip(one, here, strict=True)],
            },
        }
    for one in routes.values():
        one.close()
    ray.shutdown()
    return found


def constants(rounds: int) -> dict[str, Any]:
    """Constants of the cost model; see `benchmarks.cluster.costs`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    torch.set_num_threads(1)
    # a CPU for each worker of all routes, which take turns
    cpus = sum(costs.WORKERS)
    ray.init(
        address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.CRITICAL
    )
    routes = {workers: collector(ClusterCfg("ray", workers=workers)) for workers in costs.WORKERS}
    steps = calibrated(routes[1], MILLISECONDS[-1] / 1000)
    try:
        return costs.measured(routes, routes[1].network, steps, rounds)
    finally:
        for one in routes.values():
            one.close()
        ray.shutdown()


def seconds(one: ShardedRollouts, steps: int, calls: int) -> float:
    """Mean time of a rollout over some calls, s."""
    began = time.perf_counter()
    for _ in range(calls):
        one.rollout(steps)
    return (time.perf_counter() - began) / calls


def calibrated(one: ShardedRollouts, wanted_s: float) -> int:
    """Steps of a rollout that takes so long."""
    probe = 50
    return max(2, round(probe * wanted_s / min(seconds(one, probe, 3) for _ in range(3))))


def learn(staleness: int, seed: int, out: Path) -> dict[str, Any]:
    """Success of the best checkpoint of PPO on two workers, and the env steps until its success."""
    cfg = with_schedule(compose(LEARNED, "ppo", "gaussian"))
    cfg = replace(
        cfg,
        seed=seed,
        sim=replace(cfg.sim, options=replace(cfg.sim.options, reward="shaped")),
        algo=replace(cfg.algo, env_steps=ENV_STEPS),
        cluster=ClusterCfg("ray", workers=2, max_staleness=staleness),
    )
    rows = read_scalars(train(cfg, out / "run") / "scalars.jsonl")
    evaluated = [row for row in rows if "eval_success" in row]
    best = max(evaluated, key=lambda row: row["eval_success"])
    return {
        "success": evaluated[-1]["eval_success"],
        "best": best["eval_success"],
        "env_steps": best["env_steps"],
        "curve": [[row["env_steps"], row["eval_success"]] for row in evaluated],
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
