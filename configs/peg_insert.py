"""Presets of `mujoco/peg-insert`: behavior cloning, and fine-tuning of its policies."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from robotrl.algos.bc import BcCfg
from robotrl.algos.dagger import DaggerCfg
from robotrl.algos.dppo import DppoCfg
from robotrl.algos.flow_noise import FlowNoiseCfg
from robotrl.algos.flow_sde import FlowSdeCfg
from robotrl.algos.ppo import PpoCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.configs.env_steps import in_env_steps
from robotrl.policies.diffusion import DiffusionCfg
from robotrl.policies.flow import FlowCfg
from robotrl.policies.gaussian import GaussianCfg
from robotrl.policies.shortcut import ShortcutCfg
from robotrl.sims.mujoco.manipulation.sims import PegInsertCfg

SIM = "mujoco/peg-insert"
WARM_UP = 15_360
"""Env steps of the critic's warm-up: two iterations."""
P = TypeVar("P")
A = TypeVar("A")


def bc_flow() -> TrainCfg[BcCfg, FlowCfg]:
    """Clone demonstrations with a flow policy."""
    return _clone(FlowCfg(), updates=800)


def bc_diffusion() -> TrainCfg[BcCfg, DiffusionCfg]:
    """Clone demonstrations with a diffusion policy."""
    return _clone(DiffusionCfg(), updates=1000)


def bc_shortcut() -> TrainCfg[BcCfg, ShortcutCfg]:
    """Clone demonstrations with a shortcut policy, which runs on 4, 2 or 1 steps."""
    return _clone(ShortcutCfg(), updates=1200)


def bc_gaussian() -> TrainCfg[BcCfg, GaussianCfg]:
    """Clone demonstrations with a Gaussian policy."""
    return _clone(GaussianCfg(), updates=800)


def dagger() -> TrainCfg[DaggerCfg, FlowCfg]:
    """Clone the expert's labels of visited states, those of one side of the hole; it needs no demonstrations."""
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=4),
        algo=DaggerCfg(mode="left"),
        policy=FlowCfg(),
        # few steps are taken, each with an expert's label: evaluations have many more
        evaluation=EvalCfg(every=1, episodes=128, max_share=1.0),
        checkpoint_every=1,
    )


def reinflow() -> TrainCfg[ReinFlowCfg, FlowCfg]:
    """Fine-tune a cloned flow policy through its denoising chain, on the sparse reward.

    A run takes a minute or two, too short for compiling to pay.
    """
    return _tune(ReinFlowCfg(critic_warmup_env_steps=WARM_UP, engine="eager"), FlowCfg())


def dppo() -> TrainCfg[DppoCfg, DiffusionCfg]:
    """Fine-tune a cloned diffusion policy through its denoising chain, on the sparse reward."""
    return _tune(DppoCfg(critic_warmup_env_steps=WARM_UP), DiffusionCfg())


def flow_sde() -> TrainCfg[FlowSdeCfg, FlowCfg]:
    """Fine-tune a cloned flow policy, sampled as a stochastic differential equation, on the sparse reward."""
    return _tune(FlowSdeCfg(critic_warmup_env_steps=WARM_UP), FlowCfg())


def flow_noise() -> TrainCfg[FlowNoiseCfg, FlowCfg]:
    """Fine-tune a cloned flow policy with learned noise and the ratio of whole chunks, on the sparse reward."""
    return _tune(FlowNoiseCfg(critic_warmup_env_steps=WARM_UP), FlowCfg())


@in_env_steps
def ppo() -> TrainCfg[PpoCfg, GaussianCfg]:
    """Train a Gaussian policy; from scratch on the shaped reward, or from a clone with `--init-from`."""
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=96, options=PegInsertCfg(reward="shaped")),
        algo=PpoCfg(critic_warmup_env_steps=WARM_UP),
        policy=GaussianCfg(),
        evaluation=EvalCfg(every=10, episodes=128),
    )


def quickstart() -> TrainCfg[ReinFlowCfg, FlowCfg]:
    """`reinflow` as `robotrl quickstart` runs it: it stops once two evaluations in a row are good enough."""
    cfg = reinflow()
    return replace(cfg, stop_at_success=0.99, evaluation=replace(cfg.evaluation, second_look=256))


@in_env_steps
def _tune(algo: A, policy: P) -> TrainCfg[A, P]:
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=96),
        algo=algo,
        policy=policy,
        evaluation=EvalCfg(every=10, episodes=128),
        tuned_on="success",
    )


def _clone(policy: P, updates: int) -> TrainCfg[BcCfg, P]:
    return TrainCfg(
        sim=SimCfg(SIM),
        algo=BcCfg(updates=updates, updates_per_iteration=100),
        policy=policy,
        evaluation=EvalCfg(every=0),
        checkpoint_every=4,
    )
