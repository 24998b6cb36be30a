"""Presets of the tabletop: a vision-language-action policy from nothing, cloned from the scripted expert."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from robotrl.algos.bc import BcCfg
from robotrl.algos.dsrl import DsrlCfg
from robotrl.algos.flow_sde import FlowSdeCfg
from robotrl.algos.grpo import GrpoCfg
from robotrl.algos.opd import OpdCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.algos.vla_rl import VlaRlCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.policies.steered import SteeredCfg
from robotrl.policies.vla.flow import FlowVlaCfg
from robotrl.policies.vla.token import TokenVlaCfg

A = TypeVar("A")

SIM = "mujoco/tabletop"
OPTIONS = ("image=flat_near", "image_size=64", "families=point,lift,push", "limit_s=5.0")


def bc_token() -> TrainCfg[BcCfg, TokenVlaCfg]:
    """Clone pointing, lifting and pushing into a small policy that sees, reads, and says its actions as tokens.

    Demonstrations: `robotrl demos mujoco/tabletop --options image=flat_near image_size=64 families=point,lift,push`.
    """
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=64, options=OPTIONS),
        algo=BcCfg(updates=4000, batch=64, lr=1e-3, ema=0.99, image_shift=0),
        policy=TokenVlaCfg(horizon=4, label_bins=3.0),
        evaluation=EvalCfg(every=0, episodes=192, num_envs=96),
    )


def grpo() -> TrainCfg[GrpoCfg, TokenVlaCfg]:
    """Fine-tune what `tabletop-bc-token` cloned by group-relative reinforcement learning: `--init-from RUN`."""
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=64, options=OPTIONS),
        algo=GrpoCfg(),
        policy=TokenVlaCfg(),
        evaluation=EvalCfg(every=10, episodes=192, num_envs=96),
        checkpoint_every=5,
    )


def srpo() -> TrainCfg[GrpoCfg, TokenVlaCfg]:
    """`grpo`, with failures worth how near they came to successes: for a policy that seldom succeeds."""
    base = grpo()
    return replace(base, algo=replace(base.algo, progress="sight", keep_by="reward"))


def vla_rl() -> TrainCfg[VlaRlCfg, TokenVlaCfg]:
    """Fine-tune what `tabletop-bc-token` cloned with a critic: `--init-from RUN --sim.curriculum 0.5`."""
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=64, options=OPTIONS),
        algo=VlaRlCfg(),
        policy=TokenVlaCfg(),
        evaluation=EvalCfg(every=10, episodes=192, num_envs=96),
    )


def opd() -> TrainCfg[OpdCfg, TokenVlaCfg]:
    """Distil a better policy into one that says the same tokens: `--init-from RUN --algo.teacher RUN`."""
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=64, options=OPTIONS),
        algo=OpdCfg(),
        policy=TokenVlaCfg(),
        evaluation=EvalCfg(every=10, episodes=192, num_envs=96),
        checkpoint_every=5,
    )


def bc_flow() -> TrainCfg[BcCfg, FlowVlaCfg]:
    """Clone pointing, lifting and pushing into a small SmolVLA; `--policy.network pi0 --policy.patch 16` for a pi0.

    Demonstrations: as for `bc_token`.
    """
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=64, options=OPTIONS),
        algo=BcCfg(updates=4000, batch=64, lr=1e-3, ema=0.99, image_shift=0),
        policy=FlowVlaCfg(),
        evaluation=EvalCfg(every=0, episodes=192, num_envs=96),
    )


def reinflow() -> TrainCfg[ReinFlowCfg, FlowVlaCfg]:
    """Fine-tune what `tabletop-bc-flow` cloned through its denoising chain: `--init-from RUN`."""
    return _tune(ReinFlowCfg(minibatch=240, engine="eager"))


def flow_sde() -> TrainCfg[FlowSdeCfg, FlowVlaCfg]:
    """Fine-tune what `tabletop-bc-flow` cloned, run as a stochastic equation: `--init-from RUN`."""
    return _tune(FlowSdeCfg(minibatch=240, engine="eager"))


def dsrl() -> TrainCfg[DsrlCfg, SteeredCfg]:
    """Steer the noise of what `tabletop-bc-flow` cloned, which stays as it is: `--init-from RUN`."""
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=16, options=OPTIONS),
        algo=DsrlCfg(engine="eager"),
        policy=SteeredCfg(),
        evaluation=EvalCfg(every=10, episodes=192, num_envs=96),
    )


def _tune(algo: A) -> TrainCfg[A, FlowVlaCfg]:
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=64, options=OPTIONS),
        algo=algo,
        policy=FlowVlaCfg(),
        evaluation=EvalCfg(every=10, episodes=192, num_envs=96),
    )
