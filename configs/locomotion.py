"""Presets of Gymnasium's locomotion tasks: PPO from scratch."""

from __future__ import annotations

from dataclasses import replace

from robotrl.algos.ppo import PpoCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.policies.gaussian import GaussianCfg


def halfcheetah_ppo() -> TrainCfg[PpoCfg, GaussianCfg]:
    """Run as fast as possible, 1,000,000 steps."""
    return TrainCfg(
        sim=SimCfg("mujoco/halfcheetah", num_envs=16),
        algo=PpoCfg(
            env_steps=1_000_000,
            steps_per_env=64,
            epochs=10,
            minibatch=64,
            lr=3e-4,
            critic_lr=3e-4,
            lr_schedule="linear",
            gamma=0.99,
            lam=0.95,
            target_kl=None,
            critic_warmup=0,
            grad_norm=0.5,
            critic_hidden=(64, 64),
            critic_activation="tanh",
            normalise_reward=True,
        ),
        policy=GaussianCfg(horizon=1, hidden=(64, 64), initial_std=1.0, activation="tanh"),
        evaluation=EvalCfg(every=0, episodes=32, num_envs=32, score="return"),
        checkpoint_every=100,
    )


def hopper_ppo() -> TrainCfg[PpoCfg, GaussianCfg]:
    """Hop as fast as possible without falling, 1,000,000 steps."""
    cfg = halfcheetah_ppo()
    return replace(cfg, sim=replace(cfg.sim, name="mujoco/hopper"))
