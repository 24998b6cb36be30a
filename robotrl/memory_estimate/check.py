"""Memory check of a run: estimates its memory before anything is built, and rejects a run that cannot fit."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

from robotrl.config import TrainCfg
from robotrl.datasets.layout import INFO
from robotrl.errors import CapabilityError, DataError
from robotrl.memory_estimate.estimate import (
    Load,
    MemoryEstimate,
    available,
    check_memory_fits,
    described,
    estimate_memory,
    on_meta_device,
    stand_in_adapters,
)
from robotrl.policies.networks.activation_checkpointing import recompute
from robotrl.run.policy_checkpoint import changed_description, describe
from robotrl.spec import HasChain, LearnerCfg, MemoryNeeds
from robotrl.spec.json_fields import name_values
from robotrl.utils.devices import device_of
from robotrl.utils.files import parse_json, read_plain

SMALL_BYTES = 8 << 20
"""Size of stored weights below which nothing is estimated, because the estimate takes some seconds."""
COPIES = 4
"""Copies of a rollout's observations: before and after a decision, those of valid decisions, and the engine's rows."""


def announce(cfg: TrainCfg[Any, Any]) -> MemoryEstimate | None:
    """Print the estimated memory of a run to stderr, if it starts from a policy that is not small.

    Args:
        cfg: the config.

    Returns:
        The estimate; None if there is none.

    Raises:
        ConfigError: there is not enough memory; the error says what to change.
        DataError: the policy that it starts from cannot be read.
    """
    rows = gradient_rows(cfg.algo.memory, processes())
    if cfg.init_from is None or rows is None:
        return None
    stored = describe(cfg.init_from)
    if stored.weights_bytes < SMALL_BYTES:
        return None
    description = changed_description(stored.description, name_values(cfg.init_changes, "init_changes"))
    try:
        with on_meta_device(description["kind"]):
            policy = described(description)
            if cfg.lora.rank:
                stand_in_adapters(policy, cfg.lora)
            if cfg.recompute:
                recompute(policy)
            found = estimate_memory(policy, load_of(cfg, policy, rows), policy.observation_spec)
    except CapabilityError as error:
        print(error, file=sys.stderr)
        return None
    print(found.line(), file=sys.stderr)
    check_memory_fits(found, available(device_of(cfg.device)), lambda need: advice(cfg, need))
    return found


def processes() -> int:
    """Number of training processes, as set by torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def gradient_rows(needs: MemoryNeeds, among: int = 1) -> int | None:
    """Return the rows per forward and backward pass in each process; None if unknown.

    Args:
        needs: the algorithm's needs.
        among: number of training processes: a minibatch is divided among them, a microbatch is not.
    """
    return _minibatch(needs, among) if needs.microbatch is None else needs.microbatch


def _minibatch(needs: MemoryNeeds, among: int) -> int | None:
    """Rows of a minibatch per process."""
    return None if needs.minibatch is None else math.ceil(needs.minibatch / among)


def load_of(cfg: TrainCfg[Any, Any], policy: Any, rows: int) -> Load:
    """Return the quantities of a run that determine its memory.

    Args:
        cfg: the config.
        policy: the policy that it starts from.
        rows: rows per backward pass, see `gradient_rows`.
    """
    needs: MemoryNeeds = cfg.algo.memory
    among, evaluations, stored = processes(), 1, 0
    if needs.num_steps is not None:
        # policy gradients through a chain put all its steps into one batch
        evaluations = policy.denoising_steps if isinstance(policy, HasChain) else 1
        stored = COPIES * cfg.sim.num_envs * math.ceil(needs.num_steps / policy.horizon)
    elif cfg.dataset is not None:
        stored = _frames(Path(cfg.dataset))
    parts = (_minibatch(needs, among) or rows) > rows
    frames, held = rows * needs.frames_per_row, beside(cfg, policy)
    bf16 = bool(needs.bf16)
    return Load(frames, evaluations, stored, needs.averages, parts, bf16, among if cfg.fsdp else 1, cfg.cache, held)


def beside(cfg: TrainCfg[Any, Any], policy: Any) -> int:
    """Bytes of a run's additional networks: the averaged policy, and those of `LearnerCfg.beside`.

    Copies of an adapted policy share its frozen weights.
    """
    algo: LearnerCfg = cfg.algo
    copies = [policy] if algo.memory.averages else []
    return sum(
        describe(one).weights_bytes if isinstance(one, str) else own_bytes(one, shared=bool(cfg.lora.rank))
        for one in (*copies, *algo.beside(policy))
    )


def own_bytes(network: Any, shared: bool) -> int:
    """Bytes of a copy's weights; with `shared`, only of the trainable ones."""
    return sum(p.numel() * p.element_size() for p in network.parameters() if p.requires_grad or not shared)


def advice(cfg: TrainCfg[Any, Any], need: MemoryEstimate) -> str:
    """Advice on a config that needs too much memory, the most effective change first."""
    fixed, needs = need.weights + need.optimizer, cfg.algo.memory
    fewer = "a smaller algo.microbatch" if needs.splits else "smaller minibatches"
    if need.update < fixed and not cfg.lora.rank:
        spread = "" if cfg.fsdp else ", or fsdp, with several processes"
        return f"set lora.rank (e.g. 32), so that adapters alone learn{spread}"
    if need.stored > need.update:
        return "take fewer or smaller observations: sim.num_envs, algo.num_steps, the dataset"
    if not cfg.recompute:
        return f"set recompute, or choose {fewer}" + ("" if cfg.lora.rank else ", or set lora.rank (e.g. 32)")
    if needs.bf16 is False:
        fewer = f"algo.bf16, or {fewer}"
    return f"choose {fewer}" + ("" if cfg.lora.rank else ", or set lora.rank (e.g. 32)")


def _frames(dataset: Path) -> int:
    """Number of a dataset's frames; 0 if unknown, which its reader will reject."""
    try:
        return int(parse_json(read_plain(dataset / INFO, INFO), INFO)["total_frames"])
    except (OSError, DataError, ValueError, KeyError, TypeError):
        return 0
