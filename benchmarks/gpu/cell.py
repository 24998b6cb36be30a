"""One of the GPU measurements.

`python -m benchmarks.gpu.cell NAME OUT` writes OUT/result.json.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import drive, mujoco
from benchmarks.gpu.bench import DECODE, DRIVE, HELD, LEARN, MEMORY, MUJOCO, NAMES, Held
from benchmarks.kit.figures import Figure
from benchmarks.vla import decode as vla_decode
from robotrl.config import LoraCfg
from robotrl.errors import unknown
from robotrl.memory_estimate.estimate import GIB, Load, estimate_memory, on_meta_device, stand_in_adapters, update_peak
from robotrl.memory_estimate.model_sizes import Interface, interface, published
from robotrl.peft.lora import Adaptation, insert, places
from robotrl.policies.networks.activation_checkpointing import recompute
from robotrl.run.policy_checkpoint import probe
from robotrl.utils.devices import device_of
from robotrl.utils.files import dump_json, replace_file


def main(name: str, out: Path) -> None:
    """Make one measurement in this process.

    Raises:
        ConfigError: there is no such measurement, or no GPU.
    """
    if name not in NAMES:
        raise unknown("measurement", name, NAMES)
    device = device_of("cuda")
    if name == DECODE:
        figures = decode(device)
    elif name == LEARN:
        figures = drive.learning()
    elif name.startswith(DRIVE):
        figures = drive.stepping()
    elif name.startswith(MUJOCO):
        figures = mujoco.stepping()
    else:
        figures = memory(name, HELD[name.removeprefix(MEMORY)], device)
    replace_file(out / "result.json", dump_json({key: figure.to_json() for key, figure in figures.items()}))


def decode(device: torch.device) -> dict[str, Figure]:
    """Tokens per second of each size of the bench `vla`."""
    return {f"{DECODE}_{name}": vla_decode.measure(size, device=device) for name, size in vla_decode.SIZES.items()}


def memory(name: str, held: Held, device: torch.device) -> dict[str, Figure]:
    """Peak memory of an update, measured and estimated (without loading anything)."""
    seen = interface(held.policy)
    load = Load(held.rows, bf16=True)
    with on_meta_device():
        alike = published(held.policy, seen)
        if held.rank:
            stand_in_adapters(alike, lora(held))
        recompute(alike)
        estimate = estimate_memory(alike, load, alike.observation_spec).total
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
        name: Figure(
            found / GIB, "GiB", peer="the estimate", peer_value=estimate / GIB, ratio=estimate / found, note=note
        )
    }


def lora(held: Held) -> LoraCfg:
    """Config of adapters on all layers."""
    return LoraCfg(held.rank, bf16_base=True)


def real(held: Held, seen: Interface, device: torch.device) -> Any:
    """A policy of published size with random weights and adapters, on a device."""
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
        # these weights are never resumed, so their checksum is not needed
        insert(policy, Adaptation(cfg.rank, cfg.alpha, where.layers, where.heads, "", where.halved))
    recompute(policy)
    return policy


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
