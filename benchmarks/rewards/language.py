"""Pushing with language alone: a clone fine-tuned on the sim's own reward, and on a small model's view of the goal.

Both arms steer the same clone with DSRL, for the same env steps, from the same starts; they differ in the reward. The
language reward sees pictures only: nothing of the sim's reward, of its success, or of its state reaches the learner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.finetune.bench import METHODS, TASKS
from benchmarks.finetune.cell import base_cfg, sim_of
from benchmarks.kit.judging import curve, judge
from benchmarks.rewards.model import model_folder, trained
from robotrl.cli.commands.train import config_of
from robotrl.config import EvalCfg, TrainCfg, WeightedReward
from robotrl.rewards.contrast import ContrastCfg
from robotrl.rollout.demos import collect_demos
from robotrl.run.logs import read_scalars
from robotrl.sims.mujoco.manipulation.push_captions import TOPICS
from robotrl.training import train

TASK = TASKS["push"]
METHOD = METHODS["dsrl"]
ENV_STEPS, EPISODES = 100_000, 256
VIEW, EVERY = "flat_front", 2
*ELSEWHERE, AT_GOAL = TOPICS[0].classes
GOOD, BAD = AT_GOAL.test, tuple(sentence for one in ELSEWHERE for sentence in one.test)
"""Sentences that the model was not trained on: the block is at the goal; it is far, near, beside it, askew on it."""
CLIP_FLAGS = ("--frames", "12000", "--updates", "2000")
"""Of the command that trains the model: distances on a table are told sooner than dangers on a road."""
ARMS = ("own", "language")


def run(
    method: str,
    seed: int,
    out: Path,
    work: Path,
    flags: Sequence[str] = CLIP_FLAGS,
    env_steps: int = ENV_STEPS,
    episodes: int = EPISODES,
) -> dict[str, Any]:
    """Success of the clone and of both arms on 256 starts of the split `test`.

    Args:
        method: name of the cell.
        seed: seed of demonstrations, clone, model and fine-tuning.
        out: the cell's folder.
        work: folder of the table's work, with its models.
        flags: further flags of the command that trains the model.
        env_steps: budget of an arm.
        episodes: held-out starts.
    """
    model = trained(model_folder(work, seed, *flags, sim=TASK.sim), seed, *flags, sim=TASK.sim)
    demos = collect_demos(
        TASK.sim, out / "demos", episodes=TASK.demos, noise=TASK.noise, seed=seed, sim_options=dict(TASK.options)
    )
    train(base_cfg(METHOD, TASK, seed, demos.path), out / "base")
    found: dict[str, Any] = {"base": judge(out / "base", "latest", TASK.sim, seed, episodes).value}
    for arm in ARMS:
        train(arm_cfg(arm, model, seed, out, env_steps), out / arm)
        log = read_scalars(out / arm / "scalars.jsonl")
        found[f"{arm}_success"] = judge(out / arm, "latest", TASK.sim, seed, episodes).value
        found[f"{arm}_curve"] = curve(log)
        found[f"{arm}_train_s"] = log[-1]["learn_s"]
    own, language = (found[f"{arm}_success"] - found["base"] for arm in ARMS)
    return found | {"gain_share": language / own if own > 0 else None}


def arm_cfg(arm: str, model: Path, seed: int, out: Path, env_steps: int) -> TrainCfg[Any, Any]:
    """Config of one arm: the last checkpoint counts, so that no success is needed to choose one."""
    cfg = config_of(METHOD.tune)
    cfg = replace(
        cfg,
        sim=sim_of(cfg, TASK),
        algo=replace(cfg.algo, env_steps=env_steps),
        init_from=str(out / "base"),
        seed=seed,
        evaluation=EvalCfg(every=4, episodes=64, animation=0),
    )
    if arm == "own":
        return cfg
    return replace(cfg, rewards=(WeightedReward("contrast", 1.0, language_cfg(model)),))


def language_cfg(model: Path) -> ContrastCfg:
    """The language reward: how much more the block looks to be at the goal than anywhere else.

    Bad sentences count by their mean. By the most similar one the reward would fall on the way, from near the goal to
    beside it: each place has a sentence of its own, and the model tells those next to each other apart best.
    """
    return ContrastCfg(model=str(model), good=GOOD, bad=BAD, bad_by="mean", view=VIEW, every=EVERY)
