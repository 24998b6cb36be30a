"""Presets of Gymnasium's locomotion tasks: PPO from scratch."""

from __future__ import annotations

from dataclasses import replace

from robotrl.algos.ppo import PpoCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.configs.env_steps import in_env_steps
from robotrl.policies.gaussian import GaussianCfg


@in_env_steps
def halfcheetah_ppo() -> TrainCfg[PpoCfg, GaussianCfg]:
    """PPO on HalfCheetah, 1,000,000 steps.

    A small initial standard deviation (0.135), a short discount horizon and many small updates, as tuned in RL
    Baselines3 Zoo, but with 32 envs and minibatches of 256 instead of one env and 64.
    """
    return TrainCfg(
        sim=SimCfg("mujoco/halfcheetah", num_envs=32),
        algo=PpoCfg(
            env_steps=1_000_000,
            num_steps=64,
            epochs=10,
            minibatch=256,
            lr=2e-4,
            critic_lr=2e-4,
            gamma=0.98,
            gae_lambda=0.92,
            clip_coef=0.1,
            entropy_coef=4e-4,
            target_kl=None,
            critic_warmup_env_steps=0,
            max_grad_norm=0.8,
            critic_hidden=(256, 256),
            critic_activation="relu",
            normalize_reward=True,
        ),
        policy=GaussianCfg(horizon=1, hidden=(256, 256), initial_std=0.135, activation="relu"),
        evaluation=EvalCfg(every=0, episodes=32, num_envs=32, score="return"),
        checkpoint_every=100,
    )


def hopper_ppo() -> TrainCfg[PpoCfg, GaussianCfg]:
    """PPO on Hopper, 1,000,000 steps.

    Longer rollouts and a longer discount horizon than HalfCheetah's, and a learning rate that decays to 0, so that late
    updates do not destroy a good gait.
    """
    cfg = halfcheetah_ppo()
    algo = replace(
        cfg.algo,
        num_steps=128,
        minibatch=64,
        lr=3e-4,
        critic_lr=3e-4,
        lr_schedule="linear",
        gamma=0.99,
        gae_lambda=0.95,
        clip_coef=0.2,
        entropy_coef=0.0,
        max_grad_norm=0.5,
        critic_hidden=(64, 64),
        critic_activation="tanh",
    )
    policy = replace(cfg.policy, hidden=(64, 64), initial_std=0.5, activation="tanh")
    return replace(cfg, sim=replace(cfg.sim, name="mujoco/hopper", num_envs=16), algo=algo, policy=policy)
