"""One cell of the planner table: train a planner, then drive the same test starts in each population and fault.

`python -m benchmarks.planner.cell PLANNER SEED OUT` writes OUT/result.json. A row of the study of clones is cloned, and
drives starts of the split `val`.
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
from benchmarks.planner.populations import CLONES, DEMOS, FAULTS, PLANNERS, POPULATIONS, STUDY
from benchmarks.planner.settings import REVISION, SIM, TRAINED
from robotrl.algos.ppo import PpoCfg
from robotrl.config import EvalCfg, TrainCfg, changed_options
from robotrl.engine.autocast import pays_in_bf16
from robotrl.errors import unknown
from robotrl.registry import PRESETS, make_sim
from robotrl.rollout.demos import collect_demos
from robotrl.run.policy_checkpoint import load_policy
from robotrl.sims.bev.sim import DriveSim
from robotrl.spec import Split
from robotrl.training import train
from robotrl.utils.files import dump_json, replace_file

NOISE = 0.2
"""Noise under which demonstrations of a clone are driven."""


def main(name: str, seed: int, out: Path, episodes: int = EPISODES) -> None:
    """Run one cell in this process.

    Raises:
        ConfigError: the planner is unknown.
    """
    if name not in PLANNERS and name not in STUDY:
        raise unknown("planner", name, (*PLANNERS, *STUDY))
    found = study_cell(name, seed, out, episodes) if name in STUDY else run_cell(name, seed, out, episodes)
    replace_file(out / "result.json", dump_json(found))


def run_cell(name: str, seed: int, out: Path, episodes: int) -> dict[str, Any]:
    """Scores by population and fault; of a trained planner those of its newest checkpoint, as it is deployed."""
    if PLANNERS[name].preset is None:
        return {"populations": {population: _expert(population, seed, episodes) for population in POPULATIONS}}
    base = PLANNERS[name].base
    start = None if base is None else cloned(base, seed, out)
    began = time.perf_counter()
    run = cloned(name, seed, out) if name in CLONES else tuned(name, seed, start, out / "run")
    train_s = time.perf_counter() - began
    among = {one: driven(name, run, seed, episodes, traffic=(one,)) for one in POPULATIONS}
    faulty = {one: driven(name, run, seed, episodes, **fault_options(one)) for one in FAULTS}
    return {"populations": among, "faults": faulty, "train_s": train_s}


def study_cell(name: str, seed: int, out: Path, episodes: int) -> dict[str, Any]:
    """Scores on the split `val` of a clone of the study."""
    study = STUDY[name]
    run = cloned("flow", seed, out, study.demos, study.updates)
    return driven("flow", run, seed, episodes, split="val", traffic=(TRAINED,))


def fault_options(fault: str) -> dict[str, Any]:
    """Sim options of a fault, with which all planners act anew in each control step."""
    return {"traffic": (TRAINED,), "hold": 1, **FAULTS[fault]}


def cloned(name: str, seed: int, out: Path, demos: int = DEMOS, updates: int | None = None) -> Path:
    """Run of a clone, which the cells of a table share: it is trained unless it is there.

    Args:
        name: name of the clone in the table.
        seed: seed of demonstrations and training.
        out: the cell's folder, WORK/attempt-KEY/out; the clone goes to WORK/clones.
        demos: number of demonstrations.
        updates: updates of the training; None for those of the preset.
    """
    shared = out.parents[1] / "clones"
    cfg = preset_cfg(name, seed)
    if updates is not None:
        cfg = replace(cfg, algo=replace(cfg.algo, updates=updates))
    options = changed_options(cfg.sim)
    how: dict[str, Any] = {"noise": NOISE, "labels": "intended", "keep": "all"}
    drives = shared / f"drives-{demos}-{seed}-{settings_hash(options, how)}"
    run = shared / f"{name}-{demos}-{seed}-{settings_hash(asdict(cfg), how)}"
    if run.exists():
        return run
    shared.mkdir(exist_ok=True)
    if not drives.exists():
        collect_demos(SIM, out / "drives", episodes=demos, seed=seed, sim_options=options, **how)
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
    """Training config of a planner: its preset, among its traffic, without evaluations on the way."""
    cfg: TrainCfg[Any, Any] = PRESETS.load(str(PLANNERS[name].preset))()
    if isinstance(cfg.algo, PpoCfg):
        # 1.7 times as many samples per second, on processors that support it
        cfg = replace(cfg, algo=replace(cfg.algo, bf16=pays_in_bf16()))
    options = {**changed_options(cfg.sim), "traffic": PLANNERS[name].traffic}
    evaluation = EvalCfg(every=0, episodes=NUM_ENVS, animation=0)
    return replace(cfg, seed=seed, sim=replace(cfg.sim, options=options), evaluation=evaluation)


def driven(name: str, run: Path, seed: int, episodes: int, split: Split = "test", **options: Any) -> dict[str, Any]:
    """Scores of a run's newest checkpoint, as it is deployed.

    Args:
        name: the planner.
        run: its run.
        seed: seed of sim and policy.
        episodes: number of starts.
        split: their split.
        options: sim options besides those that the planner was trained with, such as its traffic.
    """
    policy = load_policy(run, "latest")
    trained = changed_options(preset_cfg(name, seed).sim)
    kept = {key: value for key, value in trained.items() if key not in (*REWARDED, *options)}
    generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def act(obs: dict[str, Tensor], started: Tensor) -> Tensor:
        del started  # no planner has a recurrent state
        seen = {key: obs[key] for key in policy.observation_spec}
        return policy.act(seen, generator=generator, mode=policy.deploy_mode).chunk[:, 0]

    sim = make_sim(SIM, num_envs=NUM_ENVS, seed=seed, **kept, **options)
    return scenario_scores(drive(sim, act, episodes, split))


def _expert(population: str, seed: int, episodes: int) -> dict[str, Any]:
    sim: DriveSim = make_sim(SIM, num_envs=NUM_ENVS, seed=seed, traffic=(population,), obs="none")
    expert = sim.make_expert(mode="brisk", seed=seed)
    return scenario_scores(drive(sim, lambda obs, started: expert.act(started), episodes))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
