"""One cell of PerlAD's ablation: record a log, train an arm on it, then drive test starts of `bev/drive`.

`python -m benchmarks.planner.perlad_cell ARM SEED OUT` writes OUT/result.json.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.driving.cell import NUM_ENVS, drive, scenario_scores
from benchmarks.planner.perlad import ABLATION_EPISODES, ARMS, LOGGED
from benchmarks.planner.settings import SIM, TRAINED
from robotrl.algos.perlad import PerladCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.errors import unknown
from robotrl.policies.path_speed import PathSpeedCfg
from robotrl.registry import make_sim
from robotrl.run.policy_checkpoint import load_policy
from robotrl.sims.bev.sim import DriveSim
from robotrl.sims.driving.logs.record import record_drives
from robotrl.training import train
from robotrl.utils.files import dump_json, replace_file

OBSERVED: dict[str, Any] = {"actions": "trajectory", "polylines": 0}
"""Options of the log's sim and of `bev/drive` that the policy depends on."""
POLICY = PathSpeedCfg(set_features=32)


def main(
    name: str, seed: int, out: Path, episodes: int = ABLATION_EPISODES, logged: int = LOGGED, **changes: Any
) -> None:
    """Run one cell in this process.

    Args:
        name: the arm.
        seed: seed of the log's driver and of the training.
        out: folder of the cell.
        episodes: test episodes.
        logged: starts that are driven for the log.
        changes: further settings of the algorithm, for a short run.

    Raises:
        ConfigError: the arm is unknown.
    """
    if name not in ARMS:
        raise unknown("arm", name, ARMS)
    arm, log = ARMS[name], out / "log"
    recorded: DriveSim = make_sim(SIM, num_envs=min(NUM_ENVS, logged), seed=seed, obs="none", traffic=(TRAINED,))
    record_drives(recorded, log, {"train": logged}, frames=None, seed=seed)
    recorded.close()
    options = tuple(f"{key}={value}" for key, value in {**OBSERVED, "log": log}.items())
    cfg = TrainCfg(
        SimCfg("bev/warp", 16, options),
        replace(PerladCfg(), **{**arm.algo, **changes}),
        replace(POLICY, **arm.policy),
        seed=seed,
        evaluation=EvalCfg(every=0, episodes=0, animation=0),
    )
    began = time.perf_counter()
    train(cfg, out / "run")
    train_s = time.perf_counter() - began
    policy = load_policy(out / "run", "latest")

    @torch.no_grad()
    def act(obs: dict[str, Tensor], started: Tensor) -> Tensor:
        del started  # the planner has no recurrent state
        return policy.act({key: obs[key] for key in policy.observation_spec}, mode="mean").chunk[:, 0]

    sim: DriveSim = make_sim(SIM, num_envs=NUM_ENVS, seed=seed, traffic=(TRAINED,), **OBSERVED)
    result = scenario_scores(drive(sim, act, episodes)) | {"train_s": train_s}
    replace_file(out / "result.json", dump_json(result))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
