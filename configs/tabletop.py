"""Tabletop presets: small vision-language-action policies, pretrained, cloned from the expert and fine-tuned."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from robotrl.algos.bc import BcCfg
from robotrl.algos.dsrl import DsrlCfg
from robotrl.algos.flow_grpo import FlowGrpoCfg
from robotrl.algos.flow_sde import FlowSdeCfg
from robotrl.algos.grpo import GrpoCfg
from robotrl.algos.opd import OpdCfg
from robotrl.algos.pretrain import PretrainCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.algos.vla_rl import VlaRlCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.configs.env_steps import in_env_steps
from robotrl.policies.steered import SteeredCfg
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


def look() -> TrainCfg[PretrainCfg, TokenVlaCfg]:
    """Pretrain the vision encoder of a small autoregressive VLA. Next: `tabletop-read --init-from RUN`.

    Demonstrations: as for `bc_token`.
    """
    return _look(TOKENS)


def read() -> TrainCfg[PretrainCfg, TokenVlaCfg]:
    """Pretrain language grounding after `tabletop-look`: `--init-from RUN`. Next: `tabletop-bc-token`."""
    return _read(TOKENS)


def bc_token() -> TrainCfg[BcCfg, TokenVlaCfg]:
    """Behavior cloning of pointing, lifting and pushing with a small autoregressive VLA.

    Use `--init-from RUN` of `tabletop-read`. Demonstrations: `robotrl demos mujoco/tabletop --noise 0.05 --episodes
    1000 --sim.image flat_front --sim.image-size 64 --sim.families point lift push --sim.limit-s 2.5 --sim.things 2
    --sim.mats 0`.
    """
    return _clone(TOKENS)


def bc_vlm() -> TrainCfg[BcCfg, TokenVlaCfg]:
    """Behavior cloning with a vision-language model without actions: `--init-from` a `robotrl import vlm-oft` result.

    For a large one, use `--lora.rank 32 --lora.heads action_queries`, and `proprio_projector` if it observes the state.
    Demonstrations: as for `bc_token`, with images of the size of its vision encoder.
    """
    base = _clone(TOKENS)
    return replace(base, algo=replace(base.algo, lr=2e-4, muon=0.0, reading=0.0))


def grpo() -> TrainCfg[GrpoCfg, TokenVlaCfg]:
    """Fine-tune a `tabletop-bc-token` policy by GRPO: `--init-from RUN --init-changes temperature=0.5`.

    The temperature is lower because correlated noise leads further. Hidden weight matrices are trained with Muon.
    """
    algo = GrpoCfg(iterations=35, groups=32, correlation=0.9, minibatch=512, lr=2e-4, muon=2.5, ema=0.98)
    return replace(_tune(algo, TokenVlaCfg()), checkpoint_every=5)


def srpo() -> TrainCfg[GrpoCfg, TokenVlaCfg]:
    """`grpo` with SRPO's progress reward for failures: for a policy that seldom succeeds."""
    base = grpo()
    return replace(base, algo=replace(base.algo, progress="embedding", keep_by="reward"))


def srpo_places() -> TrainCfg[GrpoCfg, TokenVlaCfg]:
    """`srpo` with progress from relative positions of hand, named object and goal at an episode's end.

    The sim knows these positions. The reward of the sim stays success only.
    """
    base = srpo()
    return replace(base, algo=replace(base.algo, encoder="places:state,meant", embed="end"))


def grpo_return() -> TrainCfg[GrpoCfg, TokenVlaCfg]:
    """`grpo` on the sum of the sim's shaped reward, so that every group teaches."""
    base = grpo()
    return _shaped(replace(base, algo=replace(base.algo, iterations=80, progress="return", keep_by="reward")))


@in_env_steps
def vla_rl() -> TrainCfg[VlaRlCfg, TokenVlaCfg]:
    """Fine-tune a `tabletop-bc-token` policy by PPO with a critic: `--init-from RUN --sim.curriculum 0.5`."""
    return replace(_tune(VlaRlCfg(), TokenVlaCfg()), tuned_on="success")


def opd() -> TrainCfg[OpdCfg, TokenVlaCfg]:
    """Distil a better policy into one with the same tokens: `--init-from RUN --algo.teacher RUN`."""
    return replace(_tune(OpdCfg(iterations=100, lr=2e-4, muon=2.5, ema=0.98), TokenVlaCfg()), checkpoint_every=5)


def look_flow() -> TrainCfg[PretrainCfg, FlowVlaCfg]:
    """Pretrain the vision encoder of a small SmolVLA. Next: `tabletop-read-flow --init-from RUN`."""
    return _look(FLOWS)


def read_flow() -> TrainCfg[PretrainCfg, FlowVlaCfg]:
    """Pretrain language grounding after `tabletop-look-flow`: `--init-from RUN`. Next: `tabletop-bc-flow`."""
    return _read(FLOWS)


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


@in_env_steps
def flow_sde() -> TrainCfg[FlowSdeCfg, FlowVlaCfg]:
    """Fine-tune a `tabletop-bc-flow` policy by Flow-SDE: `--init-from RUN`.

    The noise scale is that of `flow_grpo`: with full noise, such a policy, deployed without noise, seldom succeeds.
    """
    return replace(
        _tune(FlowSdeCfg(minibatch=240, scale=0.2, start_noise=0.0, engine="eager"), FlowVlaCfg()), tuned_on="success"
    )


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


@in_env_steps
def dsrl() -> TrainCfg[DsrlCfg, SteeredCfg]:
    """Steer the noise of a frozen `tabletop-bc-flow` policy by DSRL: `--init-from RUN`."""
    return replace(_tune(DsrlCfg(engine="eager"), SteeredCfg(), num_envs=16), tuned_on="success")


def _look(policy: P) -> TrainCfg[PretrainCfg, P]:
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=64, options=OPTIONS),
        algo=PretrainCfg(updates=500, scenes=640, symmetries=SYMMETRIES, muon=3.0),
        policy=policy,
        # the policy cannot act yet
        evaluation=EvalCfg(every=0, episodes=1, num_envs=1, animation=0),
    )


def _read(policy: P) -> TrainCfg[PretrainCfg, P]:
    base = _look(policy)
    return replace(base, algo=replace(base.algo, updates=800, reading=1.0, scenes=1280))


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
            reading=1.0,
            symmetries=SYMMETRIES,
        ),
        policy=policy,
        evaluation=EvalCfg(every=0, episodes=192, num_envs=96),
    )


def _tune(algo: A, policy: P, num_envs: int = 64) -> TrainCfg[A, P]:
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=num_envs, options=OPTIONS),
        algo=algo,
        policy=policy,
        evaluation=EvalCfg(every=10, episodes=192, num_envs=96),
    )


def _shaped(base: TrainCfg[A, P]) -> TrainCfg[A, P]:
    """Use the sim's shaped reward, and save every five of its long iterations."""
    return replace(base, sim=replace(base.sim, options=replace(OPTIONS, reward="shaped")), checkpoint_every=5)
