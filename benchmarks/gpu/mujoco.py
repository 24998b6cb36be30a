"""A MuJoCo task on MuJoCo Warp on a GPU against the native engine on the processor of the same machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from benchmarks.kit.figures import Figure, paired
from robotrl.registry import make_sim
from robotrl.testing.sims import random_actions
from robotrl.utils.hardware import usable_cores

SIM = "mujoco/halfcheetah"
NUM_ENVS = 4096
STEPS, ROUNDS = 100, 5
SEED = 0
GPU, CORES = "cuda", "cpu"


def stepping() -> dict[str, Figure]:
    """Env steps per second with random actions.

    Raises:
        RuntimeError: torch's, if a step copies to the host or waits for the device.
    """
    waits_for_nothing(prepared(GPU))
    routes = {device: _route(device) for device in (GPU, CORES)}
    note = f"{SIM}, {NUM_ENVS:,} envs; no copy to the host and no wait in {STEPS} steps"
    found = paired(routes, ROUNDS).figure(GPU, CORES, "env steps/s", "higher", note)
    return {"mujoco_halfcheetah": replace(found, peer=f"{usable_cores()} cores, native engine")}


def prepared(device: str) -> tuple[Any, torch.Tensor]:
    """A sim in the middle of its episodes, and actions (T, N, A) for it."""
    sim: Any = make_sim(SIM, num_envs=NUM_ENVS, seed=SEED, device=device)
    actions = random_actions(sim, STEPS, SEED).to(sim.device)
    sim.reset(SEED)
    sim.step(actions[0])
    return sim, actions


def waits_for_nothing(made: tuple[Any, torch.Tensor]) -> None:
    """Step a sim while torch raises at a copy to the host, or at any other wait for the device."""
    sim, actions = made
    torch.cuda.synchronize(sim.device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for action in actions:
            sim.step(action)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _route(device: str) -> Callable[[], float]:
    """Route that gives the env steps per second of one device."""
    sim, actions = prepared(device)

    def run() -> float:
        began = time.perf_counter()
        for action in actions:
            sim.step(action)
        if sim.device.type == GPU:
            torch.cuda.synchronize(sim.device)
        return STEPS * NUM_ENVS / (time.perf_counter() - began)

    return run
