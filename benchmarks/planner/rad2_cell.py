"""One cell of RAD-2's ablation: train an arm on clips of a log, then drive the held-out clips.

`python -m benchmarks.planner.rad2_cell ARM SEED OUT` writes OUT/result.json.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from benchmarks.driving.cell import NUM_ENVS, ended
from benchmarks.planner.rad2 import ARMS, CLIPS, EPISODES, REVISION, SIM
from benchmarks.planner.settings import SIM as DRIVE
from benchmarks.planner.settings import TRAINED
from robotrl.cli.commands.train import config_of
from robotrl.config import EvalCfg, TrainCfg, changed_options
from robotrl.errors import unknown
from robotrl.registry import make_sim
from robotrl.rollout.demos import collect_demos
from robotrl.run.policy_checkpoint import load_policy
from robotrl.sims.driving.logs.record import record_drives
from robotrl.sims.warp.sim import BevWarpSim
from robotrl.spec import Split
from robotrl.training import train
from robotrl.utils.files import dump_json, replace_file

DEMOS, NOISE = 2_000, 0.1
"""Demonstrations of the clone, and the noise under which they are driven."""
ON_LOG = "--sim bev/warp --sim.log {log} --sim.actions trajectory --sim.reward sequence"
CLONE = f"{ON_LOG} --algo bc --policy flow --policy.horizon 1 --policy.set-features 64 --policy.set-attention 1"
TUNE = f"{ON_LOG} --algo rad2"
"""Arguments of `robotrl train`, as on the page of RAD-2."""


def main(
    name: str,
    seed: int,
    out: Path,
    episodes: int = EPISODES,
    clips: Mapping[Split, int] = CLIPS,
    demos: int = DEMOS,
    clone: str = "",
    tune: str = "",
) -> None:
    """Run one cell in this process.

    Args:
        name: the arm.
        seed: seed of the log's driver and of the training.
        out: folder of the cell, WORK/attempt-KEY/out; log and clone of the seed go to WORK/rad2-....
        episodes: test episodes.
        clips: starts that are driven for the log.
        demos: demonstrations.
        clone: further flags of the clone's training, for a short run.
        tune: further flags of the arm's training, for a short run.

    Raises:
        ConfigError: the arm is unknown.
    """
    if name not in ARMS:
        raise unknown("arm", name, ARMS)
    shared = out.parents[1] / f"rad2-{REVISION}-{seed}"
    log, planner = recorded(shared, seed, clips), cloned(shared, seed, demos, clone)
    flags, run, began = ARMS[name].flags, planner, time.perf_counter()
    if flags is not None:
        cfg = _quiet(config_of(f"{TUNE.format(log=log)} {flags} {tune} --init-from {planner}"), seed)
        run = out / "run"
        train(cfg, run)
    found = driven(run, log, seed, episodes) | {"train_s": time.perf_counter() - began}
    replace_file(out / "result.json", dump_json(found))


def recorded(shared: Path, seed: int, clips: Mapping[Split, int]) -> Path:
    """Log of the rule-based driver, which the cells of a seed share: it is recorded unless it is there."""
    log = shared / "log"
    if not log.exists():
        sim = make_sim(DRIVE, num_envs=min(NUM_ENVS, sum(clips.values())), seed=seed, obs="none", traffic=(TRAINED,))
        unfinished = shared / "log-unfinished"
        record_drives(sim, unfinished, clips, frames=None, seed=seed)
        sim.close()
        unfinished.rename(log)
    return log


def cloned(shared: Path, seed: int, demos: int, flags: str) -> Path:
    """Run of the planner by imitation, which the cells of a seed share: it is trained unless it is there."""
    run = shared / "planner"
    if not run.exists():
        cfg = _quiet(config_of(f"{CLONE.format(log=shared / 'log')} {flags}"), seed)
        plans = shared / "plans"
        if not plans.exists():
            options = changed_options(cfg.sim)
            collect_demos(SIM, shared / "plans-unfinished", episodes=demos, noise=NOISE, seed=seed, sim_options=options)
            (shared / "plans-unfinished").rename(plans)
        train(replace(cfg, dataset=str(plans)), shared / "planner-unfinished")
        (shared / "planner-unfinished").rename(run)
    return run


def _quiet(cfg: TrainCfg[Any, Any], seed: int) -> TrainCfg[Any, Any]:
    """The config with a seed, without evaluations on the way."""
    return replace(cfg, seed=seed, evaluation=EvalCfg(every=0, episodes=NUM_ENVS, animation=0))


def driven(run: Path, log: Path, seed: int, episodes: int) -> dict[str, Any]:
    """Collisions, progress and ends of a run's newest checkpoint, as it is deployed, on clips of the split `test`."""
    policy = load_policy(run, "latest")
    generator = torch.Generator().manual_seed(seed)
    sim: BevWarpSim = make_sim(SIM, num_envs=NUM_ENVS, seed=seed, log=str(log), actions="trajectory", reward="sequence")

    @torch.no_grad()
    def act(obs: dict[str, Tensor], started: Tensor) -> Tensor:
        del started  # the planner has no recurrent state
        seen = {key: obs[key] for key in policy.observation_spec}
        return policy.act(seen, generator=generator, mode=policy.deploy_mode).chunk[:, 0]

    routes, cuts, progress = [], list[bool](), list[float]()
    for _, e, step in ended(sim, act, list(sim.state_ids("test")[:episodes])):
        routes.append(sim.core.drives[e])
        cuts.append(bool(step.info["cut"][e]))
        progress.append(float(step.info["progress_ratio"][e]))
    sim.close()
    stayed = [ratio for ratio, cut in zip(progress, cuts, strict=True) if not cut]
    return {
        "collisions": fmean(route.collisions for route in routes),
        "at_fault": fmean(route.at_fault for route in routes),
        "cut": fmean(cuts),
        "progress": fmean(stayed) if stayed else 0.0,
        "success": fmean(route.success for route in routes),
        "episodes": len(routes),
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
