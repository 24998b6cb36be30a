"""Presets of `mujoco/peg-insert`: DAgger, and fine-tuning of a cloned flow policy."""

from __future__ import annotations

from dataclasses import replace

from robotrl.algos.bc import BcCfg
from robotrl.algos.dagger import DaggerCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.configs.env_steps import in_env_steps
from robotrl.policies.flow import FlowCfg

SIM = "mujoco/peg-insert"
WARM_UP = 15_360
"""Env steps of the critic's warm-up: two iterations."""


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


@in_env_steps
def reinflow() -> TrainCfg[ReinFlowCfg, FlowCfg]:
    """Fine-tune a cloned flow policy through its denoising chain, on the sparse reward.

    A run takes a minute or two, too short for compiling to pay.
    """
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=96),
        algo=ReinFlowCfg(critic_warmup_env_steps=WARM_UP, engine="eager"),
        policy=FlowCfg(),
        evaluation=EvalCfg(every=10, episodes=128),
        tuned_on="success",
    )


def quickstart_clone() -> TrainCfg[BcCfg, FlowCfg]:
    """Behavior cloning as `robotrl quickstart` runs it, on few demonstrations."""
    return TrainCfg(
        sim=SimCfg(SIM),
        algo=BcCfg(updates=800),
        policy=FlowCfg(),
        evaluation=EvalCfg(every=0),
        checkpoint_every=4,
    )


def quickstart() -> TrainCfg[ReinFlowCfg, FlowCfg]:
    """`reinflow` as `robotrl quickstart` runs it: it stops once two evaluations in a row are good enough."""
    cfg = reinflow()
    return replace(cfg, stop_at_success=0.99, evaluation=replace(cfg.evaluation, second_look=256))
