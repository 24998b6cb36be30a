"""Presets of latent-noise steering: a cloned policy stays as it is, an actor chooses the noise it starts from."""

from __future__ import annotations

from robotrl.algos.dsrl import DsrlCfg
from robotrl.algos.dsrl_na import DsrlNaCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.policies.steered import SteeredCfg

ENVS = 16
"""Few: an update is dear, and each decision of all envs is followed by some."""


def peg_insert_dsrl() -> TrainCfg[DsrlCfg, SteeredCfg]:
    """Steer a cloned generative policy by soft actor-critic over its noise, on the sparse reward."""
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
    )


def peg_insert_dsrl_na() -> TrainCfg[DsrlNaCfg, SteeredCfg]:
    """Steer a cloned generative policy with noise aliasing, on the sparse reward; takes demonstrations as well."""
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
    )
