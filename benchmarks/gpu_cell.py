"""One part of what is measured on a GPU.

`python -m robotrl.benchmarks.gpu_cell PART OUT` leaves OUT/result.json.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from robotrl.adapters import Adaptation, insert, places
from robotrl.algos.footprint import GIB, Load, adapt_alike, footprint, update_peak, without_memory
from robotrl.algos.on_policy import epoch_order
from robotrl.benchmarks import vla_decode
from robotrl.benchmarks.chain import METHODS, SEED, UNIT, make_baseline, make_learner
from robotrl.benchmarks.figures import Figure, paired
from robotrl.benchmarks.gpu import MEMORY, PARTS, Held
from robotrl.config import LoraCfg
from robotrl.devices import device_of
from robotrl.errors import unknown
from robotrl.files import dump_json, replace_file
from robotrl.load import probe
from robotrl.policies.recompute import recompute
from robotrl.published import Interface, interface, published
from robotrl.registry import make_sim

ROUNDS = 9
HERE, PLAIN, PROCESSOR = "robotrl", "eager torch", "robotrl on the processor"
ENVS = (256, 4096)
STEPS = 20
"""Control steps of a run of the driving world."""


def main(part: str, out: Path) -> None:
    """Run one part in this process.

    Raises:
        ConfigError: the part is unknown, or there is no GPU.
    """
    if part not in PARTS:
        raise unknown("part", part, PARTS)
    device = device_of("cuda")
    kind, _, name = part.partition("_")
    if kind == "memory":
        figures = memory(name, MEMORY[name], device)
    elif kind == "updates":
        figures = updates(name, device)
    else:
        figures = {"decode": decode, "drive": drive}[kind](device)
    replace_file(out / "result.json", dump_json({key: figure.to_json() for key, figure in figures.items()}))


def decode(device: torch.device) -> dict[str, Figure]:
    """Tokens per second of each size of the bench `vla`."""
    return {f"decode_{name}": vla_decode.measure(size, device=device) for name, size in vla_decode.SIZES.items()}


def updates(name: str, device: torch.device) -> dict[str, Figure]:
    """Updates of a method, compiled and replayed, against plain eager torch on the GPU and ours on the processor."""
    method, cfg = METHODS[name], METHODS[name].cfg
    learners = {
        HERE: make_learner(method, "compiled", device=device),
        PROCESSOR: make_learner(method, "compiled"),
    }
    batches = {route: learner.collect()[0] for route, learner in learners.items()}
    baseline, generator = make_baseline(method, learners[HERE]), torch.Generator().manual_seed(SEED)

    def ours(route: str) -> float:
        return _rate(lambda: learners[route].update(batches[route]))

    def plain() -> float:
        decisions = len(batches[HERE].advantage)
        order = epoch_order(decisions, cfg.minibatch, cfg.epochs, generator, keep_all=False).to(device)
        return _rate(lambda: baseline.update(batches[HERE], order))

    found = paired({HERE: partial(ours, HERE), PLAIN: plain, PROCESSOR: partial(ours, PROCESSOR)}, ROUNDS)
    note = f"minibatch {cfg.minibatch}, {cfg.epochs} epochs of {len(batches[HERE].advantage)} decisions"
    threads = f"{note}; the processor has {torch.get_num_threads()} threads"
    return {
        f"updates_per_s_{name}": found.figure(HERE, PLAIN, UNIT, "higher", f"{note}, both on the GPU"),
        f"updates_per_s_{name}_vs_processor": found.figure(HERE, PROCESSOR, UNIT, "higher", threads),
    }


def drive(device: torch.device) -> dict[str, Figure]:
    """Env steps per second of the driving world on the GPU and on all of the processor's threads."""
    figures: dict[str, Figure] = {}
    for envs in ENVS:
        sims = {where: make_sim("bev/drive", num_envs=envs, seed=SEED, device=where) for where in (device.type, "cpu")}
        for sim in sims.values():
            sim.reset(SEED, options={"stagger": True})
        found = paired({where: partial(_drive, sim) for where, sim in sims.items()}, ROUNDS)
        note = f"{envs:,} envs that speed up slowly, vectors observed; the processor has {os.cpu_count()} threads"
        figures[f"drive_{envs}"] = found.figure(device.type, "cpu", "env steps/s", "higher", note)
        for sim in sims.values():
            sim.close()
    return figures


def _drive(sim: Any) -> float:
    actions = torch.zeros(sim.num_envs, 2, device=sim.device)
    actions[:, 0] = 0.3

    def steps() -> None:
        for _ in range(STEPS):
            sim.step(actions)

    return _rate(steps) * STEPS * sim.num_envs


def memory(name: str, held: Held, device: torch.device) -> dict[str, Figure]:
    """What an update is seen to need at its peak, and what was estimated without loading anything."""
    seen = interface(held.policy)
    load = Load(held.rows, held.steps, bf16=True)
    with without_memory():
        alike = published(held.policy, seen)
        if held.rank:
            adapt_alike(alike, lora(held))
        recompute(alike)
        estimate = footprint(alike, load, alike.observation_spec).total
    policy = real(held, seen, device)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    tracked = update_peak(policy, load, policy.observation_spec)
    found, kept = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    size = sum(x.numel() for x in policy.parameters()) / 1e6
    how = f"adapters of rank {held.rank} on a base in 16 bits" if held.rank else "all weights"
    note = (
        f"{held.policy}, {size:,.0f} million weights, {how}, {held.rows} rows, blocks recomputed, bfloat16;"
        f" tensors of the update {tracked / GIB:.1f} GiB, torch kept {kept / GIB:.1f} GiB"
    )
    return {
        f"memory_{name}": Figure(
            found / GIB, "GiB", peer="the estimate", peer_value=estimate / GIB, ratio=estimate / found, note=note
        )
    }


def lora(held: Held) -> LoraCfg:
    """Adapters on all layers."""
    return LoraCfg(held.rank, bf16_base=True)


def real(held: Held, seen: Interface, device: torch.device) -> Any:
    """The policy of published size with random weights, adapted, on a device."""
    from transformers.initialization import no_init_weights

    with no_init_weights():
        policy = published(held.policy, seen)
    policy = policy.to(device)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.normal_(0.0, 0.02)
    if held.rank:
        cfg = lora(held)
        where = places(policy, cfg, lambda: probe(policy))
        # nobody goes on from these weights, so that their sum is not asked for
        insert(policy, Adaptation(cfg.rank, cfg.alpha, where.layers, where.heads, "", where.halved))
    recompute(policy)
    return policy


def _rate(once: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    once()
    torch.cuda.synchronize()
    return 1 / (time.perf_counter() - begun)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
