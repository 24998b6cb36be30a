"""Presets of `mujoco/peg-insert`: the clone, and what fine-tunes it."""

from __future__ import annotations

from dataclasses import replace

from robotrl.algos.bc import BcCfg
from robotrl.algos.ppo import PpoCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.policies.flow import FlowCfg
from robotrl.policies.gaussian import GaussianCfg

SIM = "mujoco/peg-insert"


def bc_flow() -> TrainCfg[BcCfg, FlowCfg]:
    """Clone demonstrations with a flow policy."""
    return TrainCfg(
        sim=SimCfg(SIM),
        algo=BcCfg(updates=800, updates_per_iteration=100),
        policy=FlowCfg(),
        evaluation=EvalCfg(every=0),
        checkpoint_every=4,
    )


def bc_gaussian() -> TrainCfg[BcCfg, GaussianCfg]:
    """Clone demonstrations with a Gaussian policy."""
    return TrainCfg(
        sim=SimCfg(SIM),
        algo=BcCfg(updates=800, updates_per_iteration=100),
        policy=GaussianCfg(),
        evaluation=EvalCfg(every=0),
        checkpoint_every=4,
    )


def reinflow() -> TrainCfg[ReinFlowCfg, FlowCfg]:
    """Fine-tune a cloned flow policy through its denoising chain, on the sparse reward."""
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=96),
        algo=ReinFlowCfg(),
        policy=FlowCfg(),
        evaluation=EvalCfg(every=10, episodes=128),
    )


def ppo() -> TrainCfg[PpoCfg, GaussianCfg]:
    """Train a Gaussian policy; from scratch on the shaped reward, or from a clone with `--init-from`."""
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=96, options=("reward=shaped",)),
        algo=PpoCfg(),
        policy=GaussianCfg(),
        evaluation=EvalCfg(every=10, episodes=128),
    )


def quickstart() -> TrainCfg[ReinFlowCfg, FlowCfg]:
    """`reinflow` as `robotrl quickstart` runs it: it stops once two evaluations in a row are good enough."""
    return replace(reinflow(), stop_at_success=0.975)
