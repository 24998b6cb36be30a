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
    Footprint,
    Load,
    adapt_alike,
    available,
    check_room,
    described,
    footprint,
    without_memory,
)
from robotrl.policies.networks.recompute import recompute
from robotrl.run.policy_checkpoint import changed_description, describe
from robotrl.spec.json_fields import name_values
from robotrl.utils.devices import device_of
from robotrl.utils.files import parse_json, read_plain

SMALL_BYTES = 8 << 20
"""Size of stored weights below which nothing is estimated, because the estimate takes some seconds."""
COPIES = 4
"""Copies of a rollout's observations: before and after a decision, those of valid decisions, and the engine's rows."""


def announce(cfg: TrainCfg[Any, Any]) -> Footprint | None:
    """Print the estimated memory of a run to stderr, if it starts from a policy that is not small.

    Args:
        cfg: the config.

    Returns:
        The estimate; None if there is none.

    Raises:
        ConfigError: there is not enough memory; the error says what to change.
        DataError: the policy that it starts from cannot be read.
    """
    rows = gradient_rows(cfg.algo, processes())
    if cfg.init_from is None or rows is None:
        return None
    stored = describe(cfg.init_from)
    if stored.weights_bytes < SMALL_BYTES:
        return None
    description = changed_description(stored.description, name_values(cfg.init_changes, "init_changes"))
    try:
        with without_memory(description["kind"]):
            policy = described(description)
            if cfg.lora.rank:
                adapt_alike(policy, cfg.lora)
            if cfg.recompute:
                recompute(policy)
            found = footprint(policy, load_of(cfg, policy, rows), policy.observation_spec)
    except CapabilityError as error:
        print(error, file=sys.stderr)
        return None
    print(found.line(), file=sys.stderr)
    check_room(found, available(device_of(cfg.device)), lambda need: advice(cfg, need))
    return found


def processes() -> int:
    """Number of training processes, as set by torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def gradient_rows(algo: Any, among: int = 1) -> int | None:
    """Return the rows per forward and backward pass in each process; None if unknown.

    Args:
        algo: the algorithm's settings.
        among: number of training processes: a minibatch is divided among them, a microbatch is not.
    """
    rows: int | None = getattr(algo, "microbatch", None)
    return _minibatch(algo, among) if rows is None else rows


def _minibatch(algo: Any, among: int) -> int | None:
    """Rows of a minibatch per process."""
    given = (getattr(algo, name, None) for name in ("minibatch", "batch"))
    return next((math.ceil(rows / among) for rows in given if rows is not None), None)


def load_of(cfg: TrainCfg[Any, Any], policy: Any, rows: int) -> Load:
    """Return the quantities of a run that determine its memory.

    Args:
        cfg: the config.
        policy: the policy that it starts from.
        rows: rows per backward pass, see `gradient_rows`.
    """
    algo, among = cfg.algo, processes()
    steps: int | None = getattr(algo, "num_steps", None)
    evaluations, stored = 1, 0
    if steps is not None:
        # policy gradients through a chain put all its steps into one batch
        evaluations = getattr(policy, "denoising_steps", 1)
        stored = COPIES * cfg.sim.num_envs * math.ceil(steps / policy.horizon)
    elif cfg.dataset is not None:
        stored = _frames(Path(cfg.dataset))
    parts = (_minibatch(algo, among) or rows) > rows
    averages, bf16 = bool(getattr(algo, "ema", 0)), getattr(algo, "bf16", False)
    at_once = rows * getattr(algo, "frames_per_row", 1)
    held = beside(cfg, policy)
    return Load(at_once, evaluations, stored, averages, parts, bf16, among if cfg.fsdp else 1, cfg.cache, held)


def beside(cfg: TrainCfg[Any, Any], policy: Any) -> int:
    """Bytes of a run's additional networks: the averaged policy, and those that the algorithm's settings name.

    `cfg.algo.beside(policy)`, if there is such a method, returns networks that are copied from the policy, and paths of
    stored ones. Copies of an adapted policy share its frozen weights.
    """
    copies = [policy] if getattr(cfg.algo, "ema", 0) else []
    named = cfg.algo.beside(policy) if hasattr(cfg.algo, "beside") else []
    return sum(
        describe(one).weights_bytes if isinstance(one, str) else own_bytes(one, shared=bool(cfg.lora.rank))
        for one in (*copies, *named)
    )


def own_bytes(network: Any, shared: bool) -> int:
    """Bytes of a copy's weights; with `shared`, only of the trainable ones."""
    return sum(p.numel() * p.element_size() for p in network.parameters() if p.requires_grad or not shared)


def advice(cfg: TrainCfg[Any, Any], need: Footprint) -> str:
    """Advice on a config that needs too much memory, the most effective change first."""
    fixed = need.weights + need.optimiser
    fewer = "a smaller algo.microbatch" if hasattr(cfg.algo, "microbatch") else "smaller minibatches"
    if need.update < fixed and not cfg.lora.rank:
        spread = "" if cfg.fsdp else ", or fsdp, with several processes"
        return f"set lora.rank (e.g. 32), so that adapters alone learn{spread}"
    if need.stored > need.update:
        return "take fewer or smaller observations: sim.num_envs, algo.num_steps, the dataset"
    if not cfg.recompute:
        return f"set recompute, or choose {fewer}" + ("" if cfg.lora.rank else ", or set lora.rank (e.g. 32)")
    if not getattr(cfg.algo, "bf16", True):
        fewer = f"algo.bf16, or {fewer}"
    return f"choose {fewer}" + ("" if cfg.lora.rank else ", or set lora.rank (e.g. 32)")


def _frames(dataset: Path) -> int:
    """Number of a dataset's frames; 0 if unknown, which its reader will reject."""
    try:
        return int(parse_json(read_plain(dataset / INFO, INFO), INFO)["total_frames"])
    except (OSError, DataError, ValueError, KeyError, TypeError):
        return 0
