"""One cell of the planner table: train with moderate traffic, then drive the same test starts in each population.

`python -m benchmarks.planner.cell PLANNER SEED OUT` writes OUT/result.json.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.driving.cell import EPISODES, NUM_ENVS, REWARDED, drive, scenario_scores
from benchmarks.planner.bench import CLONES, PLANNERS, POPULATIONS, REVISION, SIM, TRAINED
from robotrl.algos.ppo import PpoCfg
from robotrl.config import EvalCfg, TrainCfg, changed_options
from robotrl.engine.autocast import pays_in_bf16
from robotrl.errors import unknown
from robotrl.registry import PRESETS, make_sim
from robotrl.rollout.demos import collect_demos
from robotrl.run.policy_checkpoint import load_policy
from robotrl.sims.bev.sim import DriveSim
from robotrl.training import train
from robotrl.utils.files import dump_json, replace_file

DEMOS, NOISE = 8_000, 0.2
"""Demonstrations of a clone, and the noise under which they are driven."""


def main(name: str, seed: int, out: Path, episodes: int = EPISODES) -> None:
    """Run one cell in this process.

    Raises:
        ConfigError: the planner is unknown.
    """
    if name not in PLANNERS:
        raise unknown("planner", name, PLANNERS)
    replace_file(out / "result.json", dump_json(run_cell(name, seed, out, episodes)))


def run_cell(name: str, seed: int, out: Path, episodes: int) -> dict[str, Any]:
    """Scores by population; of a trained planner those of its newest checkpoint, as it is deployed."""
    if PLANNERS[name].preset is None:
        return {"populations": {population: _expert(population, seed, episodes) for population in POPULATIONS}}
    base = PLANNERS[name].base
    start = None if base is None else cloned(base, seed, out)
    began = time.perf_counter()
    run = cloned(name, seed, out) if name in CLONES else tuned(name, seed, start, out / "run")
    train_s = time.perf_counter() - began
    found = {population: drive_in(population, name, run, seed, episodes) for population in POPULATIONS}
    return {"populations": found, "train_s": train_s}


def cloned(name: str, seed: int, out: Path) -> Path:
    """Run of a clone, which the cells of a table share: it is trained unless it is there.

    Args:
        name: name of the clone in the table.
        seed: seed of demonstrations and training.
        out: the cell's folder, WORK/attempt-KEY/out; the clone goes to WORK/clones.
    """
    shared = out.parents[1] / "clones"
    cfg = preset_cfg(name, seed)
    options = changed_options(cfg.sim)
    how: dict[str, Any] = {"noise": NOISE, "labels": "intended", "keep": "all"}
    drives = shared / f"drives-{DEMOS}-{seed}-{settings_hash(options, how)}"
    run = shared / f"{name}-{DEMOS}-{seed}-{settings_hash(asdict(cfg), how)}"
    if run.exists():
        return run
    shared.mkdir(exist_ok=True)
    if not drives.exists():
        collect_demos(SIM, out / "drives", episodes=DEMOS, seed=seed, sim_options=options, **how)
        (out / "drives").rename(drives)
    train(replace(cfg, dataset=str(drives)), out / "clone")
    return (out / "clone").rename(run)  # whole or not at all


def settings_hash(*settings: Any) -> str:
    """Hash of settings and of the bench's revision, by which clones and drives of others are not taken for theirs."""
    return hashlib.sha256(json.dumps([REVISION, *settings], default=str).encode()).hexdigest()[:12]


def tuned(name: str, seed: int, start: Path | None, run: Path) -> Path:
    """Train a planner, from the run of its clone if it has one; returns `run`."""
    train(replace(preset_cfg(name, seed), init_from=None if start is None else str(start)), run)
    return run


def preset_cfg(name: str, seed: int) -> TrainCfg[Any, Any]:
    """Training config of a planner: its preset, among moderate traffic, without evaluations on the way."""
    cfg: TrainCfg[Any, Any] = PRESETS.load(str(PLANNERS[name].preset))()
    if isinstance(cfg.algo, PpoCfg):
        # 1.7 times as many samples per second, on processors that support it
        cfg = replace(cfg, algo=replace(cfg.algo, bf16=pays_in_bf16()))
    options = {**changed_options(cfg.sim), "traffic": (TRAINED,)}
    evaluation = EvalCfg(every=0, episodes=NUM_ENVS, animation=0)
    return replace(cfg, seed=seed, sim=replace(cfg.sim, options=options), evaluation=evaluation)


def drive_in(population: str, name: str, run: Path, seed: int, episodes: int) -> dict[str, Any]:
    """Scores of a run's newest checkpoint in a population, as it is deployed."""
    policy = load_policy(run, "latest")
    options = changed_options(preset_cfg(name, seed).sim)
    sim = _sim(population, seed, **{key: value for key, value in options.items() if key not in (*REWARDED, "traffic")})
    generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def act(obs: dict[str, Tensor], started: Tensor) -> Tensor:
        del started  # no planner has a recurrent state
        seen = {key: obs[key] for key in policy.observation_spec}
        return policy.act(seen, generator=generator, mode=policy.deploy_mode).chunk[:, 0]

    return scenario_scores(drive(sim, act, episodes))


def _expert(population: str, seed: int, episodes: int) -> dict[str, Any]:
    sim = _sim(population, seed, obs="none")
    expert = sim.make_expert(mode="brisk", seed=seed)
    return scenario_scores(drive(sim, lambda obs, started: expert.act(started), episodes))


def _sim(population: str, seed: int, **options: Any) -> DriveSim:
    sim: DriveSim = make_sim(SIM, num_envs=NUM_ENVS, seed=seed, traffic=(population,), **options)
    return sim


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
