"""Speed of the driving sim beside the scoring service, beside a scorer that it waits for, and alone."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.kit.figures import Figure, spread
from benchmarks.rewards.bench import MEMORY_TARGET_GIB, SHARE_TARGET, SIM, SPEED_TARGET
from benchmarks.rewards.model import BAD, GOOD, model_folder, trained
from robotrl.config import WeightedReward
from robotrl.registry import make_sim
from robotrl.rewards.contrast import ContrastCfg
from robotrl.rewards.relabel import with_rewards
from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.spec.late_rewards import HasLateRewards

ENVS, ROUNDS, STEPS, BLOCKING_STEPS = 64, 9, 400, 20
EVERY = 19
"""Steps from one scored picture of an env to the next."""
WINDOW = (-1.0, 1.0)
UNTRAINED = ("--frames", "600", "--updates", "2")
"""Flags of a model of the default size that has learnt nothing: its speed is that of any other."""
SIM_CORE, SCORER_CORE = 0, 1


class Timed(NamedTuple):
    """A sim that is being timed."""

    sim: Any
    steps: int
    """Steps of a round."""


def run(method: str, seed: int, out: Path, work: Path, rounds: int = ROUNDS, steps: int = STEPS) -> dict[str, Any]:
    """Figures of interleaved rounds; the sim on one core, the scorer on another."""
    path = trained(model_folder(work, seed, *UNTRAINED), seed, *UNTRAINED)
    cores = sorted(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    # it builds the maps of each round, which all sims of a process share: the first of them would pay for the others
    builder = Timed(_raster(seed), steps)
    sims = {
        "alone": Timed(_raster(seed), steps),
        "service": Timed(_rewarded(path, seed, cores[SCORER_CORE % len(cores)]), steps),
        "blocking": Timed(_rewarded(path, seed, None), min(steps, BLOCKING_STEPS)),
    }
    os.sched_setaffinity(0, {cores[SIM_CORE]})  # the scorer's process has set its own
    action = torch.zeros(ENVS, 2)
    rates: dict[str, list[float]] = {name: [] for name in sims}
    valid = list[float]()
    for one in (builder, *sims.values()):
        one.sim.reset(seed=seed)
        _steps(one, action)
    for _ in range(rounds):
        _steps(builder, action)
        for name, one in sims.items():
            began = time.perf_counter()
            share = _steps(one, action)
            rates[name].append(ENVS * one.steps / (time.perf_counter() - began))
            if name == "service":
                valid.append(share)
    metrics = sims["service"].sim.rewards.metrics()
    memory = _memory_gib()
    for one in (builder, *sims.values()):
        one.sim.close()
    alone = rates["alone"]
    asked = ENVS * steps * (rounds + 1)
    scored = metrics["scoring/contrast/requests_paid"] / asked
    figures = {
        "service_alone": _rate("|sim alone", alone, alone),
        "service_service": _rate(f"{SPEED_TARGET}|sim with the service", rates["service"], alone),
        "service_blocking": _rate("|sim that waits for each score", rates["blocking"], alone),
        "service_scored": Figure(100 * scored, "%", note=f"{100 * SHARE_TARGET:g} %|frames that were scored"),
        "service_valid": Figure(100 * statistics.fmean(valid), "%", note="|steps with a score at once"),
        "service_latency": Figure(metrics["scoring/contrast/latency_p95_s"], "s", note="|latency, 95th percentile"),
        "service_memory": Figure(memory, "GiB", note=f"{MEMORY_TARGET_GIB:g} GiB|memory of trainer and workers"),
    }
    return {key: figure.to_json() for key, figure in figures.items()}


def _raster(seed: int) -> Any:
    return make_sim(SIM, num_envs=ENVS, seed=seed, obs="raster", threads=1)


def _rewarded(path: Path, seed: int, core: int | None) -> Any:
    cfg = ContrastCfg(
        model=str(path),
        good=GOOD,
        bad=BAD,
        view="near",
        every=EVERY,
        window=WINDOW,
        background=core is not None,
        service=ServiceCfg(queue_frames=128, batch_size=32, cores=() if core is None else (core,)),
    )
    return with_rewards(_raster(seed), [WeightedReward("contrast", 1.0, cfg)])


def _steps(one: Timed, action: torch.Tensor) -> float:
    """Take the steps of a round; returns the share of steps that had a score at once."""
    valid = torch.zeros(ENVS, dtype=torch.int64)
    for _ in range(one.steps):
        info = one.sim.step(action).info
        if "reward_valid/contrast" in info:
            valid += info["reward_valid/contrast"]
    if isinstance(one.sim, HasLateRewards):
        one.sim.late_rewards(wait=False)
    return float(valid.sum()) / (ENVS * one.steps)


def _rate(note: str, rates: list[float], alone: list[float]) -> Figure:
    found, ratio = spread(rates), spread([one / base for one, base in zip(rates, alone, strict=True)])
    return Figure(
        found.median,
        "env steps/s",
        ratio=ratio.median,
        runs=len(rates),
        low=found.low,
        high=found.high,
        ratio_low=ratio.low,
        ratio_high=ratio.high,
        note=note,
    )


def _memory_gib() -> float:
    """Resident memory of this process and of the service's workers."""
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30
