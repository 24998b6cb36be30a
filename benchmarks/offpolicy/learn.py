"""One learning cell of bench `offpolicy`: our SAC, Stable-Baselines3's, or our FQL, with equal updates."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.locomotion.referee import IDS, returns
from benchmarks.offpolicy.methods import BATCH, GAMMA, HIDDEN, LR, TAU
from robotrl.errors import unknown
from robotrl.utils.files import dump_json, replace_file

if TYPE_CHECKING:
    from robotrl.engine.base import EngineMode

OURS, PEER, FQL = "robotrl", "sb3", "fql"
WARMUP = 1_000
"""Random env steps before the first update."""
UPDATES = 30_000
"""Number of updates, one for each env step after the warm-up."""
EPISODES, LENGTH = 20, 1_000
"""Episodes of our SAC that FQL learns from, and their steps."""


def ours(task: str, seed: int, out: Path, updates: int, engine: EngineMode = "compiled") -> dict[str, Any]:
    """Train our SAC with our training loop."""
    from benchmarks.locomotion.bench import train_and_judge
    from robotrl.algos.sac import SacCfg
    from robotrl.config import EvalCfg, SimCfg, TrainCfg
    from robotrl.policies.squashed import SquashedCfg

    algo = SacCfg(
        env_steps=WARMUP + updates,
        num_steps=4,
        warmup=WARMUP,
        batch=BATCH,
        lr=LR,
        critic_lr=LR,
        alpha_lr=LR,
        gamma=GAMMA,
        tau=TAU,
        capacity=WARMUP + updates,
        critic_hidden=HIDDEN,
        normalize_obs=False,
        engine=engine,
    )
    cfg = TrainCfg(
        sim=SimCfg(task, num_envs=4),
        algo=algo,
        policy=SquashedCfg(hidden=HIDDEN),
        seed=seed,
        evaluation=EvalCfg(every=0, episodes=4, num_envs=4, animation=0, score="return"),
        checkpoint_every=10**6,
    )
    return train_and_judge(cfg, out / "run")


def fql(
    task: str,
    seed: int,
    out: Path,
    updates: int,
    engine: EngineMode = "compiled",
    episodes: int = EPISODES,
    length: int = LENGTH,
) -> dict[str, Any]:
    """Train our SAC, record episodes of it, and train FQL on these alone, with as many updates.

    `data_return` is the mean return of these episodes.
    """
    from benchmarks.locomotion.bench import train_and_judge
    from benchmarks.offpolicy.methods import write_episodes
    from robotrl.algos.fql import FqlCfg
    from robotrl.config import EvalCfg, SimCfg, TrainCfg
    from robotrl.datasets.reader import read_dataset
    from robotrl.policies.flow import FlowCfg
    from robotrl.run.policy_checkpoint import load_policy

    ours(task, seed, out, updates, engine)
    data = write_episodes(task, out / "episodes", load_policy(out / "run", "latest"), episodes, length)
    algo = FqlCfg(
        updates=updates,
        updates_per_iteration=min(updates, 500),
        batch=BATCH,
        lr=LR,
        gamma=GAMMA,
        tau=TAU,
        critic_hidden=HIDDEN,
        # as SAC beside it, whose policy is not averaged
        ema=0.0,
        engine=engine,
    )
    cfg = TrainCfg(
        sim=SimCfg(task, num_envs=4),
        algo=algo,
        policy=FlowCfg(horizon=1, hidden=HIDDEN),
        dataset=str(data),
        seed=seed,
        evaluation=EvalCfg(every=0, episodes=4, num_envs=4, animation=0, score="return"),
        checkpoint_every=10**6,
    )
    rewards = read_dataset(data).frames("next.reward")
    return {**train_and_judge(cfg, out / "fql"), "data_return": float(rewards.sum()) / episodes}


def sb3(task: str, seed: int, updates: int) -> dict[str, Any]:
    """Train Stable-Baselines3's SAC: its own defaults except for the equalized settings."""
    import gymnasium
    import numpy as np
    import torch
    from stable_baselines3 import SAC
    from stable_baselines3.common.monitor import Monitor

    torch.set_num_threads(1)
    model = SAC(
        "MlpPolicy",
        Monitor(gymnasium.make(IDS[task])),
        learning_rate=LR,
        buffer_size=WARMUP + updates,
        learning_starts=WARMUP,
        batch_size=BATCH,
        tau=TAU,
        gamma=GAMMA,
        policy_kwargs={"net_arch": list(HIDDEN), "optimizer_kwargs": {"fused": True}},
        seed=seed,
        device="cpu",
    )
    began = time.perf_counter()
    model.learn(WARMUP + updates)
    train_s = time.perf_counter() - began
    found = returns(task, lambda obs: model.predict(obs.astype(np.float32), deterministic=True)[0])
    recent = [episode["r"] for episode in model.ep_info_buffer or []]
    return {
        "return": float(found.mean()),
        "returns": found.tolist(),
        "training_return": float(np.mean(recent)) if recent else None,
        "env_steps": model.num_timesteps,
        "train_s": train_s,
        "env_steps_per_s": model.num_timesteps / train_s,
    }


MADE = {OURS: ours, FQL: fql}


def main(method: str, task: str, seed: int, out: Path, updates: int = UPDATES) -> None:
    """Train one seed and evaluate it; writes `result.json` in `out`.

    Raises:
        ConfigError: there is no such method.
    """
    if method not in (OURS, PEER, FQL):
        raise unknown("method", method, (OURS, PEER, FQL))
    result = sb3(task, seed, updates) if method == PEER else MADE[method](task, seed, out, updates)
    replace_file(out / "result.json", dump_json({**result, "updates": updates}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
