"""Presets of the off-policy learners: SAC from scratch, RLPD and IQL from demonstrations."""

from __future__ import annotations

from robotrl.algos.fql import FqlCfg
from robotrl.algos.iql import IqlCfg
from robotrl.algos.rlpd import RlpdCfg
from robotrl.algos.sac import SacCfg
from robotrl.algos.td3_bc import Td3BcCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.configs.env_steps import in_env_steps
from robotrl.policies.flow import FlowCfg
from robotrl.policies.gaussian import GaussianCfg
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


def halfcheetah_sac() -> TrainCfg[SacCfg, SquashedCfg]:
    """SAC on HalfCheetah, 300,000 steps."""
    return _locomotion("mujoco/halfcheetah")


def hopper_sac() -> TrainCfg[SacCfg, SquashedCfg]:
    """SAC on Hopper, 300,000 steps."""
    return _locomotion("mujoco/hopper")


def reach_rlpd() -> TrainCfg[RlpdCfg, SquashedCfg]:
    """Learn to reach on the sparse reward, with demonstrations in every batch."""
    return _sparse("mujoco/reach", 20_000)


def peg_insert_rlpd() -> TrainCfg[RlpdCfg, SquashedCfg]:
    """Learn to insert on the sparse reward, with demonstrations in every batch."""
    return _sparse("mujoco/peg-insert", 100_000)


@in_env_steps
def peg_insert_sac() -> TrainCfg[SacCfg, SquashedCfg]:
    """SAC on the sparse reward, without demonstrations: the baseline of RLPD."""
    return TrainCfg(
        sim=SimCfg("mujoco/peg-insert", num_envs=8),
        algo=SacCfg(
            env_steps=100_000,
            num_steps=4,
            warmup=1_000,
            utd_ratio=2,
            batch=128,
            initial_alpha=0.01,
            num_critics=4,
            critic_hidden=(128, 128),
            layer_norm=True,
        ),
        policy=SquashedCfg(horizon=4, hidden=(128, 128)),
        evaluation=EvalCfg(every=100, episodes=64),
        checkpoint_every=100,
        tuned_on="success",
    )


@in_env_steps
def peg_insert_iql() -> TrainCfg[IqlCfg, GaussianCfg]:
    """Learn to insert offline from recorded episodes, good and bad ones; `--algo.env-steps` continues online."""
    return TrainCfg(
        sim=SimCfg("mujoco/peg-insert", num_envs=16),
        algo=IqlCfg(),
        policy=GaussianCfg(),
        evaluation=EvalCfg(every=10, episodes=128),
    )


@in_env_steps
def peg_insert_fql() -> TrainCfg[FqlCfg, FlowCfg]:
    """Learn to insert offline from recorded episodes, with flow Q-learning."""
    return _flow_q(FqlCfg(updates=10_000, batch=128, flow_steps=4))


@in_env_steps
def peg_insert_fql_online() -> TrainCfg[FqlCfg, FlowCfg]:
    """Fine-tune a clone with flow Q-learning on its demonstrations and its own steps, on the sparse reward."""
    return _flow_q(FqlCfg(updates=0, env_steps=100_000, batch=128, flow_steps=4, utd_ratio=0.1, alpha=2.0))


def _flow_q(algo: FqlCfg) -> TrainCfg[FqlCfg, FlowCfg]:
    return TrainCfg(
        sim=SimCfg("mujoco/peg-insert", num_envs=16),
        algo=algo,
        policy=FlowCfg(),
        # online, an iteration has few env steps
        evaluation=EvalCfg(every=4, episodes=128, max_share=1.0),
    )


def peg_insert_td3_bc() -> TrainCfg[Td3BcCfg, SquashedCfg]:
    """Learn to insert offline from recorded episodes, with a deterministic policy."""
    return TrainCfg(
        sim=SimCfg("mujoco/peg-insert", num_envs=16),
        algo=Td3BcCfg(alpha=0.1),
        policy=SquashedCfg(horizon=4),
        evaluation=EvalCfg(every=10, episodes=128),
    )


@in_env_steps
def _locomotion(sim: str) -> TrainCfg[SacCfg, SquashedCfg]:
    return TrainCfg(
        sim=SimCfg(sim, num_envs=4),
        algo=SacCfg(env_steps=300_000, num_steps=8, warmup=5_000),
        policy=SquashedCfg(),
        evaluation=EvalCfg(every=1_000, episodes=32, num_envs=32, animation=0, score="return"),
        checkpoint_every=1_000,
    )


@in_env_steps
def _sparse(sim: str, env_steps: int) -> TrainCfg[RlpdCfg, SquashedCfg]:
    """Small networks and few updates: enough for a state of some twenty numbers, and affordable on one core."""
    return TrainCfg(
        sim=SimCfg(sim, num_envs=8),
        algo=RlpdCfg(env_steps=env_steps, utd_ratio=2, batch=128, critic_hidden=(128, 128), target_entropy=-1.0),
        policy=SquashedCfg(horizon=4, hidden=(128, 128)),
        evaluation=EvalCfg(every=100, episodes=64),
        checkpoint_every=100,
        tuned_on="success",
    )
