"""Published recipes for vision-language-action policies of published size; where each differs is in docs/vla.md.

They fine-tune an imported policy (`robotrl import`), on one machine or with a profile on a card:
`robotrl train simplevla-rl --profile card-80 --init-from POLICY`. The sim is the tabletop, whose pictures have the size
that such policies see; `--sim.name` and `--sim.options` name another. What a recipe counts in episodes is counted in
decisions here, of which an episode of their benchmark has 64 (512 control steps, chunks of eight). Small policies on a
CPU learn by the presets of `robotrl.configs.tabletop`.
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
from robotrl.policies.vla.flow import FlowVlaCfg
from robotrl.policies.vla.token import TokenVlaCfg

A = TypeVar("A")
P = TypeVar("P")

ENVS = 64
CHUNK = 8
"""Env steps of a decision, as `robotrl.cli.profiles` has it."""
DECISIONS = 512 // CHUNK
"""Of an episode."""
PI_RL: dict[str, Any] = {
    "env_steps": 10_000_000,
    # a rollout is one minibatch
    "num_steps": 2048 * CHUNK // ENVS,
    "epochs": 4,
    "minibatch": 2048,
    "lr": 5e-6,
    "critic_lr": 1e-4,
    "clip_coef": 0.2,
    "bf16": True,
    "engine": "eager",
}
"""What both ways of pi_RL have."""


def simplevla_rl() -> TrainCfg[GrpoCfg, TokenVlaCfg]:
    """SimpleVLA-RL (Li et al. 2025, 2509.09674): 64 groups of eight, those kept that succeed now and then; four updates
    of 128 episodes."""
    algo = GrpoCfg(groups=64, tries=64, minibatch=128 * DECISIONS, lr=5e-6, warmup=0, bf16=True)
    return _published(algo, TokenVlaCfg(), "temperature=1.6")


def srpo() -> TrainCfg[GrpoCfg, TokenVlaCfg]:
    """SRPO (Fei et al. 2025, 2511.15605): the same with failures worth how near they came; updates of four groups.

    `--algo.keep-by reward` lets groups in which all fail teach, which the published code drops before it looks.
    """
    algo = GrpoCfg(
        groups=64, tries=64, minibatch=32 * DECISIONS, lr=5e-6, warmup=0, bf16=True, progress="sight", keep_by="success"
    )
    return _published(algo, TokenVlaCfg(), "temperature=1.6")


def vla_rl() -> TrainCfg[VlaRlCfg, TokenVlaCfg]:
    """VLA-RL (Lu et al. 2025, 2505.18719): PPO on single actions with a critic on a frozen reading.

    Published with adapters of rank 32, which the profiles of single cards have. Tasks that fail are drawn more often;
    on a sim without scenarios `--sim.curriculum None`. The paper's process reward is `--algo.process-reward DIR` with
    `--algo.process-form raw`. It makes one pass over a rollout; here there are two, or nothing would ever be clipped.
    """
    algo = VlaRlCfg(env_steps=10_000_000, num_steps=128, lr=5e-6, critic_lr=5e-5, warmup=0, bf16=True)
    base = _published(algo, TokenVlaCfg(), "temperature=1.5")
    return replace(base, sim=replace(base.sim, curriculum=1.0))


def vla_opd() -> TrainCfg[OpdCfg, TokenVlaCfg]:
    """VLA-OPD, distillation of a better policy on what the weaker one says: `--algo.teacher RUN`.

    An iteration is an episode in each env, so a minibatch is a quarter of what these hold at most.
    """
    algo = OpdCfg(iterations=200, minibatch=ENVS // 4 * DECISIONS, lr=2e-6, bf16=True)
    return _published(algo, TokenVlaCfg(), "temperature=1.6")


def pi_rl() -> TrainCfg[FlowSdeCfg, FlowVlaCfg]:
    """pi_RL by Flow-SDE (2510.25889): PPO through the chain run as a stochastic equation; the expert alone learns."""
    return _published(FlowSdeCfg(**PI_RL, scale=0.5), FlowVlaCfg(), "trained=expert")


def pi_rl_noise() -> TrainCfg[FlowNoiseCfg, FlowVlaCfg]:
    """pi_RL by Flow-Noise (2510.25889): learned noise of 0.08 to 0.16 in each denoising step, its entropy a bonus."""
    algo = FlowNoiseCfg(**PI_RL, noise_low=0.08, noise_high=0.16, entropy_coef=0.005)
    return _published(algo, FlowVlaCfg(), "trained=expert")


def _published(algo: A, policy: P, change: str) -> TrainCfg[A, P]:
    return TrainCfg(
        sim=SimCfg("mujoco/tabletop", num_envs=ENVS, options=("image=flat_near", "image_size=224")),
        algo=algo,
        policy=policy,
        init_changes=(change,),
        evaluation=EvalCfg(every=10, episodes=192, num_envs=64),
    )
