"""Preset of `mujoco/quadruped-velocity`: PPO from scratch, the critic with privileged observations."""

from __future__ import annotations

from robotrl.algos.ppo import PpoCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.configs.env_steps import in_env_steps
from robotrl.policies.gaussian import GaussianCfg


@in_env_steps
def ppo() -> TrainCfg[PpoCfg, GaussianCfg]:
    """Follow velocity commands on flat ground, under domain randomization.

    The settings are those in use for walking robots (Rudin et al. 2022), with fewer envs, as two cores have them.
    """
    return TrainCfg(
        sim=SimCfg("mujoco/quadruped-velocity", num_envs=512),
        algo=PpoCfg(
            env_steps=10_000_000,
            num_steps=24,
            epochs=5,
            minibatch=3072,
            lr=1e-3,
            critic_lr=1e-3,
            lr_schedule="adaptive",
            desired_kl=0.01,
            gamma=0.99,
            gae_lambda=0.95,
            entropy_coef=0.01,
            target_kl=None,
            critic_warmup_env_steps=0,
            critic_hidden=(128, 128),
            critic_activation="elu",
        ),
        policy=GaussianCfg(horizon=1, hidden=(128, 128), initial_std=0.3, activation="elu"),
        evaluation=EvalCfg(every=0, episodes=64, num_envs=64, animation=0, score="return"),
        checkpoint_every=25,
    )
