"""One part of what is measured on a GPU.

`python -m robotrl.benchmarks.gpu_cell PART OUT` leaves OUT/result.json.
"""

from __future__ import annotations

import functools
import gc
import sys
import time
from collections.abc import Callable
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
ENVS = (256, 4096, 16384)
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
    name = part.removeprefix("memory_")
    figures = (
        memory(name, MEMORY[name], device)
        if name in MEMORY
        else {"decode": decode, "updates": updates, "drive": drive}[part](device)
    )
    replace_file(out / "result.json", dump_json({key: figure.to_json() for key, figure in figures.items()}))


def decode(device: torch.device) -> dict[str, Figure]:
    """Tokens per second of each size of the bench `vla`."""
    return {f"decode_{name}": vla_decode.measure(size, device=device) for name, size in vla_decode.SIZES.items()}


def updates(device: torch.device) -> dict[str, Figure]:
    """Updates of ReinFlow and DPPO, compiled and replayed, against plain eager torch on the same GPU and ours on the
    processor."""
    figures: dict[str, Figure] = {}
    for name, method in METHODS.items():
        learners = {
            "robotrl": make_learner(method, "compiled", device=device),
            "robotrl on the processor": make_learner(method, "compiled"),
        }
        batches = {route: learner.collect()[0] for route, learner in learners.items()}
        baseline = make_baseline(method, learners["robotrl"])
        generator, cfg = torch.Generator().manual_seed(SEED), method.cfg

        def ours(route: str, learners: Any = learners, batches: Any = batches) -> float:
            return _rate(lambda: learners[route].update(batches[route]))

        def plain(
            baseline: Any = baseline, batch: Any = batches["robotrl"], cfg: Any = cfg, generator: Any = generator
        ) -> float:
            order = epoch_order(len(batch.advantage), cfg.minibatch, cfg.epochs, generator, keep_all=False).to(device)
            return _rate(lambda: baseline.update(batch, order))

        routes: dict[str, Callable[[], float]] = {route: functools.partial(ours, route) for route in learners}
        found = paired({**routes, "eager torch": plain}, ROUNDS)
        note = f"minibatch {cfg.minibatch}, {cfg.epochs} epochs of {len(batches['robotrl'].advantage)} decisions"
        figures[f"updates_per_s_{name}"] = found.figure(
            "robotrl", "eager torch", UNIT, "higher", f"{note}, both on the GPU"
        )
        against = "robotrl on the processor"
        figures[f"updates_per_s_{name}_vs_processor"] = found.figure(
            "robotrl", against, UNIT, "higher", f"{note}, {torch.get_num_threads()} threads"
        )
    return figures


def drive(device: torch.device) -> dict[str, Figure]:
    """Env steps per second of the driving world on the GPU and on all of the processor's threads."""
    figures: dict[str, Figure] = {}
    for envs in ENVS:
        sims = {where: make_sim("bev/drive", num_envs=envs, seed=SEED, device=where) for where in ("cuda", "cpu")}

        def run(where: str, sims: Any = sims, envs: int = envs) -> float:
            sim = sims[where]
            actions = torch.zeros(envs, 2, device=sim.device)
            actions[:, 0] = 0.3

            def steps() -> None:
                for _ in range(STEPS):
                    sim.step(actions)

            return _rate(steps) * STEPS * envs

        for sim in sims.values():
            sim.reset(SEED, options={"stagger": True})
        found = paired({where: functools.partial(run, where) for where in sims}, ROUNDS)
        note = f"{envs:,} envs, all slow along, vectors observed; the processor has {torch.get_num_threads()} threads"
        figures[f"drive_{envs}"] = found.figure("cuda", "cpu", "env steps/s", "higher", note)
        for sim in sims.values():
            sim.close()
    return figures


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
    update_peak(policy, load, policy.observation_spec)
    found, kept = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    size = sum(x.numel() for x in policy.parameters()) / 1e6
    how = f"adapters of rank {held.rank} on a base in 16 bits" if held.rank else "all weights"
    note = (
        f"{held.policy}, {size:,.0f} million weights, {how}, {held.rows} rows, blocks recomputed, bfloat16;"
        f" torch kept {kept / GIB:.1f} GiB"
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
