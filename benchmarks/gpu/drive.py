"""The driving world on a GPU against the processor of the same machine: env steps, and PPO from end to end."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.kit.figures import Figure, paired
from robotrl.config import EvalCfg, TrainCfg
from robotrl.registry import PRESETS, make_sim
from robotrl.run.logs import read_scalars
from robotrl.sims.bev.sim import DriveCfg
from robotrl.training import train
from robotrl.utils.hardware import usable_cores

SIM = "bev/drive"
SIZES = (512, 4096)
"""Numbers of envs."""
STEPS, ROUNDS = 50, 5
COMPILED = "compiled in"
SEED = 0
LEARN_STEPS = 4_000_000
"""Env steps of a training."""


def stepping() -> dict[str, Figure]:
    """Env steps per second with random actions, observed as vectors."""
    out: dict[str, Figure] = {}
    for num_envs in SIZES:
        routes = {device: _steps(num_envs, "vector", device) for device in ("cuda", "cpu")}
        found = paired(routes, ROUNDS).figure("cuda", "cpu", "env steps/s", "higher", f"{num_envs:,} envs, vectors")
        out[f"drive_vector_{num_envs}"] = replace(found, peer=f"{usable_cores()} cores")
    return out


def _steps(num_envs: int, obs: str, device: str) -> Callable[[], float]:
    """Route that gives the env steps per second of one device."""
    sim: Any = make_sim(SIM, num_envs=num_envs, seed=SEED, obs=obs, device=device)
    generator = torch.Generator(sim.device).manual_seed(SEED)
    actions = torch.rand((STEPS, num_envs, 2), generator=generator, device=sim.device) * 2 - 1
    sim.reset(SEED)

    def run() -> float:
        began = time.perf_counter()
        for action in actions:
            sim.step(action)
        if sim.device.type == "cuda":
            torch.cuda.synchronize(sim.device)
        return STEPS * num_envs / (time.perf_counter() - began)

    return run


def learning() -> dict[str, Figure]:
    """PPO on all scenarios, sim and networks on the GPU."""
    found = _trained("cuda")
    note = f"PPO, {LEARN_STEPS / 1e6:g} million env steps of 4,096 envs, compiling left out"
    speed = Figure(found["env_steps"] / found["learn_s"], "env steps/s", note=note)
    score = Figure(
        found["eval_success"],
        "success",
        runs=256,
        low=found["eval_low"],
        high=found["eval_high"],
        note=f"routes driven to their end without a mishap after these steps, of 256 held-out starts; {COMPILED}"
        f" {found.get('compile_s', 0.0):.0f} s",
    )
    return {"learn_drive_speed": speed, "learn_drive_success": score}


def _trained(device: str) -> dict[str, float]:
    """Last log line of a training on one device."""
    preset: TrainCfg[Any, Any] = PRESETS.load("drive-ppo")()
    options = DriveCfg(polylines=0, hold=3, end_penalty=10.0, device=device)
    cfg: TrainCfg[Any, Any] = replace(
        preset,
        sim=replace(preset.sim, num_envs=4096, options=options),
        algo=replace(preset.algo, env_steps=LEARN_STEPS, num_steps=32, minibatch=16_384, engine="compiled"),
        evaluation=EvalCfg(every=0, episodes=256, num_envs=256, animation=0),
        device=device,
        torch_threads=1 if device == "cuda" else usable_cores(),
        seed=SEED,
    )
    with tempfile.TemporaryDirectory() as folder:
        train(cfg, Path(folder) / "run")
        return read_scalars(Path(folder) / "run" / "scalars.jsonl")[-1]
