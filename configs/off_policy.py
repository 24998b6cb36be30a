"""Presets of the off-policy learners: SAC from scratch, RLPD and FQL from demonstrations."""

from __future__ import annotations

from robotrl.algos.fql import FqlCfg
from robotrl.algos.rlpd import RlpdCfg
from robotrl.algos.sac import SacCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.configs.env_steps import in_env_steps
from robotrl.policies.flow import FlowCfg
from robotrl.policies.squashed import SquashedCfg


@in_env_steps
def gym_sac() -> TrainCfg[SacCfg, SquashedCfg]:
    """SAC on any Gymnasium environment, `robotrl train gym-sac --sim gym/Hopper-v5`."""
    return TrainCfg(
        sim=SimCfg("gym/Pendulum-v1", num_envs=4),
        algo=SacCfg(env_steps=20_000, num_steps=4, warmup=1_000),
        policy=SquashedCfg(),
        evaluation=EvalCfg(every=250, episodes=32, num_envs=16, animation=0, score="return"),
        checkpoint_every=250,
    )


@in_env_steps
def peg_insert_rlpd() -> TrainCfg[RlpdCfg, SquashedCfg]:
    """Learn to insert on the sparse reward, with demonstrations in every batch.

    Small networks and few updates: enough for a state of some twenty numbers, and affordable on one core.
    """
    return TrainCfg(
        sim=SimCfg("mujoco/peg-insert", num_envs=8),
        algo=RlpdCfg(env_steps=100_000, utd_ratio=2, batch=128, critic_hidden=(128, 128), target_entropy=-1.0),
        policy=SquashedCfg(horizon=4, hidden=(128, 128)),
        evaluation=EvalCfg(every=100, episodes=64),
        checkpoint_every=100,
        tuned_on="success",
    )


@in_env_steps
def peg_insert_fql_online() -> TrainCfg[FqlCfg, FlowCfg]:
    """Fine-tune a clone with flow Q-learning on its demonstrations and its own steps, on the sparse reward."""
    return TrainCfg(
        sim=SimCfg("mujoco/peg-insert", num_envs=16),
        # as it was measured (docs/results/finetune.md), without averaged weights
        algo=FqlCfg(updates=0, env_steps=100_000, batch=128, flow_steps=4, utd_ratio=0.1, alpha=2.0, ema=0.0),
        policy=FlowCfg(),
        # an iteration has few env steps
        evaluation=EvalCfg(every=4, episodes=128, max_share=1.0),
    )
