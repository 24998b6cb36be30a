"""Presets of the driving world: CaRL's planner from scratch, on vectors or on a raster, and a clone of the driver."""

from __future__ import annotations

from dataclasses import replace

from robotrl.algos.bc import BcCfg
from robotrl.algos.ppo import PpoCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.policies.beta import BetaCfg
from robotrl.policies.gaussian import GaussianCfg

SIM = "bev/drive"
NO_LANES = "polylines=0"
"""The route and what rules it are seen in any case."""
HOLD = "hold=3"
"""An action lasts 0.3 s, so that exploring goes somewhere."""


def drive_ppo() -> TrainCfg[PpoCfg, BetaCfg]:
    """Drive every scenario from vectors: Beta policy, a critic that knows the penalties' state, CaRL's reward.

    Unlike CaRL, an action lasts 0.3 s, a collision costs 10 of the 100 of a route, the future counts for 100 s, and the
    learning rate is three times as high: a few million samples have to do here, not hundreds. Road users are encoded as
    a set besides, so that what is learned of one holds for all. The page of the sim has what each of these made of it.
    """
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=512, options=(NO_LANES, HOLD, "end_penalty=10")),
        algo=PpoCfg(
            env_steps=25_000_000,
            num_steps=64,
            epochs=3,
            minibatch=2048,
            lr=7e-4,
            critic_lr=1e-3,
            lr_schedule="linear",
            gamma=0.997,
            gae_lambda=0.95,
            clip_coef=0.2,
            entropy_coef=0.01,
            target_kl=0.03,
            critic_warmup=0,
            max_grad_norm=0.5,
            critic_hidden=(128, 128),
            critic_activation="relu",
            normalize_reward=True,
        ),
        policy=BetaCfg(horizon=1, hidden=(256, 256), activation="relu", set_features=32),
        evaluation=EvalCfg(every=0, episodes=256, num_envs=256),
        checkpoint_every=50,
    )


def drive_ppo_raster() -> TrainCfg[PpoCfg, BetaCfg]:
    """The same from CaRL's ten-channel picture through a small CNN with LayerNorm; 48 m across, so that a CPU can."""
    vectors = drive_ppo()
    return replace(
        vectors,
        sim=SimCfg(
            SIM,
            num_envs=128,
            options=("obs=raster", "raster_pixels=48", "pixels_per_m=1.0", HOLD, "end_penalty=10"),
        ),
        algo=replace(vectors.algo, env_steps=1_000_000, num_steps=32, minibatch=512, lr=5e-4, critic_lr=5e-4),
        policy=replace(
            vectors.policy, image_channels=(16, 32, 32), image_features=128, image_pool="flatten", image_norm="layer"
        ),
    )


def drive_bc() -> TrainCfg[BcCfg, GaussianCfg]:
    """Clone the rule-based driver at its 10 Hz; make the demonstrations with `--options polylines=0`."""
    return TrainCfg(
        sim=SimCfg(SIM, num_envs=64, options=(NO_LANES,)),
        algo=BcCfg(updates=6000),
        policy=GaussianCfg(horizon=1, hidden=(256, 256)),
        evaluation=EvalCfg(every=0, episodes=256, num_envs=256),
    )
