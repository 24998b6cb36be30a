"""Driving policies trained with PPO on rewards that differ in one term, driven on unseen roads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.driving.cell import run_cell
from benchmarks.rewards.model import BAD, GOOD, trained
from robotrl.config import TrainCfg, WeightedReward, changed_options
from robotrl.fn.language_reward import driving_synthesis
from robotrl.registry import PRESETS
from robotrl.rewards.contrast import ContrastCfg
from robotrl.rewards.function import FunctionRewardCfg
from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.rewards.vlm.synthesis import MAX_HEADING_RAD, MAX_OFFSET_M
from robotrl.sims.bev.render.vectors import SCALARS
from robotrl.sims.bev.sim import VEHICLE

ENV_STEPS, EPISODES = 2_000_000, 384
MAX_SPEED_MPS = 10.0
EVERY = 5


def run(
    method: str, seed: int, out: Path, *flags: str, env_steps: int = ENV_STEPS, episodes: int = EPISODES
) -> dict[str, Any]:
    """Scores on unseen roads of the policy of one arm."""
    found = run_cell(cfg_of(method, seed, out, env_steps, *flags), seed, out, episodes)
    wanted = ("completion", "driving", "success", "train_s", "env_steps_per_s")
    return {"collisions": found["collisions"] / found["routes"]} | {key: found[key] for key in wanted}


def cfg_of(arm: str, seed: int, out: Path, env_steps: int, *flags: str) -> TrainCfg[Any, Any]:
    """Training config of an arm: the planner's preset with another reward."""
    cfg: TrainCfg[Any, Any] = PRESETS.load("drive-ppo")()
    cfg = replace(cfg, algo=replace(cfg.algo, env_steps=env_steps))
    if arm == "carl":
        return cfg
    options = {name: value for name, value in changed_options(cfg.sim).items() if name != "end_penalty"}
    cfg = replace(cfg, sim=replace(cfg.sim, options=options))
    if arm == "state":
        return replace(cfg, rewards=(WeightedReward("function", 1.0, FunctionRewardCfg(f"{__name__}:speed_and_lane")),))
    contrast = ContrastCfg(
        model=str(trained(out, seed, *flags)),
        good=GOOD,
        bad=BAD,
        view="near",
        every=EVERY,
        synthesis="driving",
        max_speed_mps=MAX_SPEED_MPS,
        background=True,
        service=ServiceCfg(when_full="wait"),
    )
    return replace(cfg, rewards=(WeightedReward("contrast", 1.0, contrast),))


def speed_and_lane(
    obs: dict[str, Tensor], action: Tensor, next_obs: dict[str, Tensor], info: dict[str, Tensor]
) -> Tensor:
    """Reward of the synthesis where language always says that the road is clear: maximum speed, in the lane."""
    values = next_obs[VEHICLE.key]
    columns = (VEHICLE.speed, VEHICLE.offset, VEHICLE.heading_sin, VEHICLE.heading_cos)
    speed, offset, sin, cos = (values[:, SCALARS.index(one)] for one in columns)
    return driving_synthesis(
        torch.ones_like(speed),
        speed * VEHICLE.speed_mps,
        offset * VEHICLE.offset_m,
        torch.atan2(sin, cos),
        max_speed_mps=MAX_SPEED_MPS,
        max_offset_m=MAX_OFFSET_M,
        max_heading_rad=MAX_HEADING_RAD,
    )
