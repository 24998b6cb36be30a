"""Preset of `gym/ID`: PPO on any Gymnasium environment, `robotrl train gym-ppo --sim.name gym/Hopper-v5`."""

from __future__ import annotations

from robotrl.algos.ppo import PpoCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.policies.gaussian import GaussianCfg


def ppo() -> TrainCfg[PpoCfg, GaussianCfg]:
    """Train a Gaussian policy from scratch, one action at a time."""
    return TrainCfg(
        sim=SimCfg("gym/Pendulum-v1", num_envs=16),
        algo=PpoCfg(
            env_steps=300_000, steps_per_env=128, epochs=10, minibatch=256, critic_warmup=0, normalise_reward=True
        ),
        policy=GaussianCfg(horizon=1, hidden=(64, 64), initial_std=0.6),
        evaluation=EvalCfg(every=20, episodes=32, num_envs=16, animation=0, score="return"),
    )
