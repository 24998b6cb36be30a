"""One cell of the planner table: train with moderate traffic, then drive the same test starts in each population.

`python -m benchmarks.planner.cell PLANNER SEED OUT` writes OUT/result.json.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.driving.cell import EPISODES, NUM_ENVS, REWARDED, drive, planner_cfg, scenario_scores
from benchmarks.planner.bench import PLANNERS, POPULATIONS, SIM, TRAINED
from robotrl.config import EvalCfg, changed_options
from robotrl.errors import unknown
from robotrl.registry import make_sim
from robotrl.run.policy_checkpoint import load_policy
from robotrl.sims.bev.sim import DriveSim
from robotrl.training import train
from robotrl.utils.files import dump_json, replace_file

OF_DRIVING = {"ppo": "planner"}
"""Trained planners, by their names in the driving table, whose settings they share."""


def main(name: str, seed: int, out: Path, episodes: int = EPISODES) -> None:
    """Run one cell in this process.

    Raises:
        ConfigError: the planner is unknown.
    """
    if name not in PLANNERS:
        raise unknown("planner", name, PLANNERS)
    replace_file(out / "result.json", dump_json(run_cell(name, seed, out, episodes)))


def run_cell(name: str, seed: int, out: Path, episodes: int) -> dict[str, Any]:
    """Scores by population; of a trained planner those of its newest checkpoint, driving without noise."""
    if PLANNERS[name].preset is None:
        return {"populations": {population: _expert(population, seed, episodes) for population in POPULATIONS}}
    began = time.perf_counter()
    cfg = planner_cfg(OF_DRIVING[name], seed, out)
    assert cfg is not None, "a planner with a preset is trained"
    options = {**changed_options(cfg.sim), "traffic": (TRAINED,)}
    cfg = replace(cfg, seed=seed, sim=replace(cfg.sim, options=options))
    train(replace(cfg, evaluation=EvalCfg(every=0, episodes=NUM_ENVS, animation=0)), out / "run")
    train_s = time.perf_counter() - began
    policy = load_policy(out / "run", "latest")

    @torch.no_grad()
    def act(obs: dict[str, Tensor], started: Tensor) -> Tensor:
        del started  # the planner has no recurrent state
        return policy.act({key: obs[key] for key in policy.observation_spec}, mode="mean").chunk[:, 0]

    driven = {key: value for key, value in options.items() if key not in (*REWARDED, "traffic")}
    found = {
        population: scenario_scores(drive(_sim(population, seed, **driven), act, episodes))
        for population in POPULATIONS
    }
    return {"populations": found, "train_s": train_s}


def _expert(population: str, seed: int, episodes: int) -> dict[str, Any]:
    sim = _sim(population, seed, obs="none")
    expert = sim.make_expert(mode="brisk", seed=seed)
    return scenario_scores(drive(sim, lambda obs, started: expert.act(started), episodes))


def _sim(population: str, seed: int, **options: Any) -> DriveSim:
    sim: DriveSim = make_sim(SIM, num_envs=NUM_ENVS, seed=seed, traffic=(population,), **options)
    return sim


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
