"""Driving policies trained with PPO on rewards that differ in one term, driven on unseen roads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.driving.cell import run_cell
from benchmarks.rewards.bench import ALIGNMENT, CARL, ENV_STEPS, LONG, LONG_TIMES, STATE
from benchmarks.rewards.model import ACTIONS, BAD, BASELINE, GOOD, model_folder, trained
from robotrl.config import TrainCfg, WeightedReward, changed_options
from robotrl.engine.autocast import pays_in_bf16
from robotrl.fn.language_reward import driving_synthesis
from robotrl.registry import PRESETS
from robotrl.rewards.action_alignment import ActionAlignmentCfg
from robotrl.rewards.contrast import ContrastCfg
from robotrl.rewards.episode_similarity import EpisodeSimilarityCfg
from robotrl.rewards.function import FunctionRewardCfg
from robotrl.rewards.goal_baseline import GoalBaselineCfg
from robotrl.rewards.lord import LordCfg
from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.rewards.threshold import ThresholdCfg
from robotrl.rewards.vlm.synthesis import MAX_HEADING_RAD, MAX_OFFSET_M
from robotrl.sims.driving.render.vectors import SCALARS
from robotrl.sims.driving.sim import VEHICLE

EPISODES = 384
MAX_SPEED_MPS = 10.0
EVERY, MAX_AGE = 2, 1
"""Control steps of 0.3 s from one scored picture to the next, and for which a score stands."""
QUANTILES = (0.05, 0.2)
"""Of the first scores: four fifths of the scenes count as clear. Chosen at seed 100, which is none of the table's, with
1 million env steps, from ends at 0.5 (a car that stands half of the time), 0.3 and 0.2."""


def run(
    method: str, seed: int, out: Path, work: Path, *flags: str, env_steps: int = ENV_STEPS, episodes: int = EPISODES
) -> dict[str, Any]:
    """Scores on unseen roads of the policy of one arm."""
    arm = method.removesuffix(LONG)
    steps = env_steps if arm == method else LONG_TIMES * env_steps
    found = run_cell(cfg_of(arm, seed, work, steps, *flags), seed, out, episodes)
    wanted = ("completion", "driving", "success", "train_s", "env_steps_per_s")
    rates = {key: found[key] / found["routes"] for key in ("collisions", "at_fault")}
    return rates | {key: found[key] for key in wanted}


def cfg_of(arm: str, seed: int, work: Path, env_steps: int, *flags: str) -> TrainCfg[Any, Any]:
    """Training config of an arm: the planner's preset with another reward."""
    cfg: TrainCfg[Any, Any] = PRESETS.load("drive-ppo")()
    cfg = replace(cfg, algo=replace(cfg.algo, env_steps=env_steps, bf16=pays_in_bf16()))
    if arm == CARL:
        return cfg
    options = {name: value for name, value in changed_options(cfg.sim).items() if name != "end_penalty"}
    sim = replace(cfg.sim, options=options)
    if arm == STATE:
        return replace(cfg, sim=sim, rewards=(_state(),))
    own = (*flags, ACTIONS) if arm == ALIGNMENT else flags
    return replace(cfg, sim=sim, rewards=rewards_of(arm, trained(model_folder(work, seed, *own), seed, *own)))


def rewards_of(arm: str, model: Path) -> tuple[WeightedReward, ...]:
    """Rewards of an arm that looks at pictures.

    A score of 0 to 1 is the desired speed of the synthesis; others are added to the terms of speed and lane.

    Raises:
        KeyError: there is no such arm.
    """
    looks: dict[str, Any] = {
        "model": str(model),
        "view": "near",
        "every": EVERY,
        "max_age": MAX_AGE,
        "background": True,
        "service": ServiceCfg(when_full="wait"),
    }
    speed: dict[str, Any] = {"synthesis": "driving", "max_speed_mps": MAX_SPEED_MPS, "quantiles": QUANTILES}
    in_synthesis = {
        "contrast": lambda: ContrastCfg(good=GOOD, bad=BAD, **looks, **speed),
        "goal-baseline": lambda: GoalBaselineCfg(goal=GOOD[0], baseline=BASELINE, **looks, **speed),
        "lord": lambda: LordCfg(bad=BAD, **looks, **speed),
    }
    added = {
        "threshold": lambda: ThresholdCfg(goal=GOOD[0], **looks),
        "episode-similarity": lambda: EpisodeSimilarityCfg(goal=GOOD[0], **looks),
        ALIGNMENT: lambda: ActionAlignmentCfg(**looks),
    }
    if arm in in_synthesis:
        return (WeightedReward(arm, 1.0, in_synthesis[arm]()),)
    return (_state(), WeightedReward(arm, 1.0, added[arm]()))


def _state() -> WeightedReward:
    target = f"{__name__}:{speed_and_lane.__name__}"
    return WeightedReward("function", 1.0, FunctionRewardCfg(target, sees_success=False))


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
