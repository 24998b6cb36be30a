"""Guidance by suggested actions: a learner with a teacher that succeeds in 60 % of its episodes, and one without.

RLPD and SAC on `mujoco/push` and PPO on `bev/drive`, with the env steps fixed beforehand. The teacher is the sim's
expert with noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.kit.columns import steps_to
from benchmarks.kit.judging import curve
from robotrl.cli.commands.train import config_of
from robotrl.config import EvalCfg, TrainCfg, changed_options
from robotrl.engine.autocast import pays_in_bf16
from robotrl.learners.guidance.cfg import GuidanceCfg
from robotrl.learners.guidance.teacher import Teacher
from robotrl.registry import make_sim
from robotrl.rollout.demos import collect_demos
from robotrl.rollout.evaluate import Turn, run_episodes
from robotrl.run.logs import read_scalars
from robotrl.spec import Arrays
from robotrl.training import train

ARMS = ("alone", "guided")
SHARE = 0.95
"""Share of the final mean of the learner alone that both should reach."""
LAST = 3
"""Evaluations that a final mean is taken over."""
DEMOS, DEMO_NOISE = 256, 0.1
PREFIX = "guidance-"
"""Of the cells' methods; the rest is the study's name."""


class Study(NamedTuple):
    """A learner on a sim, its budget and its teacher."""

    sim: str
    label: str
    recipe: str
    """Arguments of `robotrl train`."""
    with_demos: bool
    """True if the learner has demonstrations of the sim's expert."""
    env_steps: int
    every_env_steps: int
    """Env steps from one evaluation to the next."""
    episodes: int
    """Starts of an evaluation."""
    guidance: GuidanceCfg


STUDIES = {
    "push": Study(
        "mujoco/push",
        "RLPD on `mujoco/push`",
        "peg-insert-rlpd --sim mujoco/push --sim.reward shaped",
        True,
        60_000,
        4_000,
        64,
        GuidanceCfg(
            by="expert",
            noise=0.2,
            # one way round the obstacle: suggestions of both would have no mean that a Gaussian can follow
            mode="left",
            margin_weight=0.0,
            action_weight=0.3,
            action_end_env_steps=30_000,
        ),
    ),
    "sac-push": Study(
        "mujoco/push",
        "SAC on `mujoco/push`",
        "--sim mujoco/push --sim.reward shaped --algo sac --algo.warmup 1000 --algo.initial-alpha 0.1",
        False,
        60_000,
        4_000,
        64,
        GuidanceCfg(
            by="expert",
            noise=0.2,
            mode="left",
            margin=0.02,
            margin_hold_env_steps=10_000,
            margin_end_env_steps=30_000,
            action_weight=0.3,
            action_end_env_steps=30_000,
        ),
    ),
    "drive": Study(
        "bev/drive",
        "PPO on `bev/drive`",
        "drive-ppo --algo.bf16" if pays_in_bf16() else "drive-ppo",
        False,
        2_000_000,
        131_072,
        128,
        GuidanceCfg(by="expert", noise=0.2, action_weight=0.1, action_end_env_steps=1_000_000),
    ),
}


def run(method: str, seed: int, out: Path, study: Study | None = None, demos: int = DEMOS) -> dict[str, Any]:
    """Curves of both arms, and their comparison.

    Args:
        method: "guidance-NAME", of one of `STUDIES`.
        seed: seed of demonstrations, learner and teacher.
        out: the cell's folder.
        study: instead of the named one.
        demos: demonstrations of RLPD, and episodes in which the teacher is judged.
    """
    study = STUDIES[method.removeprefix(PREFIX)] if study is None else study
    options = changed_options(arm_cfg(study, "alone", seed, out).sim)
    found: dict[str, Any] = {"teacher": teacher_success(study, options, seed, demos)}
    if study.with_demos:
        collect_demos(study.sim, out / "demos", episodes=demos, noise=DEMO_NOISE, seed=seed, sim_options=options)
    curves: dict[str, list[dict[str, float]]] = {}
    for arm in ARMS:
        train(arm_cfg(study, arm, seed, out), out / arm)
        log = read_scalars(out / arm / "scalars.jsonl")
        curves[arm] = found[f"{arm}_curve"] = curve(log)
        found[f"{arm}_train_s"] = log[-1]["learn_s"]
    return found | compared(curves["alone"], curves["guided"])


class TeacherInCommand:
    """The teacher as an actor: its suggestions are followed."""

    def __init__(self, teacher: Teacher) -> None:
        self._teacher = teacher

    def act(self, obs: Arrays, turn: Turn) -> Tensor:
        """Actions (N, A)."""
        return self._teacher.suggest(obs, turn.started, torch.zeros(len(turn.started), dtype=torch.int64))


def teacher_success(study: Study, options: Mapping[str, Any], seed: int, episodes: int) -> float:
    """Success of the teacher in command, on starts of the split `val`."""
    sim = make_sim(study.sim, num_envs=min(64, episodes), seed=seed, **options)
    with closing(sim):
        actor = TeacherInCommand(Teacher(study.guidance, sim, seed))
        return fmean(one.success for one in run_episodes(actor, sim, list(sim.state_ids("val"))[:episodes]))


def arm_cfg(study: Study, arm: str, seed: int, out: Path) -> TrainCfg[Any, Any]:
    """Config of one arm, "alone" or "guided"."""
    cfg = config_of(study.recipe)
    guidance = study.guidance if arm == "guided" else cfg.algo.guidance
    return replace(
        cfg,
        algo=replace(cfg.algo, env_steps=study.env_steps, guidance=guidance),
        dataset=str(out / "demos") if study.with_demos else None,
        evaluation=EvalCfg(every_env_steps=study.every_env_steps, episodes=study.episodes, animation=0, max_share=1.0),
        seed=seed,
    )


def compared(alone: Sequence[Mapping[str, float]], guided: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """Final means of both, their env steps to `SHARE` of the final mean of the learner alone, and the ratio of these.

    Args:
        alone: evaluations of the learner alone, in order.
        guided: evaluations of the guided one.
    """
    finals = [fmean(point["success"] for point in points[-LAST:]) for points in (alone, guided)]
    own, with_teacher = (steps_to(points, SHARE * finals[0], "env_steps") for points in (alone, guided))
    return {
        "alone_final": finals[0],
        "guided_final": finals[1],
        "alone_steps": own,
        "guided_steps": with_teacher,
        "steps_share": None if with_teacher is None or not own else with_teacher / own,
    }
