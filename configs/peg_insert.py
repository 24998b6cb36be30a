"""Presets of `mujoco/peg-insert`: the clone, and what fine-tunes it."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from robotrl.algos.bc import BcCfg
from robotrl.algos.ppo import PpoCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.policies.diffusion import DiffusionCfg
from robotrl.policies.flow import FlowCfg
from robotrl.policies.gaussian import GaussianCfg
from robotrl.policies.shortcut import ShortcutCfg

SIM = "mujoco/peg-insert"
P = TypeVar("P")


def bc_flow() -> TrainCfg[BcCfg, FlowCfg]:
    """Clone demonstrations with a flow policy."""
    return _clone(FlowCfg(), updates=800)


def bc_diffusion() -> TrainCfg[BcCfg, DiffusionCfg]:
    """Clone demonstrations with a diffusion policy."""
    return _clone(DiffusionCfg(), updates=3000)


def bc_shortcut() -> TrainCfg[BcCfg, ShortcutCfg]:
    """Clone demonstrations with a shortcut policy, which runs on 4, 2 or 1 steps."""
    return _clone(ShortcutCfg(), updates=3000)


def bc_gaussian() -> TrainCfg[BcCfg, GaussianCfg]:
    """Clone demonstrations with a Gaussian policy."""
    return _clone(GaussianCfg(), updates=800)


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


def _clone(policy: P, updates: int) -> TrainCfg[BcCfg, P]:
    return TrainCfg(
        sim=SimCfg(SIM),
        algo=BcCfg(updates=updates, updates_per_iteration=100),
        policy=policy,
        evaluation=EvalCfg(every=0),
        checkpoint_every=4,
    )
