"""Stable-Baselines3's PPO with its project's published settings for MuJoCo (RL Baselines3 Zoo, ppo.yml).

Only speed settings are changed: one torch thread, and Adam's fused kernel.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.locomotion.referee import IDS, returns
from robotrl.utils.files import dump_json, replace_file

ZOO: dict[str, dict[str, Any]] = {
    "mujoco/halfcheetah": {
        "batch_size": 64,
        "n_steps": 512,
        "gamma": 0.98,
        "learning_rate": 2.0633e-05,
        "ent_coef": 0.000401762,
        "clip_range": 0.1,
        "n_epochs": 20,
        "gae_lambda": 0.92,
        "max_grad_norm": 0.8,
        "vf_coef": 0.58096,
    },
    "mujoco/hopper": {
        "batch_size": 32,
        "n_steps": 512,
        "gamma": 0.999,
        "learning_rate": 9.80828e-05,
        "ent_coef": 0.00229519,
        "clip_range": 0.2,
        "n_epochs": 5,
        "gae_lambda": 0.99,
        "max_grad_norm": 0.7,
        "vf_coef": 0.835671,
    },
}
"""Published for the v4 tasks: one env, observations and rewards normalized, 1,000,000 steps, two layers of 256."""

STEPS = 1_000_000


def main(task: str, seed: int, out: Path, steps: int = STEPS) -> None:
    """Train one seed and evaluate it; writes `result.json` in `out`."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    settings = ZOO[task]
    env = VecNormalize(make_vec_env(IDS[task], n_envs=1, seed=seed), gamma=settings["gamma"])
    policy_kwargs = {
        "log_std_init": -2,
        "ortho_init": False,
        "activation_fn": torch.nn.ReLU,
        "net_arch": {"pi": [256, 256], "vf": [256, 256]},
        # the optimizer's settings are SB3's; only the kernel is changed
        "optimizer_kwargs": {"eps": 1e-5, "fused": True},
    }
    model = PPO("MlpPolicy", env, seed=seed, device="cpu", policy_kwargs=policy_kwargs, **settings)
    began = time.perf_counter()
    model.learn(steps)
    wall_s = time.perf_counter() - began
    found = returns(task, lambda obs: model.predict(env.normalize_obs(obs), deterministic=True)[0])
    recent = [episode["r"] for episode in model.ep_info_buffer or []]
    result = {
        "return": float(found.mean()),
        "returns": found.tolist(),
        "training_return": float(np.mean(recent)),
        "env_steps": model.num_timesteps,
        "train_s": wall_s,
        "env_steps_per_s": model.num_timesteps / wall_s,
    }
    replace_file(out / "result.json", dump_json(result))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
