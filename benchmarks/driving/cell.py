"""One cell of the driving table: train, then drive every listed start of the split `test` once, as deployed.

`python -m benchmarks.driving.cell METHOD SEED OUT` writes OUT/result.json.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.driving.bench import MINIBATCHES, PLANNERS, REWARDS, SIM, STUDY_STEPS, study_name
from robotrl.algos.ppo import PpoCfg
from robotrl.cli.commands.train import config_of
from robotrl.config import EvalCfg, TrainCfg, changed_options
from robotrl.engine.autocast import pays_in_bf16
from robotrl.errors import unknown
from robotrl.registry import PRESETS, make_sim
from robotrl.rollout.demos import collect_demos
from robotrl.run.logs import read_scalars
from robotrl.run.policy_checkpoint import load_policy
from robotrl.sims.bev.sim import DriveSim
from robotrl.sims.driving.scores import Route, by_map_speed, leaderboard_2_1, summary
from robotrl.sims.wrapper import WrappedSim
from robotrl.spec import Split, Step
from robotrl.training import train
from robotrl.utils.files import dump_json, replace_file

EPISODES = 384
"""Test episodes: 32 starts of each scenario."""
NUM_ENVS = 64
DEMOS = 400
"""Demonstrations of the rule-based driver for its clone."""

REWARDED = ("reward", "end_penalty")
"""Sim options that set the reward."""

Act = Callable[[dict[str, Tensor], Tensor], Tensor]
"""Policy function: (observations, which envs have just begun) to actions (N, 2)."""


def main(method: str, seed: int, out: Path) -> None:
    """Run one cell in this process.

    Raises:
        ConfigError: the method is unknown.
    """
    study = {study_name(reward, size): (reward, size) for size in MINIBATCHES for reward in REWARDS}
    if method not in PLANNERS and method not in study:
        raise unknown("method", method, (*PLANNERS, *study))
    cfg = study_cfg(*study[method]) if method in study else planner_cfg(method, seed, out)
    replace_file(out / "result.json", dump_json(run_cell(cfg, seed, out)))


def planner_cfg(method: str, seed: int, out: Path, episodes: int = DEMOS) -> TrainCfg[Any, Any] | None:
    """Training config of a planner, None for the rule-based driver; a clone's demonstrations go to `out`."""
    preset = PLANNERS[method].preset
    if preset is None:
        return None
    cfg: TrainCfg[Any, Any] = config_of(preset)
    if isinstance(cfg.algo, PpoCfg):
        # bf16: about 1.7 times as many samples per second, on processors that support it
        cfg = replace(cfg, algo=replace(cfg.algo, bf16=pays_in_bf16()))
    if method == "clone":
        options = changed_options(cfg.sim)
        demos = collect_demos(SIM, out / "demos", episodes=episodes, noise=0.1, seed=seed, sim_options=options)
        cfg = replace(cfg, dataset=str(demos.path))
    return cfg


def study_cfg(reward: str, minibatch: int) -> TrainCfg[Any, Any]:
    """The planner's preset with a published reward and a minibatch size, everything else equal."""
    cfg: TrainCfg[Any, Any] = PRESETS.load("drive-ppo")()
    kept = {name: value for name, value in changed_options(cfg.sim).items() if name not in REWARDED}
    return replace(
        cfg,
        sim=replace(cfg.sim, options={**kept, "reward": reward}),
        algo=replace(cfg.algo, env_steps=STUDY_STEPS, minibatch=minibatch, bf16=pays_in_bf16()),
    )


def run_cell(cfg: TrainCfg[Any, Any] | None, seed: int, out: Path, episodes: int = EPISODES) -> dict[str, Any]:
    """Result of one cell; without a config that of the rule-based driver."""
    began = time.perf_counter()
    if cfg is None:
        sim: DriveSim = make_sim(SIM, num_envs=NUM_ENVS, seed=seed)
        expert = sim.make_expert(mode="brisk", seed=seed)
        return scenario_scores(drive(sim, lambda obs, started: expert.act(started), episodes))
    train(replace(cfg, seed=seed, evaluation=EvalCfg(every=0, episodes=NUM_ENVS, animation=0)), out / "run")
    train_s = time.perf_counter() - began
    # a clone uses none
    env_steps = read_scalars(out / "run" / "scalars.jsonl")[-1].get("env_steps") or None
    options = {name: value for name, value in changed_options(cfg.sim).items() if name not in REWARDED}
    sim: DriveSim = make_sim(SIM, num_envs=NUM_ENVS, seed=seed, **options)
    policy = load_policy(out / "run", "latest")

    @torch.no_grad()
    def act(obs: dict[str, Tensor], started: Tensor) -> Tensor:
        del started  # the planner has no recurrent state
        return policy.act({key: obs[key] for key in policy.observation_spec}, mode="mean").chunk[:, 0]

    return {
        **scenario_scores(drive(sim, act, episodes)),
        "env_steps": env_steps,
        "train_s": train_s,
        "bf16": cfg.algo.bf16,
        "env_steps_per_s": env_steps / train_s if env_steps else None,
    }


def drive(sim: Any, act: Act, episodes: int, split: Split = "test") -> dict[str, list[Route]]:
    """Drive the first starts of a split, each once; returns outcomes by scenario.

    Args:
        sim: a driving sim, which may be wrapped; it is closed.
        act: the policy.
        episodes: number of starts.
        split: their split.
    """
    world = world_of(sim)
    found = {name: list[Route]() for name in world.scenarios}
    for state_id, e, _ in ended(sim, act, list(sim.state_ids(split)[:episodes])):
        found[world.scenario_of(state_id)].append(world.core.drives[e])
    sim.close()
    return found


def ended(sim: Any, act: Act, ids: Sequence[int]) -> Iterator[tuple[int, int, Step]]:
    """Drive starts, each once; yields start, env and the env's last step as each ends."""
    sim.queue_states(ids)
    obs = sim.reset()
    missing = set(ids)
    started = torch.ones(sim.num_envs, dtype=torch.bool)
    while missing:
        out = sim.step(act(obs, started))
        obs, started = out.obs, (out.terminated | out.truncated).clone()
        for e in out.final_ids.tolist():
            state_id = int(out.info["state_id"][e])
            if state_id in missing:
                missing.remove(state_id)
                yield state_id, e, out


def world_of(sim: Any) -> Any:
    """The driving sim inside its wrappers."""
    return world_of(sim.sim) if isinstance(sim, WrappedSim) else sim


def scenario_scores(found: dict[str, list[Route]]) -> dict[str, Any]:
    """Scores over all routes, and by scenario."""
    routes = [route for some in found.values() for route in some]
    total = summary(routes, "leaderboard-2.0")
    return {
        "completion": total.completion,
        "driving": total.driving.value,
        "driving_interval": total.driving._asdict(),
        # traffic of the minimum speed: all cars on the map, the rule of earlier results
        "driving_map_speed": summary([by_map_speed(route) for route in routes], "leaderboard-2.0").driving.value,
        "driving_2_1": float(np.mean([leaderboard_2_1(route).driving for route in routes])),
        "success": float(np.mean([route.success for route in routes])),
        "strict_success": float(np.mean([route.strict_success for route in routes])),
        "collisions": sum(route.collisions for route in routes),
        "at_fault": sum(route.at_fault for route in routes),
        "routes": len(routes),
        "scenarios": {
            name: {
                "routes": len(some),
                "completion": float(np.mean([route.completion for route in some])),
                "driving": summary(some, "leaderboard-2.0").driving.value,
                "success": float(np.mean([route.success for route in some])),
            }
            for name, some in found.items()
            if some
        },
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
