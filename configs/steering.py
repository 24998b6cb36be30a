"""Presets of latent-noise steering (DSRL): an actor chooses the initial noise of a frozen, cloned policy."""

from __future__ import annotations

from robotrl.algos.dsrl import DsrlCfg
from robotrl.algos.dsrl_na import DsrlNaCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.configs.env_steps import in_env_steps
from robotrl.policies.steered import SteeredCfg

ENVS = 16
"""Number of envs; few, because an update is slow and some follow each decision of all envs."""


@in_env_steps
def peg_insert_dsrl() -> TrainCfg[DsrlCfg, SteeredCfg]:
    """DSRL: steer a cloned generative policy by soft actor-critic over its noise, on the sparse reward."""
    return TrainCfg(
        sim=SimCfg("mujoco/peg-insert", num_envs=ENVS),
        algo=DsrlCfg(
            env_steps=92_160,
            num_steps=40,
            warmup=4_800,
            batch=128,
            critic_hidden=(128, 128, 128),
            lr=1e-3,
            reward_shift=0.0,
            initial_alpha=0.003,
        ),
        policy=SteeredCfg(hidden=(128, 128)),
        evaluation=EvalCfg(every=8, episodes=128),
        checkpoint_every=8,
        tuned_on="success",
    )


@in_env_steps
def peg_insert_dsrl_na() -> TrainCfg[DsrlNaCfg, SteeredCfg]:
    """DSRL with noise aliasing: steer a cloned generative policy on the sparse reward; can use demonstrations."""
    return TrainCfg(
        sim=SimCfg("mujoco/peg-insert", num_envs=ENVS),
        algo=DsrlNaCfg(
            env_steps=92_160,
            num_steps=40,
            warmup=4_800,
            updates=10,
            distill_updates=40,
            decoded=256,
            batch=128,
            critic_hidden=(128, 128, 128),
            lr=1e-3,
            reward_shift=0.0,
            initial_alpha=0.003,
        ),
        policy=SteeredCfg(hidden=(128, 128)),
        evaluation=EvalCfg(every=8, episodes=128),
        checkpoint_every=8,
        tuned_on="success",
    )
