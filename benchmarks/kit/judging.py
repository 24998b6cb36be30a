"""Evaluation of fine-tuning runs in cells: success on held-out starts, and the learning curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robotrl.fn.stats import Interval
from robotrl.registry import make_sim
from robotrl.rollout.evaluate import evaluate
from robotrl.run.policy_checkpoint import load_policy


def judge(
    run: Path, which: str, sim: str, seed: int, episodes: int, options: Mapping[str, Any] | None = None
) -> Interval:
    """Success on held-out starts (split `test`), as deployed.

    Args:
        run: its directory.
        which: "best" or "latest" of its checkpoints.
        sim: name of the sim.
        seed: seed of the sampling.
        episodes: number of starts.
        options: options of the sim.
    """
    envs = make_sim(sim, num_envs=min(64, episodes), seed=seed, **(options or {}))
    return evaluate(load_policy(run, which), envs, episodes=episodes, split="test", seed=seed).rate


def curve(log: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Success of each evaluation in a run's scalars, with env steps and training seconds up to it."""
    return [
        {"env_steps": row["env_steps"], "train_s": row["learn_s"], "success": row["eval_success"]}
        for row in log
        if "eval_success" in row
    ]
