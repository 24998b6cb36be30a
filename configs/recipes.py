"""Published recipes for vision-language-action policies of published size; see docs/vla-finetuning.md.

They fine-tune an imported policy (`robotrl import`), on one machine or with a profile on a GPU:
`robotrl train simplevla-rl --profile card-80 --init-from POLICY`. The sim is the tabletop, with images of the size that
such policies use; `--sim NAME` and `--sim.FIELD` select another. Numbers of episodes in a recipe are converted to
decisions here, at 64 per episode of their benchmark (512 control steps, chunks of eight). Small policies on a CPU use
the presets of `robotrl.configs.tabletop`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from robotrl.algos.flow_noise import FlowNoiseCfg
from robotrl.algos.flow_sde import FlowSdeCfg
from robotrl.algos.grpo import GrpoCfg
from robotrl.algos.opd import OpdCfg
from robotrl.algos.vla_rl import VlaRlCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.configs.env_steps import in_env_steps
from robotrl.policies.vla.flow import FlowVlaCfg
from robotrl.policies.vla.token import TokenVlaCfg
from robotrl.sims.mujoco.tabletop.sim import TabletopCfg

A = TypeVar("A")
P = TypeVar("P")

ENVS = 64
CHUNK = 8
"""Env steps per decision, as in `robotrl.cli.profiles`."""
DECISIONS = 512 // CHUNK
"""Decisions per episode."""
PI_RL: dict[str, Any] = {
    "env_steps": 10_000_000,
    # a rollout is one minibatch
    "num_steps": 2048 * CHUNK // ENVS,
    "epochs": 4,
    "minibatch": 2048,
    "lr": 5e-6,
    "critic_lr": 1e-4,
    "clip_coef": 0.2,
    "critic_warmup_env_steps": 2 * 2048 * CHUNK,
    "bf16": True,
    "engine": "eager",
}
"""Settings shared by both variants of pi_RL."""


def simplevla_rl() -> TrainCfg[GrpoCfg, TokenVlaCfg]:
    """SimpleVLA-RL (Li et al. 2025, 2509.09674): GRPO with 64 groups of eight.

    Groups in which all or no episodes succeed are dropped; four updates of 128 episodes each.
    """
    algo = GrpoCfg(groups=64, tries=64, minibatch=128 * DECISIONS, lr=5e-6, warmup=0, bf16=True)
    return _published(algo, TokenVlaCfg(), "temperature=1.6")


def srpo() -> TrainCfg[GrpoCfg, TokenVlaCfg]:
    """SRPO (Fei et al. 2025, 2511.15605): `simplevla_rl` with a progress reward for failures; updates of four groups.

    `--algo.keep-by reward` lets groups of failures teach, which the published code drops before it computes the reward.
    """
    algo = GrpoCfg(
        groups=64,
        tries=64,
        minibatch=32 * DECISIONS,
        lr=5e-6,
        warmup=0,
        bf16=True,
        progress="embedding",
        keep_by="success",
    )
    return _published(algo, TokenVlaCfg(), "temperature=1.6")


@in_env_steps
def vla_rl() -> TrainCfg[VlaRlCfg, TokenVlaCfg]:
    """VLA-RL (Lu et al. 2025, 2505.18719): PPO on single actions, with a critic on frozen features.

    Published with adapters of rank 32, as in the profiles of single GPUs. Tasks that fail are drawn more often; for a
    sim without scenarios, use `--sim.curriculum None`. The paper's process reward is `--algo.process-reward DIR` with
    `--algo.process-form raw`. The paper makes one pass over a rollout; here there are two, or nothing would be clipped.
    """
    algo = VlaRlCfg(
        env_steps=10_000_000,
        num_steps=128,
        critic_warmup_env_steps=40_960,
        lr=5e-6,
        critic_lr=5e-5,
        warmup=0,
        bf16=True,
    )
    base = _published(algo, TokenVlaCfg(), "temperature=1.5")
    return replace(base, sim=replace(base.sim, curriculum=1.0))


def vla_opd() -> TrainCfg[OpdCfg, TokenVlaCfg]:
    """VLA-OPD: on-policy distillation of a better policy, `--algo.teacher RUN`.

    An iteration is one episode per env, and a minibatch is a quarter of their decisions at most.
    """
    algo = OpdCfg(iterations=200, minibatch=ENVS // 4 * DECISIONS, lr=2e-6, bf16=True)
    return _published(algo, TokenVlaCfg(), "temperature=1.6")


@in_env_steps
def pi_rl() -> TrainCfg[FlowSdeCfg, FlowVlaCfg]:
    """pi_RL by Flow-SDE (2510.25889): PPO through the stochastic denoising chain; only the action expert is trained."""
    return _published(FlowSdeCfg(**PI_RL, scale=0.5), FlowVlaCfg(), "trained=expert")


@in_env_steps
def pi_rl_noise() -> TrainCfg[FlowNoiseCfg, FlowVlaCfg]:
    """pi_RL by Flow-Noise (2510.25889): learned noise of 0.08 to 0.16 per denoising step, and an entropy bonus."""
    algo = FlowNoiseCfg(**PI_RL, noise_low=0.08, noise_high=0.16, entropy_coef=0.005)
    return _published(algo, FlowVlaCfg(), "trained=expert")


def _published(algo: A, policy: P, change: str) -> TrainCfg[A, P]:
    return TrainCfg(
        sim=SimCfg("mujoco/tabletop", num_envs=ENVS, options=TabletopCfg(image=("flat_near",), image_size=224)),
        algo=algo,
        policy=policy,
        init_changes=(change,),
        evaluation=EvalCfg(every=10, episodes=192, num_envs=64),
    )
