"""Tabletop presets: small vision-language-action policies, pretrained, cloned from the expert and fine-tuned."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from robotrl.algos.bc import BcCfg
from robotrl.algos.flow_grpo import FlowGrpoCfg
from robotrl.algos.grpo import GrpoCfg
from robotrl.algos.pretrain import PretrainCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.configs.env_steps import in_env_steps
from robotrl.policies.vla.flow import FlowVlaCfg
from robotrl.policies.vla.token import TokenVlaCfg
from robotrl.sims.mujoco.tabletop.sim import TabletopCfg

A = TypeVar("A")
P = TypeVar("P")

SIM = "mujoco/tabletop"
OPTIONS = TabletopCfg(
    image=("flat_front",), image_size=64, families=("point", "lift", "push"), limit_s=2.5, things=2, mats=0
)
"""Three families of instructions, two objects on the table; in 2.5 s the expert solves all but about 4 in 1,000."""
TOKENS = TokenVlaCfg(horizon=4, queries=True, label_bins=3.0, deploy="median")
FLOWS = FlowVlaCfg(deploy_noise=0.0)
SYMMETRIES = ("mirror", "colours")


def vision() -> TrainCfg[PretrainCfg, TokenVlaCfg]:
    """Pretrain the vision encoder of a small VLA. Next: `tabletop-grounding --init-from RUN`.

    For a small SmolVLA: `--policy flow-vla --policy.deploy-noise 0`. Demonstrations: as for `tabletop-bc-token`.
    """
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=64, options=OPTIONS),
        algo=PretrainCfg(updates=500, scenes=640, symmetries=SYMMETRIES, muon=3.0),
        policy=TOKENS,
        # the policy cannot act yet
        evaluation=EvalCfg(every=0, episodes=1, num_envs=1, animation=0),
    )


def grounding() -> TrainCfg[PretrainCfg, TokenVlaCfg]:
    """Pretrain language grounding after `tabletop-vision`: `--init-from RUN`. Next: `tabletop-bc-token` or `-flow`."""
    base = vision()
    return replace(base, algo=replace(base.algo, updates=800, grounding_coef=1.0, scenes=1280))


def bc_token() -> TrainCfg[BcCfg, TokenVlaCfg]:
    """Behavior cloning of pointing, lifting and pushing with a small autoregressive VLA.

    Use `--init-from RUN` of `tabletop-grounding`. Demonstrations: `robotrl demos mujoco/tabletop --noise 0.05
    --episodes 1000 --sim.image flat_front --sim.image-size 64 --sim.families point lift push --sim.limit-s 2.5
    --sim.things 2 --sim.mats 0`.
    """
    return _clone(TOKENS)


def grpo() -> TrainCfg[GrpoCfg, TokenVlaCfg]:
    """Fine-tune a `tabletop-bc-token` policy by GRPO: `--init-from RUN --init-changes temperature=0.5`.

    The temperature is lower because correlated noise leads further. Hidden weight matrices are trained with Muon.
    """
    algo = GrpoCfg(iterations=35, groups=32, correlation=0.9, minibatch=512, lr=2e-4, muon=2.5, ema=0.98)
    return replace(_tune(algo, TokenVlaCfg()), checkpoint_every=5)


def bc_flow() -> TrainCfg[BcCfg, FlowVlaCfg]:
    """Behavior cloning of pointing, lifting and pushing with a small SmolVLA.

    For a pi0, use `--policy.network pi0 --policy.patch 16`. Demonstrations: as for `bc_token`.
    """
    return _clone(FLOWS)


@in_env_steps
def reinflow() -> TrainCfg[ReinFlowCfg, FlowVlaCfg]:
    """Fine-tune a `tabletop-bc-flow` policy by ReinFlow on the sim's shaped reward: `--init-from RUN`."""
    algo = ReinFlowCfg(
        env_steps=400_000,
        num_steps=160,
        epochs=2,
        minibatch=512,
        lr=2e-4,
        muon=2.5,
        ema=0.98,
        start_noise=0.0,
        critic_warmup_env_steps=20_480,
        engine="eager",
    )
    return _shaped(_tune(algo, FlowVlaCfg()))


def flow_grpo() -> TrainCfg[FlowGrpoCfg, FlowVlaCfg]:
    """Fine-tune a `tabletop-bc-flow` policy by Flow-GRPO on the sim's shaped reward: `--init-from RUN`."""
    algo = FlowGrpoCfg(
        iterations=80,
        groups=32,
        progress="return",
        keep_by="reward",
        correlation=0.9,
        scale=0.2,
        start_noise=0.0,
        minibatch=512,
        lr=2e-4,
        muon=2.5,
        ema=0.98,
    )
    return _shaped(_tune(algo, FlowVlaCfg()))


def _clone(policy: P) -> TrainCfg[BcCfg, P]:
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=64, options=OPTIONS),
        algo=BcCfg(
            updates=1200,
            batch=64,
            lr=1e-3,
            lr_end=0.02,
            warmup=200,
            muon=3.0,
            ema=0.99,
            image_shift=0,
            grounding_coef=1.0,
            symmetries=SYMMETRIES,
        ),
        policy=policy,
        evaluation=EvalCfg(every=0, episodes=192, num_envs=96),
    )


def _tune(algo: A, policy: P) -> TrainCfg[A, P]:
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=64, options=OPTIONS),
        algo=algo,
        policy=policy,
        evaluation=EvalCfg(every=10, episodes=192, num_envs=96),
    )


def _shaped(base: TrainCfg[A, P]) -> TrainCfg[A, P]:
    """Use the sim's shaped reward, and save every five of its long iterations."""
    return replace(base, sim=replace(base.sim, options=replace(OPTIONS, reward="shaped")), checkpoint_every=5)
